"""Designing rational presets: bars, closed forms and the shape of R."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from evertally.counters.rational import Rational
from evertally.counters.rational_design import RationalForms, design_rational, grid_exponents
from evertally.counters.yardstick import yardstick_variance
from evertally.errors import InvalidParameter

FloatArray = NDArray[np.float64]

DESIGNS = st.tuples(
    st.sets(st.integers(1, 12), min_size=1, max_size=6),
    st.lists(st.floats(1e-4, 1.0), min_size=8, max_size=8),
)


def terms(exponents: tuple[int, ...], raw: list[float]) -> tuple[FloatArray, FloatArray]:
    epsilon = np.array([*(2.0**-k for k in exponents), 0.0, 1.0])
    weights = np.array(raw[: len(epsilon)])
    return epsilon, weights / weights.sum()


def coefficients(epsilon: FloatArray, weights: FloatArray, n: int) -> FloatArray:
    powers = (1.0 - epsilon) ** np.arange(n)[:, None]
    return np.asarray(powers @ weights)


def strategy(noise: FloatArray) -> FloatArray:
    """R by long division of all ones by L."""
    r = np.empty_like(noise)
    for n in range(len(noise)):
        r[n] = (1.0 - noise[1 : n + 1] @ r[:n][::-1]) / noise[0]
    return r


def worst_ratio(mechanism: Rational, first: int, last: int) -> float:
    ticks = np.unique(np.rint(np.geomspace(first, last, 1500)).astype(np.int64))
    squared = mechanism.sensitivity_squared()
    return max(squared * mechanism.noise_power(int(t)) / yardstick_variance(int(t)) for t in ticks)


@pytest.mark.slow
@pytest.mark.parametrize(("first", "last", "bar"), [(2**10, 2**24, 1.325), (2**8, 2**32, 1.515)])
def test_design_reaches_its_bar(first: int, last: int, bar: float) -> None:
    assert worst_ratio(Rational.design(first, last), first, last) <= bar


@pytest.mark.slow
def test_a_small_design_beats_the_default_on_its_own_range() -> None:
    designed = worst_ratio(Rational.design(16, 2**12), 16, 2**12)
    assert 1.0 < designed < 1.45
    assert worst_ratio(Rational.preset("W32"), 16, 2**12) > 1.5 * designed


@pytest.mark.slow
def test_design_is_deterministic() -> None:
    assert design_rational(4, 256) == design_rational(4, 256)


@pytest.mark.slow
def test_design_returns_a_probability_vector() -> None:
    exponents, weights = design_rational(2, 1000)
    assert len(weights) == len(exponents) + 2
    assert math.fsum(weights) == pytest.approx(1.0, abs=1e-12)
    assert min(weights) > 0.0
    assert list(exponents) == sorted(set(exponents))


def test_grids_have_ratio_eight() -> None:
    for grid in grid_exponents(2**32):
        assert grid[0] == 1
        assert max(b - a for a, b in itertools.pairwise(grid)) == 3
    assert grid_exponents(2) == ((1,),)


@pytest.mark.parametrize(
    ("first", "last"), [(0, 5), (5, 5), (6, 5), (1.0, 8), (1, float("nan")), (1, 2**49), (True, 8)]
)
def test_bad_ranges_are_refused(first: object, last: object) -> None:
    with pytest.raises(InvalidParameter, match=r"first|last"):
        design_rational(first, last)  # type: ignore[arg-type]  # wrong types are the point


@settings(max_examples=60, deadline=None)
@given(DESIGNS)
def test_closed_form_is_the_numeric_sum(case: tuple[set[int], list[float]]) -> None:
    epsilon, weights = terms(tuple(sorted(case[0])), case[1])
    forms = RationalForms.of(epsilon, weights)
    r = strategy(coefficients(epsilon, weights, 400))
    modes = np.exp(np.arange(399)[:, None] * np.log1p(-forms.decay)) @ forms.residue
    np.testing.assert_allclose(r[1:], modes, rtol=1e-8, atol=1e-13)
    tail = (forms.residue[:, None] * forms.residue) * (
        np.exp(399 * (np.log1p(-forms.decay)[:, None] + np.log1p(-forms.decay)))
        / (forms.decay[:, None] + forms.decay - forms.decay[:, None] * forms.decay)
    )
    assert forms.sensitivity_squared == pytest.approx(float(r @ r) + tail.sum(), rel=1e-10)


@settings(max_examples=60, deadline=None)
@given(DESIGNS)
def test_strategy_is_completely_monotone(case: tuple[set[int], list[float]]) -> None:
    epsilon, weights = terms(tuple(sorted(case[0])), case[1])
    forms = RationalForms.of(epsilon, weights)
    assert np.all(forms.residue > 0.0)
    assert np.all((forms.decay > 0.0) & (forms.decay < 1.0))
    differences = strategy(coefficients(epsilon, weights, 24))
    for order in range(12):
        # Each difference loses one bit of an absolute accuracy of 1e-13.
        assert np.all(differences >= -1e-13 * 2.0**order)
        differences = -np.diff(differences)


def test_a_root_at_the_middle_of_its_interval_is_found() -> None:
    epsilon, weights = np.array([2.0**-9, 0.0, 1.0]), np.array([1.0, 1.0, 1e-4]) / 2.0001
    decay = RationalForms.of(epsilon, weights).decay
    assert np.abs((weights / (epsilon - decay[:, None])).sum(axis=1) * decay).max() < 1e-9


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(DESIGNS)
def test_gradient_is_the_derivative(case: tuple[set[int], list[float]]) -> None:
    epsilon, weights = terms(tuple(sorted(case[0])), case[1])
    forms = RationalForms.of(epsilon, weights)
    for i in range(len(weights) - 1):
        step = 1e-5 * min(weights[i], weights[i + 1])
        move = np.zeros_like(weights)
        move[i], move[i + 1] = step, -step
        up, down = (RationalForms.of(epsilon, weights + s * move).sensitivity_squared for s in (1, -1))
        want = forms.gradient[i] - forms.gradient[i + 1]
        scale = np.abs(forms.gradient).max()
        rounding = 2.0**-48 * forms.sensitivity_squared / step
        assert (up - down) / (2.0 * step) == pytest.approx(want, rel=1e-4, abs=1e-5 * scale + rounding)


@settings(max_examples=40, deadline=None)
@given(DESIGNS)
def test_kappa_is_between_one_and_two(case: tuple[set[int], list[float]]) -> None:
    exponents = tuple(sorted(case[0]))
    epsilon, weights = terms(exponents, case[1])
    mechanism = Rational.from_weights(exponents, tuple(weights.tolist()))
    angles = np.linspace(1e-3, np.pi, 4001)
    circle = np.exp(1j * angles)
    size = np.abs((weights / (1.0 - (1.0 - epsilon) * circle[:, None])).sum(axis=1))
    assert 1.0 <= mechanism.kappa <= 2.0
    assert mechanism.kappa == pytest.approx(float((1.0 / size).max()), rel=1e-6)
