"""Stages without a broker: a played group member, a recording producer, a clock that is moved by hand."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from evertally.errors import ServiceUnavailable
from evertally.pipelines.kafka import aggregate_stage
from evertally.pipelines.kafka.aggregation import OpenTick
from evertally.pipelines.kafka.broker import TopicPartition
from evertally.pipelines.kafka.clock_guard import ClockGuard
from evertally.pipelines.kafka.config import load_worker_config
from evertally.pipelines.kafka.context import StreamContext
from evertally.pipelines.kafka.member import Polled
from evertally.pipelines.kafka.sums import add_sums, decode_sums
from evertally.pipelines.kafka.topics import Partitions
from evertally.pipelines.kafka.transactions import OffsetText, Outgoing

NOTHING = Polled((), (), {})
CONFIG = """
[stream]
name = "s"
keys = ["a", "b"]
start = "2026-01-01T00:00:00Z"
tick_s = 10
[source]
key = "k"
[privacy]
epsilon = 1.0
delta = 1e-6
[state]
path = "s.ledger"
key_file = "s.key"
[kafka]
bootstrap_servers = "nowhere:1"
topic = "s.events"
stall_s = 60
"""


class Clock:
    """Stands in the first tick until it is moved."""

    def __init__(self) -> None:
        self.ms = 1_767_225_600_000 + 1000

    def now_ms(self) -> int:
        return self.ms

    def wall_step_ms(self) -> int:
        return 0


class PlayedMember:
    def __init__(self) -> None:
        self.polls: list[Polled] = []
        self.owned: set[int] = set()
        self.sought: list[tuple[int, int]] = []
        self.offsets: dict[int, tuple[int, str]] = {}

    def poll(self, _timeout_ms: int) -> Polled:
        polled = self.polls.pop(0) if self.polls else NOTHING
        self.owned = (self.owned - set(polled.gone)) | set(polled.came)
        return polled

    def owns(self) -> frozenset[int]:
        return frozenset(self.owned)

    def joined(self) -> bool:
        return True

    def lag(self) -> int:
        return 0

    def committed(self, partition: int) -> tuple[int, str]:
        return self.offsets[partition]

    def seek(self, partition: int, offset: int) -> None:
        self.sought.append((partition, offset))

    def identity(self) -> object:
        return None

    def leave(self) -> None:
        self.owned = set()


class RecordingProducer:
    def __init__(self, member: PlayedMember) -> None:
        self.records: list[Outgoing] = []
        self.broken = False
        self.fails = False
        self._member = member

    def begin_epoch(self) -> None:
        self.broken = False

    def run(
        self, records: Sequence[Outgoing], offsets: Mapping[TopicPartition, OffsetText], _identity: object
    ) -> list[int]:
        if self.fails:
            self.broken = True
            raise ServiceUnavailable("a Kafka transaction failed")
        self.records += records
        for place, (offset, text) in offsets.items():
            self._member.offsets[place.partition] = (offset, text)
        return list(range(len(records)))

    def close(self) -> None:
        self.broken = True


class NoBindings:
    """No key is selected yet."""

    def __init__(self, *_: object, slots: tuple[str, ...]) -> None:
        self.slots = dict.fromkeys(slots)

    def refresh(self) -> bool:
        return False

    def names(self, keys: tuple[str, ...]) -> tuple[str | None, ...]:
        return tuple(self.slots.get(key, key) for key in keys)

    def close(self) -> None:
        """There is nothing to close."""


class Played:
    """A stage, what it polls and what it commits."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, text: str = CONFIG) -> None:
        path = folder / "worker.toml"
        path.write_text(text)
        config = load_worker_config(path, {})
        units = 0 if config.bound is None else 2
        self.context = StreamContext.open(config, Partitions(2, units), begun=False, may_begin=True)
        self.member = PlayedMember()
        self.producer = RecordingProducer(self.member)
        first = OpenTick(self.context.life, 1, 1).encode()
        self.member.offsets = {0: (0, first), 1: (0, first)}
        self.clock = Clock()
        monkeypatch.setattr(aggregate_stage, "GroupMember", lambda *_, **__: self.member)
        monkeypatch.setattr(aggregate_stage, "Bindings", NoBindings)
        monkeypatch.setattr(aggregate_stage, "Transactions", lambda *_, **__: self.producer)
        self.stage = aggregate_stage.AggregateStage(self.context, ClockGuard(10_000, lambda: self.clock))

    def turns(self, *polls: Polled) -> None:
        self.member.polls += polls
        for _ in polls:
            self.stage.turn()

    def counted(self) -> dict[int, int]:
        sealer = self.context.sealer(self.context.config.topics.closed)
        pieces = [sealer.open(r.key, r.value, 0) for r in self.producer.records if r.topic == "s.closed"]
        return add_sums(decode_sums(piece.body) for piece in pieces if piece is not None)

    def letters(self) -> list[tuple[int, int]]:
        found = [json.loads(r.value or b"") for r in self.producer.records if r.topic == "s.dead-letters"]
        return [(letter["partition"], letter["offset"]) for letter in found]


def records(first: int, *values: bytes) -> list[Any]:
    return [SimpleNamespace(offset=first + row, value=value) for row, value in enumerate(values)]
