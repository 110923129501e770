"""The snapped-mechanism theorem, checked path by path on the engine that ships."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from evertally.counters.factorization import Factorization
from evertally.counters.grid import Grid
from evertally.counters.rational import Rational
from evertally.counters.rivals import SquareRoot

IntArray = NDArray[np.int64]
TICKS = 96


class Chosen:
    """A source whose draws the test writes down, tick by tick."""

    keys = 1

    def __init__(self, ticks: int) -> None:
        self.draws = np.zeros(ticks + 4096, dtype=np.int64)

    def block(self, first: int, count: int) -> IntArray:
        return self.draws[first - 1 : first - 1 + count, None].copy()


def correlated_noise(factorization: Factorization, source: Chosen, t: int) -> int:
    """round(h_t/g) of a fresh engine, which sees the draws before tick t."""
    engine = factorization.engine(source)
    _z, h = engine.run(t)
    return int(h[-1, 0])


def replayed_shift(
    factorization: Factorization, q: int, totals: list[int], other: list[int], seed: int
) -> float:
    """||z' - z||/g for two data sets that publish the same history, noise of the second solved for."""
    rng = np.random.default_rng(seed)
    first, second = Chosen(TICKS), Chosen(TICKS)
    first.draws[:TICKS] = np.rint(rng.normal(0.0, 2.0**30, TICKS)).astype(np.int64)
    for t in range(1, TICKS + 1):
        release = q * totals[t - 1] + int(first.draws[t - 1]) + correlated_noise(factorization, first, t)
        second.draws[t - 1] = release - q * other[t - 1] - correlated_noise(factorization, second, t)
    return float(np.sqrt(((second.draws - first.draws).astype(np.float64) ** 2).sum()))


FACTORIZATIONS: dict[str, Callable[[], Factorization]] = {
    "W32": lambda: Rational.preset("W32"),
    "H40": lambda: Rational.preset("H40"),
    "square root": lambda: SquareRoot(TICKS),
}


@pytest.mark.slow
@pytest.mark.parametrize("make", FACTORIZATIONS.values(), ids=FACTORIZATIONS.keys())
@pytest.mark.parametrize("tick", [1, 2, 64, 90])
@pytest.mark.parametrize("sigma", [3.0, 2.0**29])
def test_shift_on_every_path_is_within_the_charge(
    make: Callable[[], Factorization], tick: int, sigma: float
) -> None:
    """At sigma = 2^29 the grid is two units a count and the slack is most of the shift; at 3 the data is."""
    factorization = make()
    sensitivity = math.sqrt(factorization.sensitivity_squared(horizon=TICKS))
    grid = Grid.for_sigma(factorization, sigma, sensitivity, slack_horizon=TICKS)
    rng = np.random.default_rng(tick)
    totals = np.cumsum(rng.integers(0, 5, TICKS)).tolist()
    other = [s - (1 if t >= tick else 0) for t, s in enumerate(totals, start=1)]
    shift = replayed_shift(factorization, grid.q, totals, other, seed=tick)
    assert 0.9 * grid.q <= shift <= grid.mu * 2.0**30
    exact = grid.q * math.sqrt(factorization.sensitivity_squared(horizon=TICKS + 1 - tick))
    assert abs(shift - exact) <= grid.slack


def test_equal_data_draws_equal_noise() -> None:
    totals = list(range(TICKS))
    assert replayed_shift(Rational.preset("W32"), 1, totals, totals, seed=5) == 0.0


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0.0, 1.0), st.floats(1e-6, 1.0)), min_size=1, max_size=6),
    st.floats(1e-6, math.pi),
)
def test_states_are_not_amplified(terms: list[tuple[float, float]], angle: float) -> None:
    """|W_i/f_L| <= 1 on the circle for any theta in [0, 1] and positive weights."""
    theta, weight = (np.array(part) for part in zip(*terms, strict=True))
    parts = weight / (1.0 - theta * np.exp(1j * angle))
    assert np.all(np.abs(parts) <= abs(parts.sum()) * (1.0 + 1e-12))


@pytest.mark.parametrize("name", ["W32", "H24", "H40", "H48"])
def test_kappa_is_the_norm_of_the_inverse(name: str) -> None:
    """The norm of finite sections of L^{-1} = R (1-z) rises to kappa."""
    mechanism = Rational.preset(name)
    r = mechanism.strategy_coefficients(200)
    first = np.diff(r, prepend=0.0)
    inverse = np.array([[first[i - j] if i >= j else 0.0 for j in range(200)] for i in range(200)])
    norm = float(np.linalg.norm(inverse, 2))
    assert 0.99 * mechanism.kappa < norm <= mechanism.kappa


@given(st.integers(-(10**30), 10**30), st.integers(1, 2**40), st.integers(-1000, 1000))
def test_publishing_is_post_processing_without_ties(a: int, q: int, shift: int) -> None:
    """Half up on integers commutes with whole counts, so a shift of the data shows as itself and no more."""
    published = (2 * a + q) // (2 * q)
    assert (2 * (a + shift * q) + q) // (2 * q) == published + shift
    assert -q <= 2 * (a - published * q) < q
