"""The (k, b) closed form against brute force over patterns, signs, keys and replacements."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from evertally.counters.contribution import Contribution
from evertally.counters.rational import Rational

FloatArray = NDArray[np.float64]
FAST = Rational.from_weights((1, 2), (0.2, 0.2, 0.3, 0.3))
"""Modes that decay within a few ticks, so that 160 ticks stand for an infinite stream."""
ROWS = 160


def columns(mechanism: Rational, ticks: int) -> FloatArray:
    r = mechanism.strategy_coefficients(ROWS)
    return np.array([np.concatenate([np.zeros(t), r[: ROWS - t]]) for t in range(ticks)]).T


def patterns(ticks: int, k: int, b: int) -> list[tuple[int, ...]]:
    return [
        chosen
        for size in range(1, k + 1)
        for chosen in itertools.combinations(range(ticks), size)
        if all(y - x >= b for x, y in itertools.pairwise(chosen))
    ]


@pytest.mark.parametrize(("k", "b"), [(1, 1), (2, 1), (2, 3), (3, 2), (4, 1), (3, 4)])
def test_formula_equals_the_worst_of_all_patterns(k: int, b: int) -> None:
    matrix = columns(FAST, 12)
    worst = max(float((matrix[:, list(p)].sum(axis=1) ** 2).sum()) for p in patterns(12, k, b))
    bound = FAST.sensitivity_squared(k, b)
    # 1e-13 is the rounding of this test's own sums.
    assert worst <= bound * (1.0 + 1e-13)
    assert worst == pytest.approx(bound, rel=1e-9)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(st.integers(1, 5), st.integers(1, 6), st.data())
def test_formula_holds_for_either_sign(k: int, b: int, data: st.DataObject) -> None:
    gaps = data.draw(st.lists(st.integers(b, b + 9), min_size=k - 1, max_size=k - 1))
    values = data.draw(st.lists(st.floats(-1.0, 1.0), min_size=k, max_size=k))
    ticks = np.cumsum([0, *gaps])
    u = np.zeros(ROWS + int(ticks[-1]))
    u[ticks] = values
    mechanism = Rational.preset("W32")
    seen = np.convolve(mechanism.strategy_coefficients(ROWS), u)[:ROWS]
    assert float(seen @ seen) <= mechanism.sensitivity_squared(k, b)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 3), st.booleans(), st.data())
def test_spread_over_keys_costs_no_more(k: int, b: int, c: int, same: bool, data: st.DataObject) -> None:
    """c contributions a tick, in one key or anywhere: at most c sens; on different keys: sqrt(c) sens."""
    ticks = np.arange(k) * b
    keys = 4
    u = np.zeros((ROWS, keys))
    for tick in ticks:
        if same:
            chosen = data.draw(st.lists(st.integers(0, keys - 1), min_size=c, max_size=c))
        else:
            chosen = data.draw(st.lists(st.integers(0, keys - 1), min_size=c, max_size=c, unique=True))
        for key in chosen:
            u[tick, key] += 1.0
    r = FAST.strategy_coefficients(ROWS)
    seen = sum(float((np.convolve(r, u[:, key])[:ROWS] ** 2).sum()) for key in range(keys))
    squared = FAST.sensitivity_squared(k, b)
    assert seen <= squared * (c**2 if same else c) * (1.0 + 1e-12)
    stated = Contribution(participations=k, min_separation=b, per_tick=c).sensitivity(FAST)
    assert seen <= stated**2


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(["add-remove", "replace-value", "replace"]), st.booleans(), st.data())
def test_replacements_stay_within_the_charge(adjacency: str, signed: bool, data: st.DataObject) -> None:
    """Neighbouring inputs drawn as the relation says; ||R (u - u')|| against what is charged."""
    k, b, clip = 2, 3, 5
    contribution = Contribution(clip, -clip if signed else 0, k, b, adjacency=adjacency)
    values = st.integers(contribution.lower, clip)

    def unit(ticks: list[int]) -> FloatArray:
        u = np.zeros(ROWS)
        for tick in ticks:
            u[tick] = data.draw(values)
        return u

    def draw_ticks() -> list[int]:
        start = data.draw(st.integers(0, 8))
        return [start, start + b + data.draw(st.integers(0, 4))]

    ticks = draw_ticks()
    before = unit(ticks)
    after = np.zeros(ROWS)
    if adjacency != "add-remove":
        after = unit(ticks if adjacency == "replace-value" else draw_ticks())
    seen = np.convolve(FAST.strategy_coefficients(ROWS), before - after)[:ROWS]
    assert math.sqrt(float(seen @ seen)) <= contribution.sensitivity(FAST)


def test_many_participations_cost_more_than_any_bound_on_one() -> None:
    w32 = Rational.preset("W32")
    costs = [w32.sensitivity_squared(k, 1000) for k in (1, 10, 100, 1000)]
    assert all(y > 5.0 * x for x, y in itertools.pairwise(costs))
