"""Middle stage at unit level: sealed events by unit to sealed sums, each unit within its bound.

A unit's events of a tick are bounded when every input partition has ended that tick: in the tick in
which they will be counted. One Kafka transaction holds the sums, the changelog of units and the
position, under a producer that has fenced every older owner of the partition.
"""

from __future__ import annotations

import base64
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, NoReturn

import numpy as np

from evertally.errors import IntegrityError, ServiceUnavailable
from evertally.pipelines.kafka.aggregation import OpenTick
from evertally.pipelines.kafka.broker import TopicPartition
from evertally.pipelines.kafka.collector import LogPosition, TickCollector
from evertally.pipelines.kafka.context import StreamContext
from evertally.pipelines.kafka.member import GroupMember
from evertally.pipelines.kafka.sealed_records import Piece, Place
from evertally.pipelines.kafka.stage import Stall
from evertally.pipelines.kafka.sums import encode_sums
from evertally.pipelines.kafka.transactions import OffsetText, Outgoing, Transactions
from evertally.pipelines.kafka.unit_bound import Contributed, bound_tick
from evertally.pipelines.kafka.unit_events import decode_events
from evertally.pipelines.kafka.unit_state import ChangelogSealer, UnitStore, replay

__all__ = ["BoundStage", "decode_position_text", "encode_position_text"]

_LOG: Final = logging.getLogger(__name__)
_POLL_MS: Final = 100
_TICKS_A_TURN: Final = 256
_RETRY_S: Final = 1.0
_TRANSACTION_TIMEOUT_MS: Final = 15_000


class BoundStage:
    """Bounds the units whose partitions this member owns."""

    name = "bound"

    def __init__(self, context: StreamContext) -> None:
        config = context.config
        self._context: Final = context
        self._member: Final = GroupMember(
            config.broker, config.membership(self.name), config.topics.units, max_poll_records=500
        )
        self._owned: dict[int, _Partition] = {}
        self._retry: dict[int, float] = {}
        self._stall: Final = Stall(self.name, config.stall_s)
        self._ready = False

    def turn(self) -> None:
        """See `Stage`."""
        polled = self._member.poll(_POLL_MS)
        for partition in polled.gone:
            self._drop(partition)
            self._retry.pop(partition, None)
        for partition in polled.came:
            self._retry[partition] = 0.0
        self._open_due()
        for partition, records in polled.records.items():
            if partition in self._owned:
                self._owned[partition].read(records)
        for partition in tuple(self._owned):
            self._guarded(partition, self._owned[partition].bound)
        if polled.records or self._retry or not self._member.lag():
            self._stall.moved()
        self._stall.check()
        self._ready = self._member.joined() and not self._retry

    def ready(self) -> bool:
        """See `Stage`."""
        return self._ready

    def drain(self) -> None:
        """See `Stage`."""
        for partition in tuple(self._owned):
            self._drop(partition)
        self._member.leave()

    def _open_due(self) -> None:
        now = time.monotonic()
        for partition, due in tuple(self._retry.items()):
            if now < due:
                continue
            self._retry[partition] = now + _RETRY_S
            try:
                opened = _Partition(self._context, partition, self._member)
            except ServiceUnavailable as error:
                _LOG.warning("unit partition %d cannot be opened yet: %s", partition, error)
                continue
            self._owned[partition] = opened
            del self._retry[partition]

    def _guarded(self, partition: int, work: Callable[[], None]) -> None:
        try:
            work()
        except ServiceUnavailable as error:
            _LOG.warning("unit partition %d starts over: %s", partition, error)
            self._drop(partition)
            self._retry[partition] = time.monotonic() + _RETRY_S

    def _drop(self, partition: int) -> None:
        owned = self._owned.pop(partition, None)
        if owned is not None:
            owned.close()


class _Partition:
    """One unit partition while this member owns it."""

    def __init__(self, context: StreamContext, partition: int, member: GroupMember) -> None:
        config = context.config
        assert config.bound is not None
        assert config.folder is not None
        self._partition: Final = partition
        self._state_stop = 0
        self._member: Final = member
        self._config: Final = config
        self._bound: Final = config.bound
        self._life: Final = context.life
        self._incarnation: Final = context.opened.incarnation
        self._shard_of: Final = context.shard_of()
        self._events: Final = context.sealer(config.topics.units)
        self._closings: Final = context.sealer(config.topics.closed)
        self._changes: Final = ChangelogSealer(
            context.secret("closing"), self._life, self._incarnation, partition
        )
        self._transactions: Final = Transactions(
            config.broker,
            f"{config.topics.prefix}.bound.{partition}",
            timeout_ms=_TRANSACTION_TIMEOUT_MS,
            max_request_bytes=config.max_request_bytes,
        )
        self._store: Final = UnitStore(config.folder, self._life, self._incarnation, partition)
        try:
            self._collector: Final = self._recover(context.partitions.events)
        except BaseException:
            self.close()
            raise
        _LOG.info("bounding unit partition %d from tick %d", partition, self._collector.through + 1)

    def _recover(self, sources: int) -> TickCollector:
        """Position, collector and unit state as of the last transaction of this partition's owners."""
        topics = self._config.topics
        self._transactions.begin_epoch()  # before anything is read: an older owner can add nothing now
        offset, text = self._member.committed(self._partition)
        position, self._state_stop = decode_position_text(text, self._life, self._incarnation, offset)
        place = TopicPartition(topics.unit_state, self._partition)
        replay(self._config.broker, place, self._changes, self._store, self._state_stop)
        self._member.seek(self._partition, position.resume)
        return TickCollector(sources, position)

    def read(self, records: Sequence[Any]) -> None:
        """Take in records of the units topic."""
        for record in records:
            piece = self._events.open(record.key, record.value, self._partition)
            if piece is None:
                self._collector.skip_to(record.offset + 1)
            else:
                self._collector.add(record.offset, piece)

    def bound(self) -> None:
        """Bound and sum every tick that all input partitions have ended; commit once."""
        before = self._collector.through
        closed = self._collector.close(_TICKS_A_TURN)
        if not closed:
            return
        sums: dict[int, list[dict[int, int]]] = {}
        changes: dict[int, Contributed] = {}
        for t, bodies in enumerate(closed, before + 1):
            if bodies:
                sums[t] = self._count(t, bodies, changes)
        self._commit(before, sums, changes)

    def close(self) -> None:
        """Give the partition up."""
        self._transactions.close()
        self._store.close()

    def _count(
        self, t: int, bodies: Sequence[bytes], changes: dict[int, Contributed]
    ) -> list[dict[int, int]]:
        rows = np.concatenate([decode_events(body) for body in bodies], axis=1)
        units = set(np.unique(rows[0]).tolist())
        past = self._store.get(units - changes.keys())
        past |= {unit: changes[unit] for unit in units & changes.keys()}
        counted, after = bound_tick(rows, t, past, self._bound)
        changes |= after
        by_shard: list[dict[int, int]] = [{} for _ in range(self._config.spec.shards)]
        for key, value in zip(counted[1].tolist(), counted[2].tolist(), strict=True):
            shard = by_shard[self._shard_of[key]]
            shard[key] = shard.get(key, 0) + value
        return by_shard

    def _commit(
        self, before: int, sums: dict[int, list[dict[int, int]]], changes: dict[int, Contributed]
    ) -> None:
        through = self._collector.through
        records = []
        topics = self._config.topics
        for shard in range(self._config.spec.shards):
            start = before
            for t in sorted(sums.keys() | {through}):
                place = Place(self._life, self._incarnation, self._partition, t, t == through)
                body = encode_sums(sums[t][shard] if t in sums else {})
                piece = Piece(place, start, through, body)
                records.append(Outgoing(topics.closed, shard, *self._closings.seal(piece, shard)))
                start = through
        first_change = len(records)
        for unit, state in changes.items():
            records.append(Outgoing(topics.unit_state, self._partition, *self._changes.seal(unit, state)))
        position = self._collector.position()
        text = encode_position_text(self._life, self._incarnation, position, self._state_stop)
        tp = TopicPartition(topics.units, self._partition)
        sent = self._transactions.run(
            records, {tp: OffsetText(position.resume, text)}, self._member.identity()
        )
        if changes:
            self._state_stop = sent[-1] + 1
            assert len(sent) > first_change
        self._store.apply(changes, self._state_stop)

    def __repr__(self) -> str:
        return f"_Partition({self._partition}, <redacted>)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a partition holds events and is not pickled")


def encode_position_text(life: str, incarnation: int, position: LogPosition, state_stop: int) -> str:
    """The text that travels with a committed offset: open tick, end of the changelog, log position."""
    packed = base64.urlsafe_b64encode(position.encode()).decode()
    return f"{OpenTick(life, incarnation, position.through + 1).encode()} {state_stop} {packed}"


def decode_position_text(text: str, life: str, incarnation: int, offset: int) -> tuple[LogPosition, int]:
    """Position and end of the changelog; from the committed offset where the incarnation is new."""
    words = text.split(" ")
    open_tick = OpenTick.decode(" ".join(words[:4])).within(life, incarnation)
    if open_tick == 1 or len(words) == 4:
        return LogPosition(0, offset, offset, ()), 0
    try:
        position = LogPosition.decode(base64.urlsafe_b64decode(words[5]))
        return position, int(words[4])
    except (ValueError, IndexError):
        raise IntegrityError("the group's committed offsets were written by another program") from None
