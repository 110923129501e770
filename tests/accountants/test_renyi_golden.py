"""Golden values of the Renyi accountant, each known from two independent methods.

Renyi rows: sweep or repeated squaring against a 40-digit power recurrence (identity), 40-digit multiset
enumeration (small banded) or direct matrix sums (large banded). Noise rows: root finding on the same curves.
"""

from __future__ import annotations

import math

import pytest

from evertally.accountants import (
    BallsInBins,
    BandedSquareRoot,
    Identity,
    gaussian_noise_multiplier,
    renyi_divergence,
)
from evertally.accountants.conversion import log_delta_from_moments
from evertally.accountants.renyi import direction_lines
from evertally.accountants.renyi_lines import BandLine, GaussianLine, least_moments
from evertally.accountants.solve import smallest_admitted
from evertally.accountants.strategies import Strategy

# epochs, batches, sigma, order, R
IDENTITY = [
    (1, 10, 1, 2, 0.1585650787404),
    (1, 10, 1, 8, 1.707541303841),
    (1, 100, 0.7, 8, 3.558165929661),
    (1, 1000, 0.6, 16, 15.31446694324),
    (1, 1000, 1, 32, 9.092244721053),
    (1, 1000, 2, 64, 1.092391545398),
    (10, 100, 3, 32, 13.17260759179),
    (5, 25, 2.5, 20, 4.781130502796),
    (1, 1, 1, 5, 2.5),
    (1, 2, 0.3, 64, 354.862408375),
    (10, 97, 4, 40, 7.925289024051),
    (1, 100000, 1, 24, 0.4870858406758),
]
# rows, batches, bands, sigma, order, R
BANDED = [
    (12, 6, 2, 1, 5, 4.423194124288),
    (12, 6, 3, 1, 5, 5.085944613849),
    (21, 7, 4, 1.5, 5, 3.040972848177),
    (7, 7, 4, 0.8, 6, 4.936581035555),
    (24, 8, 3, 2, 6, 1.349547573628),
    (18, 9, 4, 1.7, 5, 1.046751926433),
    (1000, 100, 4, 5, 2, 0.02282630249995),
    (1000, 100, 4, 5, 3, 0.0343244623595),
    (1000, 100, 4, 5, 4, 0.04588529631173),
    (1000, 100, 2, 3, 4, 0.09293079449245),
    (200, 50, 3, 2, 4, 0.2449286923275),
    (1000, 1000, 4, 1, 3, 0.01203482171395),
    (970, 97, 4, 4, 4, 0.08326188818123),
]
# epochs, batches, epsilon, delta, sigma
IDENTITY_NOISE = [
    (1, 1000, 0.5, 1e-5, 1.11902529),
    (1, 1000, 2, 1e-5, 0.652476169),
    (1, 1000, 8, 1e-5, 0.385316713),
    (1, 100, 1, 1e-6, 1.17864481),
    (10, 100, 2, 1e-5, 2.54974763),
    (10, 100, 0.5, 1e-5, 4.54870223),
    (10, 97, 4, 1e-5, 1.92333902),
    (5, 50, 1, 1e-8, 3.36239236),
    (1, 10000, 1, 1e-7, 0.873686348),
]
GAUSSIAN_NOISE = [
    (0.1, 1e-5, 30.749566132),
    (0.5, 1e-5, 7.03182667558),
    (1, 1e-5, 3.73063163482),
    (2, 1e-5, 1.99381244564),
    (4, 1e-5, 1.08116184952),
    (8, 1e-5, 0.600229072199),
    (16, 1e-5, 0.344177428496),
    (1, 1e-6, 4.22467888933),
    (1, 1e-8, 5.10030878753),
    (1, 1e-10, 5.86777774963),
    (0.01, 1e-6, 306.350376154),
    (3, 1e-9, 1.94372426351),
]


def remove_noise(
    strategy: Strategy, scheme: BallsInBins, epsilon: float, delta: float, order_max: int
) -> float:
    """Noise from the remove direction's exact lines alone, on orders 2..order_max."""
    gram = strategy.gram(scheme)
    lines = [line for line in direction_lines(gram, "remove") if isinstance(line, BandLine | GaussianLine)]

    def log_excess(sigma: float) -> float:
        return log_delta_from_moments(least_moments(lines, sigma, order_max), epsilon)[0] - math.log(delta)

    start = math.sqrt(gram.maximum) * gaussian_noise_multiplier(epsilon, delta) * 1.5
    return smallest_admitted(log_excess, start, tolerance=1e-8, low=1e-3)[1]


@pytest.mark.parametrize(("epochs", "batches", "sigma", "order", "expected"), IDENTITY)
def test_identity_divergence(epochs: int, batches: int, sigma: float, order: int, expected: float) -> None:
    found = renyi_divergence(Identity(), BallsInBins(batches, epochs), sigma, order)
    assert found == pytest.approx(expected, rel=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize(("rows", "batches", "bands", "sigma", "order", "expected"), BANDED)
def test_banded_divergence(
    rows: int, batches: int, bands: int, sigma: float, order: int, expected: float
) -> None:
    scheme = BallsInBins(batches, rows // batches)
    found = renyi_divergence(BandedSquareRoot(bands), scheme, sigma, order)
    assert found == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize(("epochs", "batches", "epsilon", "delta", "expected"), IDENTITY_NOISE)
def test_identity_noise(epochs: int, batches: int, epsilon: float, delta: float, expected: float) -> None:
    found = remove_noise(Identity(), BallsInBins(batches, epochs), epsilon, delta, 64)
    assert found == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("rows", "batches", "bands", "epsilon", "delta", "expected"),
    [(20, 10, 3, 2, 1e-3, 1.62333795), (27, 9, 2, 1, 1e-3, 2.83683591), (16, 8, 4, 4, 1e-4, 1.31684397)],
)
def test_banded_noise_on_orders_2_to_8(
    rows: int, batches: int, bands: int, epsilon: float, delta: float, expected: float
) -> None:
    scheme = BallsInBins(batches, rows // batches)
    assert remove_noise(BandedSquareRoot(bands), scheme, epsilon, delta, 8) == pytest.approx(
        expected, rel=1e-6
    )


@pytest.mark.parametrize(("epsilon", "delta", "expected"), GAUSSIAN_NOISE)
def test_gaussian_noise(epsilon: float, delta: float, expected: float) -> None:
    assert gaussian_noise_multiplier(epsilon, delta) == pytest.approx(expected, rel=1e-6)
