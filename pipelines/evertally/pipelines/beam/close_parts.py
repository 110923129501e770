"""The two halves that every job shares: events to parts of ticks, and parts to what ends a whole tick."""

from __future__ import annotations

from typing import Any

import apache_beam as beam
from apache_beam.pvalue import PBegin, PCollection

from evertally.errors import InvalidParameter
from evertally.pipelines.beam.add_parts import AddParts
from evertally.pipelines.beam.bound_units import BoundLive, BoundRange
from evertally.pipelines.beam.elements import DEAD_LETTERS, CheckElements, Counting
from evertally.pipelines.beam.tick_clock import DeclaredTicks, EndTicks, TickClock
from evertally.pipelines.beam.windows import everywhere, refuse_accumulating, tick_windows
from evertally.pipelines.bounding import UnitBound

__all__ = ["CloseParts", "checked_parts"]


def checked_parts(events: PCollection[Any], counting: Counting, ends: Any) -> tuple[Any, Any]:
    """(parts of ticks with the ends of ticks, dead letters) of any input.

    Raises InvalidParameter for accumulating panes, and for a declared range of an input that never ends.
    """
    refuse_accumulating(events)
    if counting.ticks is not None and not events.is_bounded:
        raise InvalidParameter("closing", "file", "event-time: this input never ends")
    checked = (
        events
        | "AllInOne" >> everywhere()
        | "Check" >> beam.ParDo(CheckElements(counting)).with_outputs(DEAD_LETTERS, main="parts")
    )
    begin = PBegin(events.pipeline)
    if counting.ticks is not None:
        ends = begin | "Ticks" >> DeclaredTicks(counting.ticks)
    elif ends is None:
        ends = begin | "Clock" >> TickClock(counting.stream, counting.rule)
    ended = ends | "EndTicks" >> beam.ParDo(EndTicks(counting))
    return (checked.parts, ended) | "WithEnds" >> beam.Flatten(), checked[DEAD_LETTERS]


class CloseParts(beam.PTransform[Any, Any]):
    """Keyed sealed parts of ticks to what the last step makes of whole ones: the back half of every job.

    Args:
        counting: the stream and its rules.
        step: takes (shard, sealed sums), one or all ticks at a time as `counting` says.
        sources: how many sources end a tick.
        folder: for the state of units.
        counted: whether sources know how much they sent.
    """

    def __init__(
        self,
        counting: Counting,
        step: beam.DoFn,
        sources: int,
        folder: str | None,
        *,
        counted: bool = False,
    ) -> None:
        super().__init__()
        self._counting = counting
        self._step = step
        self._sources = sources
        self._folder = folder
        self._counted = counted

    def expand(self, parts: PCollection[Any]) -> PCollection[bytes]:
        """See the class."""
        counting, counted = self._counting, self._counted
        if counting.buckets:
            spec = counting.stream.spec
            bound = UnitBound(spec.participations, spec.min_separation, spec.per_tick)
            assert self._folder is not None
            step = (BoundLive if counting.ticks is None else BoundRange)(
                counting, bound, self._folder, self._sources, counted=counted
            )
            parts = parts | "ByUnit" >> _InTicks(counting, counted=counted) | "Bound" >> beam.ParDo(step)
        closed = parts | "ByShard" >> _InTicks(counting, counted=counted)
        done: PCollection[bytes] = closed | "Close" >> beam.ParDo(self._step)
        return done


class _InTicks(beam.PTransform[Any, Any]):
    """Sums parts of each tick and destination; the destination with its sealed sums is left.

    Live: one sum for each pane of a tick's window. Declared range: all ticks together, after the last event.
    A source that counts what it sends has summed its parts, and they need no window: the step behind knows by
    their counts when a tick is whole, and waits for no watermark.
    """

    def __init__(self, counting: Counting, *, counted: bool) -> None:
        super().__init__()
        self._counting = counting
        self._counted = counted

    def expand(self, parts: PCollection[Any]) -> Any:
        """See the class."""
        counting = self._counting
        typed = parts | "Typed" >> beam.Map(_same).with_output_types(tuple[tuple[int, int], bytes])
        if self._counted:
            return typed | "Place" >> beam.Map(_place).with_output_types(tuple[int, bytes])
        if counting.ticks is None:
            typed = typed | "Tick" >> tick_windows(counting.rule)
        summed = typed | "Sum" >> beam.CombinePerKey(AddParts(counting.stream))
        placed = summed | "Place" >> beam.Map(_place).with_output_types(tuple[int, bytes])
        if counting.ticks is not None:
            return placed | "All" >> beam.GroupByKey()
        return placed | "AllTicks" >> everywhere()


def _same(keyed: tuple[tuple[int, int], bytes]) -> tuple[tuple[int, int], bytes]:
    return keyed


def _place(keyed: tuple[tuple[int, int], bytes]) -> tuple[int, bytes]:
    return keyed[0][0], keyed[1]
