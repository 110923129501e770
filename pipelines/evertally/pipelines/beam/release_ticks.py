"""The release step inside a pipeline: closed ticks in, rows of the ledger out, each value drawn once.

A runner may compute a bundle again at will. The noise is a function of stream, key, incarnation and tick,
the ledger takes a tick only behind the one before it, and what comes again is answered from its rows.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import apache_beam as beam
import numpy as np
from apache_beam.metrics.metric import Metrics
from apache_beam.transforms.window import TimestampedValue

from evertally.errors import EvertallyError, Fenced
from evertally.pipelines.beam.elements import tick_start
from evertally.pipelines.beam.parts import Part
from evertally.pipelines.beam.per_process import PerProcess
from evertally.pipelines.beam.positions import Cuts, Digests
from evertally.pipelines.beam.sink_refs import SinkRef
from evertally.pipelines.beam.stream_ref import StreamRef, opened
from evertally.pipelines.beam.tick_order import NEXT, WAITING, take_turn_behind
from evertally.pipelines.closings import ClosingBlock
from evertally.pipelines.kafka.aggregation import TickRule
from evertally.pipelines.outbox import release_lines
from evertally.pipelines.releaser import Releaser
from evertally.pipelines.sinks import Sink

__all__ = ["NAMESPACE", "ReleaseLive", "ReleaseRange", "Releasing"]

NAMESPACE: Final = "evertally"
_ROWS_AT_ONCE: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class Releasing:
    """What a release step knows; public.

    Attributes:
        stream: the stream.
        rule: its ticks.
        sources: how many sources end a tick.
        partitions: partitions of the Kafka input, None for another one.
        keep_cuts: how many ends of ticks of each partition the ledger keeps.
        sink: where rows are published besides the output; None for nowhere.
    """

    stream: StreamRef
    rule: TickRule
    sources: int
    partitions: int | None = None
    keep_cuts: int = 1
    sink: SinkRef | None = None


class _Shard:
    """The releaser of one shard in this process, with its sink."""

    def __init__(self, step: Releasing, shard: int) -> None:
        self._step: Final = step
        self._handle: Final = opened(step.stream)
        self._ref: Final = self._handle.opened.shard(shard)
        self._releaser: Final = Releaser.open(
            self._handle.store,
            step.stream.spec,
            self._handle.key_file,
            holder=f"{socket.gethostname()}:{os.getpid()}:beam",
            shard=shard,
        )
        if self._releaser.incarnation != self._handle.incarnation:
            raise Fenced("another incarnation of the stream was opened; start this job again")
        self.lock: Final = threading.RLock()
        self._sink: Sink | None = None
        if step.sink is not None:
            self._sink = step.sink.open(self._releaser.header, shard, self._handle.opened.shards)
            self._releaser.publish(self._sink)

    def close(self) -> None:
        """Close the sink; whoever opens the shard next fences this releaser."""
        close = getattr(self._sink, "close", None)
        if close is not None:
            close()

    @property
    def next_tick(self) -> int:
        """First tick that is not released."""
        return self._releaser.next_tick

    def at_head(self) -> bool:
        """Whether nobody else has released since: a job that was started anew in this process may have."""
        return self._handle.store.head(self._ref).t == self.next_tick - 1

    def release(self, parts: Sequence[Part], *, bounded: bool) -> None:
        """Release ticks that follow one another; those that were released before are only compared."""
        for part in parts:
            part.check_whole(self._step.sources)
        new = parts if bounded else self._unreleased(parts)
        if not new:
            return
        grid, spec = self._step.rule, self._step.stream.spec
        names = {key: position for position, key in enumerate(spec.keys)}
        columns = [names[key] for key in self._releaser.keys]
        rows = [[part.sums.get(position, 0) for position in columns] for part in new]
        self._releaser.release(
            ClosingBlock(
                spec.name,
                self._releaser.keys,
                new[0].t,
                np.array(rows, dtype=object),
                b"" if bounded else self._positions_after(new),
                tuple(grid.start_ms + part.t * grid.tick_ms for part in new),
            )
        )

    def publish(self) -> None:
        """Bring the sink up to the ledger."""
        if self._sink is not None:
            self._releaser.publish(self._sink)

    def lines(self, first: int, last: int) -> Iterator[tuple[int, bytes]]:
        """(tick, line) of stored releases of ticks first..last: the same bytes, whoever asks again."""
        after = first - 1
        while after < last:
            rows = self._handle.store.releases(self._ref, after, _ROWS_AT_ONCE)
            wanted = [row for row in rows if row.t <= last]
            yield from zip((row.t for row in wanted), release_lines(self._handle.opened, wanted), strict=True)
            after = rows[-1].t

    def _unreleased(self, parts: Sequence[Part]) -> list[Part]:
        """Without those that come again; a live input that has no offsets must bring the same again."""
        again = [part for part in parts if part.t < self.next_tick]
        if again and self._step.partitions is None:
            digests = Digests.decode(self._releaser.positions)
            for part in again:
                digests.require_same(part, self._handle.secret("chain"))
        return [part for part in parts if part.t >= self.next_tick]

    def _positions_after(self, parts: Sequence[Part]) -> bytes:
        before = self._releaser.positions
        if self._step.partitions is None:
            digests = Digests.decode(before) if before else Digests(0, ())
            for part in parts:
                digests = digests.followed_by(part, self._handle.secret("chain"))
            return digests.encode()
        cuts = Cuts.decode(before) if before else Cuts(0, ((),) * self._step.partitions)
        for part in parts:
            cuts = cuts.followed_by(part, self._step.keep_cuts)
        return cuts.encode()


class _ReleaseTicks(beam.DoFn):
    """What both forms share."""

    def __init__(self, step: Releasing) -> None:
        self._step = step
        self._ticks = Metrics.counter(NAMESPACE, "ticks_released")  # public; no count of events is

    def _release(self, shard: int, parts: Sequence[Part], *, bounded: bool) -> Iterator[Any]:
        if not parts:
            return
        here = self._shard(shard)
        with here.lock:
            if not bounded and not here.at_head():
                here = self._shard(shard, anew=True)
            try:
                here.release(parts, bounded=bounded)
                here.publish()
            except EvertallyError:
                _SHARDS.drop((self._step, shard))  # what comes next starts from the ledger
                raise
            found = list(here.lines(parts[0].t, parts[-1].t))
        self._ticks.inc(len(parts))
        for t, line in found:
            yield TimestampedValue(line.rstrip(b"\n"), tick_start(self._step.rule, t))

    def _shard(self, shard: int, *, anew: bool = False) -> _Shard:
        place = (self._step, shard)
        if anew:
            _SHARDS.drop(place)
        return _SHARDS.get(place, lambda: _Shard(self._step, shard))


class ReleaseRange(_ReleaseTicks):
    """All ticks of a declared range, after the whole input was read; offered again they are compared."""

    def process(self, element: tuple[int, Iterable[bytes]]) -> Iterator[Any]:
        """Release every tick of the shard."""
        shard, sealed = element
        sealer = opened(self._step.stream).sealer
        parts = sorted((sealer.open(one) for one in sealed), key=lambda part: part.t)
        self._shard(shard, anew=True)  # the comparison begins at the first tick again
        yield from self._release(shard, parts, bounded=True)


class ReleaseLive(_ReleaseTicks):
    """Tick after tick as they end."""

    def process(
        self,
        element: tuple[int, bytes],
        waiting: Any = beam.DoFn.StateParam(WAITING),  # noqa: B008 - how Beam declares it
        following: Any = beam.DoFn.StateParam(NEXT),  # noqa: B008 - how Beam declares it
    ) -> Iterator[Any]:
        """Release the ticks whose turn has come; those released before are answered from their rows."""
        shard, sealed = element
        sealer = opened(self._step.stream).sealer
        part = sealer.open(sealed)
        here = self._shard(shard)
        if part.t > here.next_tick and not here.at_head():
            here = self._shard(shard, anew=True)
        counted = self._step.partitions is not None
        sources = self._step.sources
        turn = take_turn_behind(part, sealer, waiting, following, here.next_tick, sources, counted=counted)
        yield from self._release(shard, turn, bounded=False)


_SHARDS: Final[PerProcess[tuple[Releasing, int], _Shard]] = PerProcess()
