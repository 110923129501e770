"""Bounding of one tick's events by privacy unit, given what each unit has contributed before."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from evertally.pipelines.bounding import UnitBound

__all__ = ["Contributed", "bound_tick"]

IntArray = NDArray[np.int64]
_UNIT: Final = 0


class Contributed(NamedTuple):
    """What a unit has contributed so far: its last counted tick, and how many ticks were counted."""

    last: int
    used: int


def bound_tick(
    rows: IntArray, t: int, before: Mapping[int, Contributed], bound: UnitBound
) -> tuple[IntArray, dict[int, Contributed]]:
    """The events of tick t that count, and what their units have contributed then.

    Args:
        rows: events as unit, key, value; shape (3, events), in any order.
        t: the tick in which they will be counted.
        before: of each unit that has contributed.
        bound: what a unit may do.

    Guarantees:
        - a unit is counted in at most k ticks, at least b apart, with at most c events in each
          (tests/kafka/test_unit_bound.py::test_bounds_hold_for_any_input).
        - the result depends on the set of events, not on their order (test_order_changes_nothing).
    """
    rows = rows[:, np.lexsort((rows[2], rows[1], rows[_UNIT]))]
    units, starts, counts = np.unique(rows[_UNIT], return_index=True, return_counts=True)
    taken = np.zeros(len(units), np.int64)
    after: dict[int, Contributed] = {}
    for row, unit in enumerate(units.tolist()):
        past = before.get(unit)
        if past is None:
            after[unit] = Contributed(t, 1)
        elif past.used < bound.participations and t - past.last >= bound.min_separation:
            after[unit] = Contributed(t, past.used + 1)
        else:
            continue
        taken[row] = bound.per_tick
    rank = np.arange(rows.shape[1]) - np.repeat(starts, counts)
    return rows[:, rank < np.repeat(taken, counts)], after
