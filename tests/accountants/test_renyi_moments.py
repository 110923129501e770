"""The moment computations against brute force, and the traps that break naive ones."""

from __future__ import annotations

import itertools
import math

import mpmath
import numpy as np
import pytest
from numpy.typing import NDArray

from evertally.accountants import (
    BallsInBins,
    BandedSquareRoot,
    Identity,
    LowerTriangular,
    ledger_renyi,
    renyi_divergence,
)
from evertally.accountants.banded_moments import banded_log_moments, flush_order_max
from evertally.accountants.gram import Gram
from evertally.accountants.negative_moments import allocation_add_log_moments
from evertally.accountants.renyi import direction_lines
from evertally.accountants.renyi_lines import ClosedAddLine, ColourLine, least_moments
from evertally.accountants.small_moments import (
    diagonal_log_moments,
    direct_log_moments,
    enumerated_log_moments,
)
from evertally.accountants.truncation import band_of
from evertally.errors import InvalidParameter, UnsupportedMechanism

FloatArray = NDArray[np.float64]


def by_tuples(matrix: FloatArray, order: int) -> float:
    """log E_Q[(P/Q)^a] by visiting every tuple of bins."""
    batches = matrix.shape[0]
    tuples = np.array(list(itertools.product(range(batches), repeat=order)))
    exponent = np.zeros(len(tuples))
    for i, j in itertools.combinations(range(order), 2):
        exponent += matrix[tuples[:, i], tuples[:, j]]
    top = exponent.max()
    return float(top + np.log(np.exp(exponent - top).sum()) - order * math.log(batches))


@pytest.mark.slow
@pytest.mark.parametrize("bands", [1, 2, 3, 4])
@pytest.mark.parametrize("epochs", [1, 2, 3])
@pytest.mark.parametrize("batches", [6, 7])
@pytest.mark.parametrize("sigma", [0.5, 1.0, 4.0])
def test_sweep_is_the_sum_over_tuples(bands: int, epochs: int, batches: int, sigma: float) -> None:
    if epochs > 1 and batches < 2 * bands - 1:
        pytest.skip("distances coincide")
    gram = BandedSquareRoot(bands).gram(BallsInBins(batches, epochs))
    scaled = gram.matrix / sigma**2
    if bands == 1:
        found = diagonal_log_moments(np.diagonal(scaled).copy(), 5)
    else:
        found = banded_log_moments(gram.diagonals(bands) / sigma**2, 5, cyclic=epochs > 1)
    for order in range(2, 6):
        exact = by_tuples(scaled, order)
        assert found[order] >= exact * (1.0 - 1e-15)
        assert found[order] == pytest.approx(exact, rel=2e-12)


@pytest.mark.parametrize("cyclic", [True, False])
def test_engines_agree(cyclic: bool) -> None:
    pytest.importorskip("numba")
    gram = BandedSquareRoot(3).gram(BallsInBins(30, 3))
    diagonals = gram.diagonals(3) / 4.0
    compiled = banded_log_moments(diagonals, 10, cyclic=cyclic, engine="numba")
    plain = banded_log_moments(diagonals, 10, cyclic=cyclic, engine="numpy")
    np.testing.assert_allclose(plain, compiled, rtol=1e-12)


def test_an_open_sweep_of_a_closed_circle_is_low() -> None:
    # the control of `cyclic`: without it the wrapped pairs are lost, up to about a tenth of the divergence
    gram = BandedSquareRoot(4).gram(BallsInBins(7, 3))
    scaled = gram.diagonals(4) / 4.0
    closed = banded_log_moments(scaled, 4, cyclic=True)
    opened = banded_log_moments(scaled, 4, cyclic=False)
    assert (opened[2:] < closed[2:]).all()
    assert opened[4] < 0.99 * closed[4]


def test_coinciding_distances_are_refused_by_the_sweep_and_handled_by_the_accountant() -> None:
    # b = 2p - 2: a naive sweep counts distance p - 1 twice, 13.6 % high here
    gram = BandedSquareRoot(3).gram(BallsInBins(4, 3))
    with pytest.raises(InvalidParameter):
        banded_log_moments(gram.diagonals(3), 4, cyclic=True)
    exact = by_tuples(gram.matrix / 1.3**2, 4) / 3
    found = renyi_divergence(BandedSquareRoot(3), BallsInBins(4, 3), 1.3, 4)
    assert found == pytest.approx(exact, rel=1e-12)
    assert found >= exact * (1 - 1e-15)


def test_direct_sums_and_enumeration_agree_on_a_dense_matrix() -> None:
    root = np.abs(np.random.default_rng(7).normal(size=(6, 5)))
    matrix = root @ root.T / 4.0
    enumerated = enumerated_log_moments(matrix, 5)
    np.testing.assert_allclose(direct_log_moments(matrix, 4), enumerated[:5], rtol=1e-12)
    for order in (2, 3, 4):
        assert enumerated[order] == pytest.approx(by_tuples(matrix, order), rel=1e-12)


def test_diagonal_moments_against_forty_digits() -> None:
    with mpmath.workdps(40):
        batches, g, order = 50, mpmath.mpf("1.7"), 12
        coefficients = [mpmath.e ** (g * n * (n - 1) / 2) / mpmath.factorial(n) for n in range(order + 1)]
        power = [mpmath.mpf(1)] + [mpmath.mpf(0)] * order
        for _ in range(batches):
            power = [sum(power[i] * coefficients[n - i] for i in range(n + 1)) for n in range(order + 1)]
        exact = mpmath.log(power[order] * mpmath.factorial(order) / mpmath.mpf(batches) ** order)
    found = diagonal_log_moments(np.full(batches, 1.7), order)[order]
    assert found == pytest.approx(float(exact), rel=1e-12)
    assert found >= float(exact)


def test_unequal_diagonals_beyond_the_distinct_limit_are_rounded_up() -> None:
    diagonal = np.linspace(0.5, 1.5, 300)
    low, high = (diagonal_log_moments(np.full(300, v), 6) for v in (0.5, 1.5))
    found = diagonal_log_moments(diagonal, 6)
    exact = diagonal_log_moments(diagonal[::5].repeat(5), 6)  # 60 distinct values, each below
    assert (low[2:] < found[2:]).all()
    assert (found[2:] < high[2:]).all()
    assert (found[2:] >= exact[2:]).all()


@pytest.mark.parametrize(("batches", "sigma", "order"), [(1, 2.0, 7), (1, 0.3, 3)])
def test_one_bin_is_one_gaussian(batches: int, sigma: float, order: int) -> None:
    found = renyi_divergence(Identity(), BallsInBins(batches, 1), sigma, order)
    assert found == pytest.approx(order / (2 * sigma**2), rel=1e-14)


def test_tiny_divergences_are_rounded_up() -> None:
    # exact: log(1 + (e^1e-8 - 1)/1000)
    exact = 1.000000005e-11
    found = renyi_divergence(Identity(), BallsInBins(1000, 1), 1e4, 2)
    assert exact * (1 - 1e-9) <= found <= exact * 1.05


@pytest.mark.parametrize("batches", [10, 100, 1000])
@pytest.mark.parametrize("sigma", [0.4, 0.7, 1, 2, 4, 10])
def test_exact_add_is_at_most_remove_where_the_closed_form_is_not(batches: int, sigma: float) -> None:
    add = allocation_add_log_moments(batches, sigma**-2, 32)
    remove = diagonal_log_moments(np.full(batches, sigma**-2), 32)
    for order in (2, 8, 32):
        assert add[order] <= remove[order]
    closed = ClosedAddLine(1.0, 1.0 / batches).moments(sigma**-2, 32)
    assert (add <= closed * (1 + 1e-6) + 1e-12).all()
    if (batches, sigma) == (1000, 10):
        # the trap: max(remove, closed form) loses a factor 498 here
        assert closed[2] / remove[2] > 400
        assert add[2] / remove[2] > 0.9999


def test_exact_add_against_quadrature() -> None:
    # two bins: E S^-c over the two lognormals, by mpmath on a grid
    g, power = 0.8, 3
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    weights = weights / weights.sum()
    y = np.exp(math.sqrt(g) * nodes - g / 2)
    exact = math.log(float(weights @ (((y[:, None] + y[None, :]) / 2) ** -power) @ weights))
    found = allocation_add_log_moments(2, g, 4)[power + 1]
    assert found == pytest.approx(exact, rel=1e-9)
    assert found >= exact * (1 - 1e-12)


@pytest.mark.parametrize("direction", ["remove", "add"])
def test_colour_line_is_above_enumeration_for_dense_strategies(direction: str) -> None:
    gram = dense_gram_of(0.6)
    lines = direction_lines(gram, "remove" if direction == "remove" else "add")
    colour = [line for line in lines if isinstance(line, ColourLine)]
    assert len(colour) >= 2
    if direction == "remove":
        exact = enumerated_log_moments(gram.matrix / 4.0, 6)
        for line in colour:
            assert (line.moments(0.25, 6)[2:] >= exact[2:]).all()
    else:
        sampled = sampled_add_moments(gram.matrix / 4.0, 3)
        for line in colour:
            assert line.moments(0.25, 3)[3] >= sampled - 0.02


def dense_gram_of(decay: float) -> Gram:
    rows = 12
    index = np.arange(rows)
    matrix = np.where(index[:, None] >= index[None, :], decay ** np.abs(index[:, None] - index[None, :]), 0.0)
    return LowerTriangular(matrix).gram(BallsInBins(6, 2))


def sampled_add_moments(matrix: FloatArray, order: int) -> float:
    """log E_Q S^-(a-1) by sampling, an oracle with about 1 % of error."""
    rng = np.random.default_rng(3)
    normal = rng.multivariate_normal(-np.diagonal(matrix) / 2, matrix, size=200_000)
    return float(np.log(np.mean(np.exp(normal).mean(axis=1) ** (1 - order))))


def test_truncation_never_mixes_distances() -> None:
    # C = I plus C[5, 0] = 0.9: the corner pair has cyclic distance 1 and plain distance 5
    matrix = np.eye(6)
    matrix[5, 0] = 0.9
    gram = LowerTriangular(matrix).gram(BallsInBins(6, 1))
    band = band_of(gram, 2, cyclic=False)
    assert band.residue == pytest.approx(0.9)
    for order, exact in ((2, 0.3796), (3, 0.7207), (5, 2.3264)):
        found = renyi_divergence(LowerTriangular(matrix), BallsInBins(6, 1), 1.0, order)
        assert found >= exact - 1e-4
        swept = banded_log_moments(band.diagonals, order, cyclic=False)[order] / (order - 1)
        assert swept + band.residue * order / 2 >= exact


@pytest.mark.parametrize("width", [1, 2, 3, 5])
@pytest.mark.parametrize("cyclic", [True, False])
def test_truncated_bounds_are_above_the_exact_divergence(width: int, cyclic: bool) -> None:
    gram = (
        dense_gram_of(0.6)
        if cyclic
        else LowerTriangular(np.tril(np.full((6, 6), 0.3)) + np.eye(6)).gram(BallsInBins(6, 1))
    )
    if cyclic and width > 3:
        pytest.skip("needs 2 p - 1 bins")
    band = band_of(gram, width, cyclic=cyclic)
    exact = enumerated_log_moments(gram.matrix / 4.0, 5)
    if width == 1:
        swept = diagonal_log_moments(band.diagonals[:, 0] / 4.0, 5)
    else:
        swept = banded_log_moments(band.diagonals / 4.0, 5, cyclic=cyclic)
    for order in range(2, 6):
        assert swept[order] + order * (order - 1) / 2 * band.residue / 4.0 >= exact[order] * (1 - 1e-12)


def test_divergence_is_monotone() -> None:
    scheme = BallsInBins(20, 3)
    by_order = [
        renyi_divergence(BandedSquareRoot(3), scheme, 2.0, a) for a in (1.1, 1.5, 2, 2.5, 3, 4, 8, 16, 64)
    ]
    assert all(low <= high * (1 + 1e-14) for low, high in itertools.pairwise(by_order))
    by_noise = [renyi_divergence(BandedSquareRoot(3), scheme, s, 4) for s in (0.5, 1, 2, 4, 8)]
    assert by_noise == sorted(by_noise, reverse=True)
    narrow = np.tril(np.full((8, 8), 0.2)) + np.eye(8)
    wider = narrow.copy()
    wider[5, 2] += 0.1
    low, high = (renyi_divergence(LowerTriangular(m), BallsInBins(8, 1), 1.5, 4) for m in (narrow, wider))
    assert low < high


def test_orders_out_of_range_are_refused() -> None:
    for order in (1, 1.0, 0.5, 0, -2, math.nan, math.inf, 1025):
        with pytest.raises(InvalidParameter):
            renyi_divergence(Identity(), BallsInBins(10, 1), 1.0, order)


def test_fractional_orders_are_above_the_exact_value() -> None:
    # one Gaussian: R_a = a / (2 sigma^2) for real a
    for order in (1.01, 1.5, 2.5, 7.3):
        assert renyi_divergence(Identity(), BallsInBins(1, 1), 1.0, order) >= order / 2


@pytest.mark.parametrize("order", [1.0001, 1.5, 2.5, 7.3])
def test_no_real_order_is_above_the_mechanism_without_amplification(order: float) -> None:
    for scheme in (BallsInBins(1, 3), BallsInBins(4, 2)):
        strategy = BandedSquareRoot(3)
        plain = order * strategy.gram(scheme).maximum / (2.0 * 2.0**2)
        for direction in ("remove", "add"):
            found = renyi_divergence(strategy, scheme, 2.0, order, direction)
            assert found <= plain * (1.0 + 1e-12)
        if scheme.batches == 1:
            assert ledger_renyi(strategy, scheme, 2.0, order) == pytest.approx(plain, rel=1e-12)


def test_ledger_takes_the_larger_direction() -> None:
    scheme = BallsInBins(50, 2)
    both = [renyi_divergence(BandedSquareRoot(3), scheme, 3.0, 8, d) for d in ("remove", "add")]
    assert ledger_renyi(BandedSquareRoot(3), scheme, 3.0, 8) == max(both)


def test_flush_limit() -> None:
    assert flush_order_max(1000) == 95
    assert flush_order_max(100_000) == 57
    with pytest.raises(InvalidParameter):
        banded_log_moments(np.ones((1000, 2)), 96, cyclic=False)


def test_strategies_that_are_not_lower_triangular_are_refused() -> None:
    with pytest.raises(UnsupportedMechanism):
        LowerTriangular(np.array([[1.0, 0.1], [0.0, 1.0]]))


def test_signed_column_sums_are_never_used() -> None:
    # C = (1, -0.6, 0.3) Toeplitz, N = b = 3: the |C| pair, not the signed one
    matrix = np.array([[1.0, 0, 0], [-0.6, 1, 0], [0.3, -0.6, 1]])
    signed, absolute = (LowerTriangular(m).gram(BallsInBins(3, 1)) for m in (matrix, np.abs(matrix)))
    np.testing.assert_array_equal(signed.matrix, absolute.matrix)
    assert (signed.nonnegative, signed.lower_scope) == (False, "mechanism")
    assert (absolute.nonnegative, absolute.lower_scope) == (True, "dominating pair")


def test_least_moments_copies_its_cache() -> None:
    gram = Identity().gram(BallsInBins(10, 1))
    lines = direction_lines(gram, "remove")
    first = least_moments(lines, 1.0, 8)
    kept = first.copy()
    first[:] = 0.0
    np.testing.assert_array_equal(least_moments(lines, 1.0, 8), kept)
