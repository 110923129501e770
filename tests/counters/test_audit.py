"""Audit of the claimed mu by a linear whitened statistic, with mutants that it must catch.

Two neighbouring inputs differ by one contribution. Under the claim the whitened outputs R a are unit
Gaussians whose means differ by a vector of norm at most mu sigma, so the projection on that vector
separates the two worlds by exactly mu. The measured separation's lower confidence bound (1 - 1e-7) may
not exceed the claim; every mutant's must.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import pytest
from scipy.special import ndtri

from evertally.counters import Contribution, Grid, KeyedNoise, NoiseKey, Rational
from evertally.counters.bank import noise_in_counts

FAST = Rational.from_weights((1, 4), (0.3, 0.2, 0.1, 0.4))
TICKS, TRIALS, MU = 64, 200_000, 1.0
KEY = NoiseKey(bytes(range(32)), stream="audit", stream_id=bytes(16))
CONFIDENCE = float(-ndtri(1e-7))


def releases(data: np.ndarray, grid: Grid, first_key: int, scale: float = 1.0) -> np.ndarray:
    """Published totals of TRIALS independent streams over the same data, shape (TICKS, TRIALS)."""
    noise = stream_noise(first_key)
    if scale != 1.0:
        noise = np.rint(noise * scale).astype(np.int64)
    return np.cumsum(data)[:, None] + noise_in_counts(noise, np.zeros_like(noise), grid.q)


@lru_cache(maxsize=2)
def stream_noise(first_key: int) -> np.ndarray:
    """z + h in grid units, shape (TICKS, TRIALS): the same draws serve every mutant."""
    z, h = FAST.engine(KeyedNoise(KEY, range(first_key, first_key + TRIALS))).run(TICKS)
    return z + h


def lower_bound_on_mu(one: np.ndarray, other: np.ndarray, difference: np.ndarray) -> float:
    """Lower confidence bound on the separation of two worlds along the whitened difference."""
    strategy = FAST.strategy_coefficients(TICKS)
    R = np.array([[strategy[i - j] if i >= j else 0.0 for j in range(TICKS)] for i in range(TICKS)])
    steps = np.eye(TICKS) - np.eye(TICKS, k=-1)
    direction = R @ difference
    statistic = (R @ steps).T @ direction
    a, b = statistic @ one, statistic @ other
    pooled = math.sqrt((a.var() + b.var()) / 2)
    separation = abs(b.mean() - a.mean()) / pooled
    error = math.sqrt(2 / TRIALS + separation**2 / (4 * TRIALS))
    return separation - CONFIDENCE * error


def one_event(participations: int = 1, separation: int = 1) -> np.ndarray:
    x = np.zeros(TICKS, dtype=np.int64)
    x[: participations * separation : separation] = 1
    return x


@pytest.mark.slow
def test_the_claimed_mu_holds_and_is_tight() -> None:
    grid = Grid.for_mu(FAST, MU, Contribution().sensitivity(FAST))
    x = one_event()
    bound = lower_bound_on_mu(releases(0 * x, grid, 0), releases(x, grid, 10**6), x)
    assert bound <= grid.mu
    assert bound > 0.93 * grid.mu


@pytest.mark.slow
@pytest.mark.parametrize("scale", [0.9, 0.5])
def test_too_little_noise_is_caught(scale: float) -> None:
    grid = Grid.for_mu(FAST, MU, Contribution().sensitivity(FAST))
    x = one_event()
    assert lower_bound_on_mu(releases(0 * x, grid, 0, scale), releases(x, grid, 10**6, scale), x) > grid.mu


@pytest.mark.slow
def test_a_forgotten_strategy_norm_is_caught() -> None:
    grid = Grid.for_mu(FAST, MU, 1.0)
    x = one_event()
    assert lower_bound_on_mu(releases(0 * x, grid, 0), releases(x, grid, 10**6), x) > MU


@pytest.mark.slow
def test_several_contributions_charged_as_one_are_caught() -> None:
    grid = Grid.for_mu(FAST, MU, Contribution().sensitivity(FAST))
    x = one_event(3, 5)
    assert lower_bound_on_mu(releases(0 * x, grid, 0), releases(x, grid, 10**6), x) > grid.mu
    paid = Grid.for_mu(FAST, MU, Contribution(participations=3, min_separation=5).sensitivity(FAST))
    assert lower_bound_on_mu(releases(0 * x, paid, 0), releases(x, paid, 10**6), x) <= paid.mu


@pytest.mark.slow
def test_noise_shared_by_two_keys_is_caught() -> None:
    """The difference of two keys' releases under shared noise is exact: any separation is infinite."""
    grid = Grid.for_mu(FAST, MU, Contribution().sensitivity(FAST))
    x = one_event()
    shared_a, shared_b = releases(x, grid, 0), releases(0 * x, grid, 0)
    assert float((shared_a - shared_b).std()) < 0.51
    honest = releases(x, grid, 0) - releases(0 * x, grid, 10**6)
    assert float(honest.std()) > 1.0


@pytest.mark.slow
def test_a_tick_reset_under_one_key_is_caught() -> None:
    """Restarting t under the same key repeats the noise: the difference of two runs is the data."""
    grid = Grid.for_mu(FAST, MU, Contribution().sensitivity(FAST))
    x = one_event()
    again = releases(x, grid, 0) - releases(0 * x, grid, 0)
    assert (again == 1).all()
