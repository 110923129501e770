"""The bounding step: contributions of one bucket of units, tick by tick, each unit within its bound.

It stands between the events and the sums. What it lets through is counted in the tick in which it was
bounded, never in another one: the step behind it gets exactly one part for each tick and bucket.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import apache_beam as beam
import numpy as np
from apache_beam.transforms.window import TimestampedValue
from numpy.typing import NDArray

from evertally.errors import IntegrityError
from evertally.pipelines.beam.elements import Counting, tick_start
from evertally.pipelines.beam.parts import Part
from evertally.pipelines.beam.per_process import PerProcess
from evertally.pipelines.beam.stream_ref import AggregationRef, Handle, StreamRef, opened
from evertally.pipelines.beam.tick_order import NEXT, WAITING, take_turn
from evertally.pipelines.beam.unit_ledger import UnitLedger
from evertally.pipelines.bounding import UnitBound
from evertally.pipelines.kafka.unit_bound import bound_tick

__all__ = ["BoundLive", "BoundRange"]

IntArray = NDArray[np.int64]


class _Bucket:
    """One bucket in this process: its units, and what comes of a tick."""

    def __init__(self, counting: Counting, bound: UnitBound, folder: str, bucket: int) -> None:
        self._handle: Final[Handle] = opened(counting.stream)
        self._counting: Final = counting
        self._bound: Final = bound
        self._bucket: Final = bucket
        life, incarnation = self._handle.life, self._handle.incarnation
        self.units: Final = UnitLedger(Path(folder), life, incarnation, bucket, counting.buckets)

    def close(self) -> None:
        """Let go of the file."""
        self.units.close()

    def durable(self) -> int:
        """Last tick that is durable."""
        return self._handle.head()

    def begin(self) -> int:
        """The first tick of a new job; what was bounded and is not durable is forgotten."""
        head = self.durable()
        self.units.cut_back(head)
        return head + 1

    def parts(self, whole: Part, sources: int) -> Iterator[Any]:
        """((shard, tick), sealed part) for every shard, the empty ones included."""
        whole.check_whole(sources)
        kept = self._counted(whole)
        shard_of = np.array(self._handle.shard_of, np.int64)[kept[1]]
        for shard in range(self._handle.spec.shards):
            rows = kept[:, shard_of == shard]
            sums: dict[int, int] = {}
            for position, amount in zip(rows[1].tolist(), rows[2].tolist(), strict=True):
                sums[position] = sums.get(position, 0) + amount
            count = rows.shape[1]
            part = Part(whole.t, sums, events=count, ends={self._bucket: count}, cuts=whole.cuts)
            at = tick_start(self._counting.rule, whole.t)
            yield TimestampedValue(((shard, whole.t), self._handle.sealer.seal(part)), at)

    def _counted(self, whole: Part) -> IntArray:
        """The contributions of a tick that count, remembered; of a durable tick they are what they were."""
        if np.any(whole.rows[0] % self._counting.buckets != self._bucket):
            raise IntegrityError(f"tick {whole.t} holds units of another bucket; nothing is counted")
        past = self.units.get(set(whole.rows[0].tolist()), whole.t)
        kept, after = bound_tick(whole.rows, whole.t, past, self._bound)
        if whole.t > self.units.through or whole.t > self.durable():
            self.units.cut_back(whole.t - 1)
            self.units.record(whole.t, after)
        elif self.units.counted(whole.t) != after.keys():
            raise IntegrityError(
                f"tick {whole.t} comes again with other data than it was closed with; nothing is counted"
            )
        return kept


class _BoundUnits(beam.DoFn):
    """What both forms share.

    Args:
        counting: the stream and its rules.
        bound: what a unit may contribute.
        folder: for the state of units, on a disk that outlives the job.
        sources: how many sources end a tick.
        counted: whether they know how much they sent.
    """

    def __init__(
        self, counting: Counting, bound: UnitBound, folder: str, sources: int, *, counted: bool
    ) -> None:
        self._counting = counting
        self._bound = bound
        self._folder = folder
        self._sources = sources
        self._counted = counted

    def _open(self, bucket: int) -> _Bucket:
        place = (self._counting.stream, self._folder, bucket, self._counting.buckets)
        return _BUCKETS.get(place, lambda: _Bucket(self._counting, self._bound, self._folder, bucket))


class BoundRange(_BoundUnits):
    """All ticks of a declared range at once, from the first one on."""

    def process(self, element: tuple[int, Iterable[bytes]]) -> Iterator[Any]:
        """Bound every tick of the bucket in order."""
        bucket = self._open(element[0])
        sealer = opened(self._counting.stream).sealer
        sealed = {sealer.open(one).t: one for one in element[1]}
        bucket.units.cut_back(0)
        for t in sorted(sealed):
            yield from bucket.parts(sealer.open(sealed[t]), self._sources)


class BoundLive(_BoundUnits):
    """Tick after tick as they end."""

    def process(
        self,
        element: tuple[int, bytes],
        waiting: Any = beam.DoFn.StateParam(WAITING),  # noqa: B008 - how Beam declares it
        following: Any = beam.DoFn.StateParam(NEXT),  # noqa: B008 - how Beam declares it
    ) -> Iterator[Any]:
        """Bound the ticks whose turn has come; a new job begins behind the last durable one."""
        bucket = self._open(element[0])
        sealer = opened(self._counting.stream).sealer
        part = sealer.open(element[1])
        turn = following.read() or bucket.begin()
        if self._counted and part.t > turn:  # a runner went back, and its source skipped what is durable
            turn = max(turn, bucket.durable() + 1)
        parts = take_turn(part, sealer, waiting, turn, self._sources, counted=self._counted)
        for one in parts:
            yield from bucket.parts(one, self._sources)
        if parts:
            following.write(max(turn, parts[-1].t + 1))


_BUCKETS: Final[PerProcess[tuple[StreamRef | AggregationRef, str, int, int], _Bucket]] = PerProcess()
