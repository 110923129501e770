"""From a source to exact sums per (tick, key): parse, refuse, bound, add. Nothing is released here."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

from evertally.pipelines.bounding import UnitBounder
from evertally.pipelines.closings import TickSums
from evertally.pipelines.dead_letters import DeadLetterFile
from evertally.pipelines.events import EventColumns, EventParser
from evertally.pipelines.raw_records import Source
from evertally.pipelines.ticks import TickGrid

__all__ = ["aggregate"]


def aggregate(
    source: Source,
    parser: EventParser,
    grid: TickGrid,
    keys: int,
    bounder: UnitBounder | None,
    dead_letters: DeadLetterFile,
) -> TickSums:
    """Read the whole source and return the sums of all ticks, in any order of its events.

    Args:
        source: the input; its sums are given back only when its end was reached and verified.
        parser: checks and clips events.
        grid: the stream's ticks.
        keys: number of declared keys.
        bounder: bounds privacy units over the whole input; None at event level.
        dead_letters: takes what cannot be counted.

    Raises:
        InvalidParameter: the source is unusable or broken; nothing of it counts.
        StorageFull: a dead letter could not be written.
    """
    sums = TickSums(grid.ticks, keys)
    with _without_garbage_collection():
        for batch in source.batches():
            events, refusals = parser.parse(batch)
            for line, offset, reason in refusals:
                dead_letters.write(line, offset, reason)
            if bounder is None:
                _add(sums, events, grid, keys)
            else:
                bounder.add(events)
    if bounder is not None:
        _add(sums, bounder.counted(), grid, keys)
    return sums


def _add(sums: TickSums, events: EventColumns, grid: TickGrid, keys: int) -> None:
    cells = (events.time_ms - grid.start_ms) // grid.tick_ms * keys + events.keys
    if events.values is None:
        sums.count(cells)
    else:
        sums.add(cells, events.values)


@contextlib.contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Millions of short-lived records and no cycles: collecting would cost time and find nothing."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
