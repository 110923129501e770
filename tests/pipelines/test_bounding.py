"""Contribution bounds: what one unit can add, whatever it does and in whatever order it arrives."""

from __future__ import annotations

import itertools
from collections import defaultdict
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evertally.pipelines import bounding
from evertally.pipelines.bounding import UnitBound, UnitBounder, UnitNumbers
from evertally.pipelines.events import EventColumns, EventParser, ValueRule
from evertally.pipelines.raw_records import RawBatch
from evertally.pipelines.ticks import TickGrid

GRID = TickGrid(0, 10, 40)
Event = tuple[int, int, int, int]  # unit, time, key, value


def columns(events: list[Event]) -> EventColumns:
    table = np.array(events, np.int64).reshape(-1, 4)
    return EventColumns(table[:, 1], table[:, 2], table[:, 3], table[:, 0])


def bounded(events: list[Event], bound: UnitBound, batch: int = 1000) -> list[Event]:
    bounder = UnitBounder(bound, GRID)
    for first in range(0, len(events), batch):
        bounder.add(columns(events[first : first + batch]))
    out = bounder.counted()
    assert out.units is not None
    assert out.values is not None
    rows = (out.units, out.time_ms, out.keys, out.values)
    return list(zip(*(row.tolist() for row in rows), strict=True))


def by_hand(events: list[Event], bound: UnitBound) -> list[Event]:
    """The rule, written again without arrays."""
    kept: list[Event] = []
    per_unit: defaultdict[int, defaultdict[int, list[Event]]] = defaultdict(lambda: defaultdict(list))
    for event in events:
        per_unit[event[0]][event[1] // GRID.tick_ms].append(event)
    for unit in per_unit.values():
        counted: list[int] = []
        for tick in sorted(unit):
            if len(counted) < bound.participations and (
                not counted or tick - counted[-1] >= bound.min_separation
            ):
                counted.append(tick)
                kept += sorted(unit[tick], key=lambda e: (e[1], e[2], e[3]))[: bound.per_tick]
    return sorted(kept)


events_lists = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 399), st.integers(0, 2), st.integers(-5, 5)), max_size=80
)
bounds = st.builds(UnitBound, st.integers(1, 5), st.integers(1, 12), st.integers(1, 3))


@given(events_lists, bounds)
def test_bound_holds_for_any_input(events: list[Event], bound: UnitBound) -> None:
    ticks: defaultdict[int, defaultdict[int, int]] = defaultdict(lambda: defaultdict(int))
    for unit, time_ms, _, _ in bounded(events, bound):
        ticks[unit][time_ms // GRID.tick_ms] += 1
    for counted in ticks.values():
        assert len(counted) <= bound.participations
        assert max(counted.values()) <= bound.per_tick
        places = sorted(counted)
        assert all(b - a >= bound.min_separation for a, b in itertools.pairwise(places))


@given(events_lists, bounds, st.randoms(use_true_random=False), st.integers(1, 7))
def test_order_of_events_changes_nothing(
    events: list[Event], bound: UnitBound, random: object, batch: int
) -> None:
    shuffled = list(events)
    random.shuffle(shuffled)  # type: ignore[attr-defined]  # hypothesis gives a random.Random
    assert sorted(bounded(events, bound)) == sorted(bounded(shuffled, bound, batch)) == by_hand(events, bound)


@given(events_lists, bounds)
def test_taking_a_unit_away_changes_nothing_for_the_others(events: list[Event], bound: UnitBound) -> None:
    without = [event for event in events if event[0] != 0]
    assert sorted(bounded(without, bound)) == sorted(e for e in bounded(events, bound) if e[0] != 0)


@pytest.mark.slow
@given(
    events_lists, bounds, st.lists(st.sampled_from(["0", "3", "", "NaN", "-1", "1e400", "x"]), min_size=80)
)
def test_values_never_move_what_counts_to_another_place(
    events: list[Event], bound: UnitBound, values: list[str]
) -> None:
    """Adjacency "replace-value": whatever its values become, a unit counts at the same ticks and keys."""

    def places(texts: list[str]) -> list[tuple[int, int, int]]:
        parser = EventParser(
            GRID, ("a", "b", "c"), None, None, ValueRule(Decimal(1), 0, 5), int, keep_places=True
        )
        parsed, refusals = parser.parse(
            RawBatch(
                [str(time_ms) for _, time_ms, _, _ in events],
                ["abc"[key] for _, _, key, _ in events],
                texts,
                [str(unit) for unit, _, _, _ in events],
                lambda row: (row, row),
                [],
            )
        )
        assert len(refusals) == sum(text not in ("0", "3") for text in texts)
        bounder = UnitBounder(bound, GRID)
        bounder.add(parsed)
        out = bounder.counted()
        assert out.units is not None
        return sorted(zip(out.units.tolist(), out.time_ms.tolist(), out.keys.tolist(), strict=True))

    assert places(values[: len(events)]) == places(["3"] * len(events))


def test_compaction_keeps_memory_at_the_distinct_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounding, "_COMPACT_ROWS", 50)
    bound = UnitBound(3, 2, 1)
    events = [(unit, 10 * tick, 0, 1) for unit in range(4) for tick in range(10)]
    bounder = UnitBounder(bound, GRID)
    for _ in range(30):
        bounder.add(columns(events))
        assert bounder._kept.shape[1] <= 40
        assert bounder._pending_rows <= 90
    out = bounder.counted()
    assert sorted(out.time_ms.tolist()) == sorted(e[1] for e in by_hand(events, bound))


def test_units_are_told_apart_without_their_names() -> None:
    numbers = UnitNumbers(b"k" * 32)
    assert [numbers(u) for u in ("N14228", "N24211", "N14228", "\ud800")] == [0, 1, 0, 2]
    assert "N14228" not in repr(numbers)
    assert not any("N14228" in str(key) for key in numbers._numbers)
