"""The colour bound and Kahane's inequality under it."""

from __future__ import annotations

import itertools
from types import ModuleType

import numpy as np
import pytest
from numpy.typing import NDArray

from evertally.accountants import colour, random_allocation
from evertally.accountants.gaussian import gaussian_delta
from evertally.accountants.gram import Gram, dense_gram

Array = NDArray[np.float64]


def gram_of(means: Array) -> Gram:
    rows, b = means.shape
    lower = float((means**2).sum(axis=0).min())
    return dense_gram(means, batches=b, epochs=rows // b, lower_diagonal=lower, nonnegative=True)


def toeplitz_means(taps: Array, rows: int, b: int) -> Array:
    matrix = sum(tap * np.eye(rows, k=-lag) for lag, tap in enumerate(taps[:rows]))
    return np.asarray(matrix).reshape(rows, rows // b, b).sum(axis=1)


def square_root_taps(bands: int) -> Array:
    return np.cumprod([1.0] + [(2 * i - 1) / (2 * i) for i in range(1, bands)])


BSR4 = gram_of(toeplitz_means(square_root_taps(4), 1000, 100))
BLT = gram_of(
    toeplitz_means(
        np.array([1.0] + [0.3 * 0.95 ** (d - 1) + 0.15 * 0.5 ** (d - 1) for d in range(1, 100)]), 100, 20
    )
)


# N = 1000, k = 10, delta 1e-5: 6.282 at epsilon 0.5; 1.690 at epsilon 8 with p = 2 (a prototype, to 4 digits)
@pytest.mark.parametrize(("epsilon", "sigma", "p"), [(0.5, 6.282, 4), (2.0, 3.398, 4), (8.0, 1.690, 2)])
def test_golden_noise_of_the_banded_square_root(epsilon: float, sigma: float, p: int) -> None:
    assert colour.delta(BSR4, sigma * 1.001, epsilon, "remove", p) <= 1e-5
    assert colour.delta(BSR4, sigma * 0.99, epsilon, "remove", p) > 1e-5
    assert colour.delta(BSR4, sigma * 1.001, epsilon, "add", p) <= 1e-5


def test_golden_delta_of_a_dense_strategy() -> None:
    """N = 100, b = 20, k = 5, sigma 4.853, epsilon 2: 1.09e-3 (prototype), Monte Carlo 4.85e-4."""
    for direction in ("remove", "add"):
        assert 4.5e-4 < colour.delta(BLT, 4.853, 2.0, direction) <= 1.10e-3


def test_the_minimum_is_no_worse_than_each_colour_number() -> None:
    best = colour.delta(BLT, 4.853, 2.0, "remove")
    each = [colour.delta(BLT, 4.853, 2.0, "remove", p) for p in colour.candidates(BLT)]
    assert best <= min(each) * 1.02


def test_all_colours_give_the_unamplified_gaussian() -> None:
    value = colour.delta(BSR4, 6.0, 0.5, "remove", 100)
    assert value == pytest.approx(gaussian_delta(0.5, np.sqrt(BSR4.maximum) / 6.0), rel=1e-3)


def test_identity_is_exact() -> None:
    gram = gram_of(np.tile(np.eye(12), (3, 1)))
    assert colour.candidates(gram)[0] == 1
    exact = random_allocation.delta(12, 2.0, 0.5, "remove", epochs=3)
    assert colour.delta(gram, 2.0, 0.5, "remove", 1) == pytest.approx(exact, rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_bounds_are_in_order(seed: int, monte_carlo: ModuleType) -> None:
    """lower <= Monte Carlo <= colour at every number of colours <= unamplified, both directions."""
    rng = np.random.default_rng(seed)
    means = np.where(rng.random((12, 6)) < 0.5, np.abs(rng.normal(size=(12, 6))), 0.0)
    means += np.tile(np.eye(6), (2, 1))
    gram = gram_of(means)
    sigma = 2.5
    for direction, epsilon in itertools.product(("remove", "add"), (0.2, 0.8)):
        loss = monte_carlo.losses(means, sigma, direction, 200_000, rng)
        estimate, error = monte_carlo.delta(loss, epsilon)
        lower = random_allocation.delta(
            6, sigma / np.sqrt(gram.lower_diagonal), epsilon, direction, upper=False
        )
        assert lower <= estimate + 5 * error
        for p in range(1, 7):
            value = colour.delta(gram, sigma, epsilon, direction, p)
            assert value >= estimate - 5 * error
        assert colour.delta(gram, sigma, epsilon, direction) <= gaussian_delta(
            epsilon, np.sqrt(gram.maximum) / sigma
        )


def test_overlap_of_a_class_counts_the_wrap() -> None:
    """Dropping tau, or looking at neighbours only, would claim less than random allocation allows."""
    means = np.tile(np.eye(4), (2, 1))
    means[4:, 0] += np.array([0.0, 0.0, 0.0, 0.9])  # bins 0 and 3 overlap in the second epoch
    gram = gram_of(means)
    classes = gram.classes(3)
    assert max(tau for _, _, tau in classes) > 0.8


def _kahane_delta(gram: Array, sigma: float, epsilon: float, normals: Array) -> float:
    root = np.linalg.cholesky(gram + 1e-12 * np.eye(len(gram)))
    x = normals @ root.T / sigma - np.diag(gram) / (2 * sigma**2)
    w = np.exp(x).mean(axis=1)
    return float(np.maximum(w - np.exp(epsilon), 0.0).mean())


def test_raising_an_entry_of_the_gram_matrix_does_not_lower_delta() -> None:
    """Kahane's inequality, by common random numbers and the exact diagonal and full ends of the range."""
    rng = np.random.default_rng(11)
    normals = rng.normal(size=(100_000, 4))
    tried = 0
    for _ in range(30):
        factor = np.abs(rng.normal(size=(4, 4)))
        base = factor @ factor.T
        i, j = rng.choice(4, 2, replace=False)
        raised = base.copy()
        raised[i, j] = raised[j, i] = base[i, j] + 0.5 * rng.random()
        if np.linalg.eigvalsh(raised)[0] <= 1e-9:
            continue
        tried += 1
        sigma = 3.0
        before, after = (_kahane_delta(g, sigma, 0.3, normals) for g in (base, raised))
        assert after >= before - 4e-3
    assert tried > 5


def test_epsilon_and_delta_agree() -> None:
    for direction in ("remove", "add"):
        epsilon = colour.epsilon(BLT, 4.853, 1e-3, direction, 4)
        assert colour.delta(BLT, 4.853, epsilon, direction, 4) <= 1e-3
        assert colour.delta(BLT, 4.853, epsilon * 0.999, direction, 4) > 1e-3
