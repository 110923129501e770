"""Reading to a known end, and the tail of the releases topic. No broker."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from evertally.errors import IntegrityError, ServiceUnavailable
from evertally.pipelines.kafka.broker import TopicPartition
from evertally.pipelines.kafka.candidates import Bindings
from evertally.pipelines.kafka.reading import read_up_to
from evertally.pipelines.kafka.release_sink import published_tick
from evertally.pipelines.releases import Release

PLACE = TopicPartition("visits.releases", 0)
STAMP = {"tick_end_ms": 1_767_225_600_000, "value": 5, "stderr": 1.0, "mechanism": "rational:W32"}


class PlayedTopic:
    """Records from offset 0 on; a reader that stops at `stuck` as if the broker were away."""

    def __init__(self, records: list[Any], stuck: int | None = None) -> None:
        self.records, self.at, self.stuck, self.read = records, 0, stuck, 0

    def reader(self) -> PlayedTopic:
        return self

    def assign(self, places: list[TopicPartition]) -> None:
        """The one partition."""

    def beginning_offsets(self, places: list[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(places, 0)

    def end_offsets(self, places: list[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(places, len(self.records))

    def seek(self, _place: TopicPartition, offset: int) -> None:
        self.at = offset

    def position(self, _place: TopicPartition) -> int:
        return self.at

    def poll(self, **_: Any) -> dict[TopicPartition, list[Any]]:
        last = len(self.records) if self.stuck is None else self.stuck
        found = self.records[self.at : min(self.at + 100, last)]
        self.at += len(found)
        self.read += len(found)
        return {PLACE: found} if found else {}

    def close(self, **_: Any) -> None:
        """Nothing to do."""


def releases(incarnation: int, ticks: int) -> list[Any]:
    return [
        SimpleNamespace(
            key=b"k",
            offset=t,
            value=Release(stream="visits", key="k", incarnation=incarnation, t=t, **STAMP).encode(),  # type: ignore[arg-type]
        )
        for t in range(1, ticks + 1)
    ]


def test_a_partition_that_gives_nothing_more_is_an_error_and_not_a_wait() -> None:
    topic = PlayedTopic([SimpleNamespace(offset=number) for number in range(300)], stuck=200)
    with pytest.raises(ServiceUnavailable, match="gave no records"):
        for _ in read_up_to(topic, PLACE, 300, stall_s=0.05):
            pass
    assert topic.read == 200


def test_the_first_tick_of_an_incarnation_is_found_in_the_tail_alone() -> None:
    """The topic is kept for ever: reading all of it took longer than a stage may be silent."""
    topic = PlayedTopic(releases(1, 20_000))
    assert published_tick(topic, PLACE, "visits", 2) == (0, 20_000)  # type: ignore[arg-type]
    assert topic.read <= 256
    assert published_tick(topic, PLACE, "visits", 1) == (20_000, 20_000)  # type: ignore[arg-type]
    topic = PlayedTopic(releases(1, 300) + releases(2, 3))
    assert published_tick(topic, PLACE, "visits", 2) == (3, 303)  # type: ignore[arg-type]


def test_a_ledger_from_before_a_published_incarnation_is_refused() -> None:
    topic = PlayedTopic(releases(1, 300) + releases(2, 300))
    with pytest.raises(IntegrityError, match="incarnation 2 of visits is published"):
        published_tick(topic, PLACE, "visits", 1)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "value", [None, b"", b"\xff", b"[]", b'{"stream": "visits"}', b'{"stream": 1, "incarnation": []}']
)
def test_a_record_that_binds_no_key_is_refused_by_name(value: bytes | None) -> None:
    keys = TopicPartition("visits.keys", 0)
    topic = PlayedTopic([SimpleNamespace(offset=0, value=value)])
    topic.poll = lambda **_: {keys: topic.records}  # type: ignore[method-assign]
    with pytest.raises(IntegrityError, match="bind no key"):
        Bindings(topic, "visits.keys", "visits", 1, ("slot-1",))  # type: ignore[arg-type]
