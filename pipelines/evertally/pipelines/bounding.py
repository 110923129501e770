"""Contribution bounding: what one privacy unit may add to a stream, whatever it does.

Bounding happens before counting and over all keys together. Without it a guarantee for units is void.
A bound loses events; how many it lost is a function of the data and is not published.

Reference: arXiv 2306.08153 (b-min-separated participation); docs/proofs has the sensitivity.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from typing import Final, NoReturn

import numpy as np
from numpy.typing import NDArray

from evertally.pipelines.events import EventColumns
from evertally.pipelines.ticks import TickGrid
from evertally.validation import positive_integer

__all__ = ["UnitBound", "UnitBounder", "UnitNumbers"]

IntArray = NDArray[np.int64]

_COMPACT_ROWS: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class UnitBound:
    """At most `per_tick` events in a tick, in at most `participations` ticks, `min_separation` ticks apart.

    Guarantees:
        - counted ticks of a unit: at most k in all, any two at least b apart, at most c events in each
          (tests/pipelines/test_bounding.py::test_bound_holds_for_any_input).
        - the result depends on the set of events, not on their order
          (tests/pipelines/test_bounding.py::test_order_of_events_changes_nothing).
    """

    participations: int
    min_separation: int
    per_tick: int

    def __post_init__(self) -> None:
        positive_integer("participations", self.participations)
        positive_integer("min_separation", self.min_separation)
        positive_integer("per_tick", self.per_tick)


class UnitNumbers:
    """Numbers privacy units by HMAC-SHA256 under a key of its own; the units' names are not kept.

    Memory: about 150 bytes a unit, never evicted (an evicted unit could contribute twice).
    """

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._numbers: dict[bytes, int] = {}

    def __repr__(self) -> str:
        return "UnitNumbers(<redacted>)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("unit numbers hold a key and are not pickled")

    def __call__(self, unit: str) -> int:
        """The unit's number: 0, 1, ... in the order of first sight. Only equality means anything."""
        digest = hmac.digest(self._key, unit.encode("utf-8", "surrogatepass"), "sha256")
        return self._numbers.setdefault(digest[:16], len(self._numbers))


class UnitBounder:
    """Collects a file's events and gives back those that the bound lets through.

    The rule: a unit's ticks are taken in order; a tick counts if it is the first, or at least
    `min_separation` after the last counted one, until `participations` ticks are counted; in a counted
    tick the first `per_tick` events count, ordered by time stamp, key index and value.

    Memory: 32 bytes for each event kept, and at most `per_tick` are kept of a (unit, tick), plus a
    buffer of 2^20 events.
    """

    def __init__(self, bound: UnitBound, grid: TickGrid) -> None:
        self._bound = bound
        self._grid = grid
        self._kept = np.empty((4, 0), np.int64)  # rows: unit, time, key, value
        self._pending: list[IntArray] = []
        self._pending_rows = 0

    def __repr__(self) -> str:
        return f"UnitBounder({self._bound}, <redacted>)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a bounder holds events and is not pickled")

    def add(self, events: EventColumns) -> None:
        """Take in a batch of events; their order does not matter."""
        assert events.units is not None
        values = np.ones_like(events.keys) if events.values is None else events.values
        self._pending.append(np.stack((events.units, events.time_ms, events.keys, values)))
        self._pending_rows += len(values)
        if self._pending_rows >= max(_COMPACT_ROWS, self._kept.shape[1]):
            self._compact()

    def counted(self) -> EventColumns:
        """The events that count, once all have been added."""
        self._compact()
        unit, time_ms, key, value = self._kept
        tick = self._tick(time_ms)
        new_tick = _starts(unit, tick)
        first_rows = np.nonzero(new_tick)[0]
        counts = np.fromiter(
            _greedy(unit[first_rows].tolist(), tick[first_rows].tolist(), self._bound),
            np.bool_,
            len(first_rows),
        )
        row_counts = counts[np.cumsum(new_tick) - 1]
        return EventColumns(time_ms[row_counts], key[row_counts], value[row_counts], unit[row_counts])

    def _tick(self, time_ms: IntArray) -> IntArray:
        return (time_ms - self._grid.start_ms) // self._grid.tick_ms

    def _compact(self) -> None:
        """Sort, and keep the first `per_tick` events of each (unit, tick): no other can ever count."""
        rows = np.concatenate((self._kept, *self._pending), axis=1)
        self._pending, self._pending_rows = [], 0
        unit, time_ms, key, value = rows
        order = np.lexsort((value, key, time_ms, unit))
        rows = rows[:, order]
        starts = np.nonzero(_starts(rows[0], self._tick(rows[1])))[0]
        lengths = np.diff(np.append(starts, rows.shape[1]))
        rank = np.arange(rows.shape[1]) - np.repeat(starts, lengths)
        self._kept = rows[:, rank < self._bound.per_tick]


def _starts(unit: IntArray, tick: IntArray) -> NDArray[np.bool_]:
    """Where a new (unit, tick) begins in sorted columns."""
    new = np.ones(len(unit), np.bool_)
    new[1:] = (unit[1:] != unit[:-1]) | (tick[1:] != tick[:-1])
    return new


def _greedy(units: list[int], ticks: list[int], bound: UnitBound) -> list[bool]:
    """For each distinct (unit, tick) in order: does the tick count?"""
    verdicts: list[bool] = []
    current, last, used = -1, 0, 0
    for unit, tick in zip(units, ticks, strict=True):
        if unit != current:
            current, used = unit, 0
        counts = used == 0 or (used < bound.participations and tick - last >= bound.min_separation)
        if counts:
            last, used = tick, used + 1
        verdicts.append(counts)
    return verdicts
