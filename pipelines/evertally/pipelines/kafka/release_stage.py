"""Last stage: sealed pieces to closed ticks, closed ticks to ledger rows, ledger rows to the topic.

This stage recovers from the ledger alone: on assignment it seeks to the positions sealed with the last
released tick. The group's offsets only serve monitoring.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final, NoReturn

import numpy as np

from evertally.errors import Fenced, IntegrityError
from evertally.pipelines.closings import ClosingBlock
from evertally.pipelines.kafka.broker import TopicPartition
from evertally.pipelines.kafka.collector import LogPosition, TickCollector
from evertally.pipelines.kafka.context import StreamContext
from evertally.pipelines.kafka.member import GroupMember
from evertally.pipelines.kafka.partition_stage import PartitionStage, partition_stage
from evertally.pipelines.kafka.release_sink import TopicSink
from evertally.pipelines.kafka.sums import add_sums, decode_sums
from evertally.pipelines.kafka.transactions import OffsetText, Transactions
from evertally.pipelines.releaser import Releaser

__all__ = ["release_stage"]

_LOG: Final = logging.getLogger(__name__)
_TICKS_A_TURN: Final = 256
_TRANSACTION_TIMEOUT_MS: Final = 15_000
_SILENT_SOURCE_S: Final = 60.0


def release_stage(context: StreamContext) -> PartitionStage:
    """The stage that releases the shards whose closings this member owns."""
    config = context.config
    return partition_stage(
        config, "release", config.topics.closed, partial(_Shard, context), max_poll_records=2000
    )


class _Shard:
    """One shard while this member owns it: the one releaser, its collector and its sink."""

    def __init__(self, context: StreamContext, shard: int, member: GroupMember) -> None:
        config = context.config
        self._config: Final = config
        self._metrics: Final = context.metrics
        self._shard: Final = shard
        self._sealer: Final = context.sealer(config.topics.closed)
        self._member: Final = member
        holder = f"{socket.gethostname()}:{os.getpid()}:{config.instance}"
        self._releaser: Final = Releaser.open(
            context.store, config.spec, context.key_file, holder=holder, shard=shard
        )
        if self._releaser.incarnation != context.opened.incarnation:
            raise Fenced("another incarnation of the stream was opened; start this worker again")
        self._transactions: Final = Transactions(
            config.broker,
            f"{config.topics.prefix}.release.{shard}",
            timeout_ms=_TRANSACTION_TIMEOUT_MS,
            max_request_bytes=config.max_request_bytes,
        )
        try:
            self._transactions.begin_epoch()
            self._collector: Final = self._recover(context.closing_sources)
            self._sink: Final = self._catch_up()
        except BaseException:
            self._transactions.close()
            raise
        names = {key: position for position, key in enumerate(config.spec.keys)}
        self._columns: Final = [names[key] for key in self._releaser.keys]
        self._allowance = 1.0
        self._allowed_at = self._closed_at = time.monotonic()
        _LOG.info("releasing shard %d from tick %d", shard, self._releaser.next_tick)

    def read(self, records: Sequence[Any]) -> None:
        """Take in records of the closings topic."""
        for record in records:
            piece = self._sealer.open(record.key, record.value, self._shard)
            if piece is None:
                self._collector.skip_to(record.offset + 1)
            else:
                self._collector.add(record.offset, piece)

    def commit(self) -> bool:
        """Release every tick that all sources have ended, missed ones at a bounded rate."""
        limit = self._take_allowance()
        first = self._collector.through + 1
        closed = self._collector.close(limit)
        if not closed:
            self._say_who_is_missing()
            return False
        self._closed_at = time.monotonic()
        grid = self._config.rule
        rows = []
        for bodies in closed:
            sums = add_sums(map(decode_sums, bodies))
            if not sums.keys() <= set(self._columns):
                raise IntegrityError("a closing holds a key of another shard")
            rows.append([sums.get(position, 0) for position in self._columns])
        self._releaser.release(
            ClosingBlock(
                self._config.spec.name,
                self._releaser.keys,
                first,
                np.array(rows, dtype=object),
                self._collector.position().encode(),
                tuple(grid.start_ms + t * grid.tick_ms for t in range(first, first + len(closed))),
            )
        )
        self._releaser.publish(self._sink)
        self._metrics.released(self._shard, self._releaser.next_tick - 1, self._sink.last_tick())
        return True

    def close(self) -> None:
        """Give the shard up; whoever comes next fences us."""
        self._transactions.close()

    def _recover(self, sources: int) -> TickCollector:
        positions = self._releaser.positions
        if positions:
            position = LogPosition.decode(positions)
            if position.through != self._releaser.next_tick - 1:
                raise IntegrityError("the sealed positions and the ledger's head are at different ticks")
            return TickCollector(sources, position)
        begins = self._member.beginning(self._shard)
        if begins and self._releaser.incarnation == 1:
            raise IntegrityError(
                f"closings of partition {self._shard} of {self._config.topics.closed} were deleted before "
                "they were released"
            )
        return TickCollector(sources, LogPosition(0, begins, begins, ()))

    def _catch_up(self) -> TopicSink:
        """Publish what the ledger holds and the topic does not, then read on from the ledger's position."""
        place = TopicPartition(self._config.topics.releases, self._shard)
        sink = TopicSink(
            self._config.broker,
            place,
            self._config.header(self._releaser.incarnation),
            self._transactions,
            self._progress,
        )
        self._metrics.released(self._shard, self._releaser.next_tick - 1, sink.last_tick())
        self._releaser.publish(sink)
        self._member.seek(self._shard, self._collector.position().resume)
        return sink

    def _say_who_is_missing(self) -> None:
        """A source that never speaks holds every tick back: one too many in kafka.closing_sources, say."""
        missing = self._collector.waiting_for()
        silent = time.monotonic() - self._closed_at > _SILENT_SOURCE_S
        if not (silent and 0 < len(missing) < self._collector.sources):
            return
        self._closed_at = time.monotonic()
        _LOG.warning(
            "shard %d waits at tick %d for closings of %d of %d sources: %s",
            *(self._shard, self._collector.through + 1, len(missing), self._collector.sources),
            ", ".join(map(str, missing[:10])),
        )

    def _take_allowance(self) -> int:
        """Ticks that may be released now: a bucket that fills at the configured rate."""
        now = time.monotonic()
        rate = self._config.catch_up_ticks_per_s
        self._allowance = min(float(_TICKS_A_TURN), self._allowance + (now - self._allowed_at) * rate)
        self._allowed_at = now
        wanted = min(self._collector.ready - self._collector.through, int(self._allowance))
        self._allowance -= max(0, wanted)
        return max(0, wanted)

    def _progress(self) -> tuple[Mapping[TopicPartition, OffsetText], object]:
        place = TopicPartition(self._config.topics.closed, self._shard)
        resume = self._collector.position().resume
        return {place: OffsetText(resume, "monitoring only")}, self._member.identity()

    def __repr__(self) -> str:
        return f"_Shard({self._shard}, <redacted>)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a shard holds exact sums and is not pickled")
