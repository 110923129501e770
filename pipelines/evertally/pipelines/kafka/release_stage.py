"""Last stage: sealed pieces to closed ticks, closed ticks to ledger rows, ledger rows to the topic.

This stage recovers from the ledger alone: on assignment it seeks to the positions sealed with the last
released tick. The group's offsets only serve monitoring.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Mapping
from typing import Any, Final, NoReturn

import numpy as np

from evertally.errors import Fenced, IntegrityError, ServiceUnavailable
from evertally.pipelines.closings import ClosingBlock
from evertally.pipelines.kafka.broker import TopicPartition
from evertally.pipelines.kafka.collector import LogPosition, TickCollector
from evertally.pipelines.kafka.context import StreamContext
from evertally.pipelines.kafka.member import GroupMember
from evertally.pipelines.kafka.release_sink import TopicSink
from evertally.pipelines.kafka.sealed_records import StreamSealer
from evertally.pipelines.kafka.stage import Stall
from evertally.pipelines.kafka.sums import add_sums, decode_sums
from evertally.pipelines.kafka.transactions import OffsetText, Transactions
from evertally.pipelines.releaser import Releaser

__all__ = ["ReleaseStage"]

_LOG: Final = logging.getLogger(__name__)
_POLL_MS: Final = 100
_TICKS_A_TURN: Final = 256
_RETRY_S: Final = 1.0
_TRANSACTION_TIMEOUT_MS: Final = 15_000


class ReleaseStage:
    """Releases the shards whose closings this member owns."""

    name = "release"

    def __init__(self, context: StreamContext) -> None:
        config = context.config
        self._context: Final = context
        self._config: Final = config
        self._sources: Final = context.closing_sources
        self._sealer: Final = context.sealer(config.topics.closed)
        self._member: Final = GroupMember(
            config.broker, config.membership(self.name), config.topics.closed, max_poll_records=2000
        )
        self._shards: dict[int, _Shard] = {}
        self._retry: dict[int, float] = {}
        self._stall: Final = Stall(self.name, config.stall_s)
        self._ready = False

    def turn(self) -> None:
        """See `Stage`."""
        polled = self._member.poll(_POLL_MS)
        for shard in polled.gone:
            self._drop(shard)
            self._retry.pop(shard, None)
        for shard in polled.came:
            self._retry[shard] = 0.0
        self._open_due()
        for shard, records in polled.records.items():
            if shard in self._shards:
                self._guarded(shard, lambda shard=shard, records=records: self._shards[shard].read(records))
        for shard in tuple(self._shards):
            self._guarded(shard, lambda shard=shard: self._shards[shard].release())
        if polled.records or self._retry or not self._member.lag():
            self._stall.moved()
        self._stall.check()
        self._ready = self._member.joined() and not self._retry

    def ready(self) -> bool:
        """See `Stage`."""
        return self._ready

    def drain(self) -> None:
        """See `Stage`."""
        for shard in tuple(self._shards):
            self._drop(shard)
        self._member.leave()

    def _open_due(self) -> None:
        now = time.monotonic()
        for shard, due in tuple(self._retry.items()):
            if now < due:
                continue
            self._retry[shard] = now + _RETRY_S
            try:
                opened = _Shard(self._context, shard, self._sources, self._sealer, self._member)
            except ServiceUnavailable as error:
                _LOG.warning("shard %d cannot be opened yet: %s", shard, error)
                continue
            self._shards[shard] = opened
            del self._retry[shard]

    def _guarded(self, shard: int, work: Any) -> None:
        """What is only unreachable is tried again, from the ledger's state."""
        try:
            work()
        except ServiceUnavailable as error:
            _LOG.warning("shard %d starts over from the ledger: %s", shard, error)
            self._drop(shard)
            self._retry[shard] = time.monotonic() + _RETRY_S

    def _drop(self, shard: int) -> None:
        opened = self._shards.pop(shard, None)
        if opened is not None:
            opened.close()


class _Shard:
    """One shard while this member owns it: the one releaser, its collector and its sink."""

    def __init__(
        self, context: StreamContext, shard: int, sources: int, sealer: StreamSealer, member: GroupMember
    ) -> None:
        config = context.config
        self._config: Final = config
        self._shard: Final = shard
        self._sealer: Final = sealer
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
            self._collector: Final = self._recover(sources)
            self._sink: Final = self._catch_up()
        except BaseException:
            self._transactions.close()
            raise
        names = {key: position for position, key in enumerate(config.spec.keys)}
        self._columns: Final = [names[key] for key in self._releaser.keys]
        self._allowance = 1.0
        self._allowed_at = time.monotonic()
        _LOG.info("releasing shard %d from tick %d", shard, self._releaser.next_tick)

    def read(self, records: list[Any]) -> None:
        """Take in records of the closings topic."""
        for record in records:
            piece = self._sealer.open(record.key, record.value, self._shard)
            if piece is None:
                self._collector.skip_to(record.offset + 1)
            else:
                self._collector.add(record.offset, piece)

    def release(self) -> None:
        """Release every tick that all sources have ended, missed ones at a bounded rate."""
        limit = self._take_allowance()
        first = self._collector.through + 1
        closed = self._collector.close(limit)
        if not closed:
            return
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
                f"closings before offset {begins} of {self._config.topics.closed} were deleted before "
                "they were released"
            )
        return TickCollector(sources, LogPosition(0, begins, begins, ()))

    def _catch_up(self) -> TopicSink:
        """Publish what the ledger holds and the topic does not, then read on from the ledger's position."""
        place = TopicPartition(self._config.topics.releases, self._shard)
        sink = TopicSink(
            self._config.broker, place, self._releaser.header, self._transactions, self._progress
        )
        self._releaser.publish(sink)
        self._member.seek(self._shard, self._collector.position().resume)
        return sink

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
