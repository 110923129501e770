"""The clock of a job: says which ticks are over, so that a tick without events is released too."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import apache_beam as beam
from apache_beam.io.restriction_trackers import OffsetRange, OffsetRestrictionTracker
from apache_beam.io.watermark_estimators import ManualWatermarkEstimator
from apache_beam.transforms.core import RestrictionProvider
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.timestamp import Duration

from evertally.pipelines.beam.elements import Counting, tick_start
from evertally.pipelines.beam.job_clock import job_clock
from evertally.pipelines.beam.parts import UNKNOWN, Part
from evertally.pipelines.beam.stream_ref import AggregationRef, StreamRef, opened
from evertally.pipelines.kafka.aggregation import TickRule

__all__ = ["DeclaredTicks", "EndTicks", "EndlessTracker", "TickClock"]

_FAR: Final = 2**62
_TICKS_A_CALL: Final = 512
_POLL_S: Final = 0.1


class EndlessTracker(OffsetRestrictionTracker):
    """A range that never ends. A runner may checkpoint it; nothing is gained by splitting it."""

    def is_bounded(self) -> bool:
        """It is not."""
        return False

    def try_split(self, fraction_of_remainder: float) -> Any:
        """A checkpoint only."""
        return super().try_split(0) if fraction_of_remainder == 0 else None


class _CloseTicks(beam.DoFn, RestrictionProvider):
    """Endless ticks behind the last durable one, each when it is over by the clock."""

    def __init__(self, stream: StreamRef | AggregationRef, rule: TickRule) -> None:
        self._stream = stream
        self._rule = rule

    def initial_restriction(self, element: Any) -> OffsetRange:  # noqa: ARG002 - Beam's form
        """From the tick that is to be released next."""
        return OffsetRange(opened(self._stream).head() + 1, _FAR)

    def create_tracker(self, restriction: OffsetRange) -> EndlessTracker:
        """The tracker of a range."""
        return EndlessTracker(restriction)

    def restriction_size(self, element: Any, restriction: OffsetRange) -> int:  # noqa: ARG002 - Beam's form
        """Nothing is worth splitting."""
        return 1

    @beam.DoFn.unbounded_per_element()  # type: ignore[untyped-decorator]  # Beam has no types here
    def process(
        self,
        element: Any,  # noqa: ARG002 - Beam's form
        tracker: Any = beam.DoFn.RestrictionParam(),  # noqa: B008 - how Beam declares it
        watermarks: Any = beam.DoFn.WatermarkEstimatorParam(  # noqa: B008
            ManualWatermarkEstimator.default_provider()  # noqa: B008
        ),
    ) -> Iterator[Any]:
        """Ticks that are over; the watermark never passes the end of one that is not."""
        closed = job_clock(self._rule.tick_ms).closed_through(self._rule)
        first = tracker.current_restriction().start
        watermarks.set_watermark(tick_start(self._rule, first))
        for t in range(first, min(closed, first + _TICKS_A_CALL - 1) + 1):
            if not tracker.try_claim(t):
                return
            yield TimestampedValue(t, tick_start(self._rule, t))
            watermarks.set_watermark(tick_start(self._rule, t + 1))
        tracker.defer_remainder(Duration(_POLL_S))


class TickClock(beam.PTransform[Any, Any]):
    """PBegin to the numbers of ticks that are over by the workers' clock, for ever."""

    def __init__(self, stream: StreamRef | AggregationRef, rule: TickRule) -> None:
        super().__init__()
        self._stream = stream
        self._rule = rule

    def expand(self, begin: Any) -> Any:
        """See the class."""
        return (
            begin | "Start" >> beam.Impulse() | "Close" >> beam.ParDo(_CloseTicks(self._stream, self._rule))
        )


class DeclaredTicks(beam.PTransform[Any, Any]):
    """PBegin to 1 .. `ticks`: every tick of a declared range ends with it."""

    def __init__(self, ticks: int) -> None:
        super().__init__()
        self._ticks = ticks

    def expand(self, begin: Any) -> Any:
        """See the class."""
        return begin | "Last" >> beam.Create([self._ticks]) | "All" >> beam.FlatMap(_count_to)


def _count_to(ticks: int) -> Iterator[int]:
    yield from range(1, ticks + 1)


class EndTicks(beam.DoFn):
    """A tick that is over, to a part for every destination that says so."""

    def __init__(self, counting: Counting) -> None:
        self._counting = counting

    def process(self, element: int) -> Iterator[Any]:
        """One source, number 0, that does not know how many contributions there were."""
        sealer = opened(self._counting.stream).sealer
        at = tick_start(self._counting.rule, element)
        for destination in range(self._counting.destinations):
            sealed = sealer.seal(Part(element, ends={0: UNKNOWN}))
            yield TimestampedValue(((destination, element), sealed), at)
