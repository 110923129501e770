"""Middle stage at unit level: sealed events by unit to sealed sums, each unit within its bound.

A unit's events of a tick are bounded when every input partition has ended that tick: in the tick in
which they will be counted. One Kafka transaction holds the sums, the changelog of units and the
position, under a producer that has fenced every older owner of the partition.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import Any, Final, NoReturn

import numpy as np

from evertally.pipelines.kafka.aggregation import positions_of
from evertally.pipelines.kafka.broker import TopicPartition
from evertally.pipelines.kafka.collector import TickCollector
from evertally.pipelines.kafka.context import StreamContext
from evertally.pipelines.kafka.member import GroupMember
from evertally.pipelines.kafka.partition_stage import PartitionStage, partition_stage
from evertally.pipelines.kafka.position_text import decode_position_text, encode_position_text
from evertally.pipelines.kafka.sealed_records import Piece, Place
from evertally.pipelines.kafka.sums import encode_sums
from evertally.pipelines.kafka.transactions import OffsetText, Outgoing, Transactions
from evertally.pipelines.kafka.unit_bound import Contributed, bound_tick
from evertally.pipelines.kafka.unit_events import decode_events
from evertally.pipelines.kafka.unit_state import ChangelogSealer, UnitStore, replay

__all__ = ["bound_stage"]

_LOG: Final = logging.getLogger(__name__)
_TICKS_A_TURN: Final = 256
_TRANSACTION_TIMEOUT_MS: Final = 15_000


def bound_stage(context: StreamContext) -> PartitionStage:
    """The stage that bounds the units whose partitions this member owns."""
    config = context.config
    return partition_stage(config, "bound", config.topics.units, partial(_Partition, context))


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
        self._positions: Final = positions_of(self._shard_of, config.spec.shards)
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

    def commit(self) -> bool:
        """Bound and sum every tick that all input partitions have ended; commit once."""
        before = self._collector.through
        closed = self._collector.close(_TICKS_A_TURN)
        if not closed:
            return False
        sums: dict[int, list[dict[int, int]]] = {}
        changes: dict[int, Contributed] = {}
        for t, bodies in enumerate(closed, before + 1):
            if bodies:
                sums[t] = self._count(t, bodies, changes)
        self._commit(before, sums, changes)
        return True

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
                body = encode_sums(sums[t][shard] if t in sums else {}, self._positions[shard])
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
