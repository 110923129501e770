"""Strategies, their Gram matrices, and the optimised ones against their gradient and their rivals."""

from __future__ import annotations

import math

import numpy as np
import pytest

from evertally.accountants import (
    BLT,
    BallsInBins,
    BandedInverseMF,
    BandedInverseSquareRoot,
    BandedSquareRoot,
    BandMF,
    Identity,
    LowerTriangular,
    account,
)
from evertally.accountants.optimised import (
    inverse_objective,
    objective,
    optimise_inverse_taps,
    optimise_taps,
)
from evertally.accountants.strategies import Strategy, bands
from evertally.accountants.toeplitz import square_root_taps
from evertally.errors import InvalidParameter, UnsupportedMechanism

SIX = [
    Identity(),
    BandedSquareRoot(4),
    BandedInverseSquareRoot(4),
    BandMF(4),
    BandedInverseMF(4),
    BLT((0.3, 0.15), (0.95, 0.5)),
]


def dense(strategy: Strategy, scheme: BallsInBins) -> np.ndarray:
    """C as a matrix."""
    column = strategy.matrix_first_column(scheme)  # type: ignore[attr-defined]  # every Toeplitz strategy has it
    lag = np.arange(scheme.rows)[:, None] - np.arange(scheme.rows)[None, :]
    return np.where(lag >= 0, column[np.maximum(lag, 0)], 0.0)


@pytest.mark.parametrize("strategy", SIX, ids=lambda s: type(s).__name__)
@pytest.mark.parametrize("scheme", [BallsInBins(7, 3), BallsInBins(20, 1), BallsInBins(3, 5)])
def test_gram_matches_the_definition_and_is_rounded_up(strategy: Strategy, scheme: BallsInBins) -> None:
    gram = strategy.gram(scheme)
    matrix = dense(strategy, scheme).reshape(scheme.rows, scheme.epochs, scheme.batches)
    means = np.abs(matrix).sum(axis=1)
    exact = means.T @ means
    np.testing.assert_allclose(gram.matrix, exact, rtol=1e-12)
    assert (gram.matrix >= exact * (1 - 2.0**-52)).all()
    np.testing.assert_allclose(gram.step_means(), means, rtol=1e-12)
    signed = matrix.sum(axis=1)
    attained = np.maximum((signed**2).sum(axis=0), (matrix**2).sum(axis=(0, 1)))
    assert gram.lower_diagonal <= attained.min()
    assert gram.lower_diagonal == pytest.approx(attained.min(), rel=1e-10) or not gram.nonnegative


def test_gram_of_bsr_reads_the_cut_columns() -> None:
    gram = BandedSquareRoot(4).gram(BallsInBins(100, 10))
    entries = [gram.matrix[i, j] for i, j in ((0, 0), (99, 99), (0, 99), (0, 1))]
    np.testing.assert_allclose(entries, [14.8828125, 14.39453125, 7.2421875, 8.046875], rtol=1e-12)


def test_mixed_signs_take_the_attainable_diagonal() -> None:
    # k = 3, b = 1: the |C| pair has G = 14, an attack on the mechanism attains 10
    matrix = np.array([[1.0, 0, 0], [-1, 1, 0], [1, 1, 1]])
    gram = LowerTriangular(matrix).gram(BallsInBins(1, 3))
    assert gram.maximum == pytest.approx(14.0, rel=1e-12)
    assert gram.lower_diagonal == pytest.approx(10.0, rel=1e-12)
    assert gram.lower_diagonal <= 10.0


@pytest.mark.parametrize("strategy", [BandedSquareRoot(5), BandedInverseSquareRoot(3)])
def test_circulant_majorant_is_above_the_matrix(strategy: Strategy) -> None:
    from evertally.accountants import toeplitz

    scheme = BallsInBins(12, 3)
    exact = strategy.gram(scheme).matrix
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(toeplitz, "DENSE_BATCHES_MAX", 4)
        column = strategy.column(scheme)  # type: ignore[attr-defined]  # both are Toeplitz
        wrapped = toeplitz.toeplitz_gram(column, scheme, normalize_columns=False)
    assert wrapped.is_circulant
    assert (wrapped.matrix >= exact * (1 - 1e-14)).all()
    assert np.linalg.eigvalsh(wrapped.matrix).min() > -1e-9
    assert wrapped.lower_diagonal <= exact.diagonal().min()


def test_large_schemes_are_accounted_by_the_majorant() -> None:
    gram = BandedSquareRoot(4).gram(BallsInBins(50_000, 3))
    assert gram.is_circulant
    assert gram.maximum == pytest.approx(3 * 1.48828125, rel=1e-12)
    with pytest.raises(UnsupportedMechanism):
        _ = gram.matrix


@pytest.mark.parametrize("loss", [objective, inverse_objective])
@pytest.mark.parametrize("scheme", [BallsInBins(10, 4), BallsInBins(3, 6), BallsInBins(24, 1)])
def test_gradients_match_finite_differences(loss: type, scheme: BallsInBins) -> None:
    taps = np.concatenate(([1.0], np.random.default_rng(1).normal(size=5) * 0.3))
    _, gradient = loss(taps, scheme)
    step = 1e-6
    for j, unit in enumerate(np.eye(6)):
        numeric = (loss(taps + step * unit, scheme)[0] - loss(taps - step * unit, scheme)[0]) / (2 * step)
        assert gradient[j] == pytest.approx(numeric, rel=1e-6, abs=1e-7)


def test_objective_is_the_product_of_error_and_sensitivity() -> None:
    scheme = BallsInBins(6, 3)
    taps = np.array([1.0, 0.7, 0.2])
    rows = scheme.rows
    lag = np.arange(rows)[:, None] - np.arange(rows)[None, :]
    matrix = np.where((lag >= 0) & (lag < 3), taps[np.clip(lag, 0, 2)], 0.0)
    error = np.linalg.norm(np.tril(np.ones((rows, rows))) @ np.linalg.inv(matrix))
    sensitivity = np.sqrt((np.abs(matrix[:, :: scheme.batches]).sum(axis=1) ** 2).sum())
    assert objective(taps, scheme)[0] == pytest.approx(math.log(error * sensitivity), rel=1e-12)


@pytest.mark.parametrize("count", [2, 4, 16])
@pytest.mark.parametrize("scheme", [BallsInBins(100, 10), BallsInBins(1000, 1), BallsInBins(97, 10)])
def test_optimised_strategies_beat_the_square_roots(count: int, scheme: BallsInBins) -> None:
    root, inverse_root = square_root_taps(count, sign=1), square_root_taps(count, sign=-1)
    gain = objective(optimise_taps(count, scheme), scheme)[0] - objective(root, scheme)[0]
    inverse_gain = (
        inverse_objective(optimise_inverse_taps(count, scheme), scheme)[0]
        - inverse_objective(inverse_root, scheme)[0]
    )
    assert gain <= math.log(0.99)
    assert inverse_gain <= math.log(0.99)


def test_normalised_columns_have_norm_one() -> None:
    gram = BandedSquareRoot(4, normalize_columns=True).gram(BallsInBins(100, 10))
    np.testing.assert_allclose(gram.diagonal, 10.0, rtol=1e-10)
    plain = BandedSquareRoot(4).gram(BallsInBins(100, 10))
    assert math.sqrt(plain.maximum / gram.maximum) == pytest.approx(1.21995, rel=1e-5)


def test_bands_and_bad_parameters() -> None:
    scheme = BallsInBins(10, 2)
    assert [bands(s, scheme) for s in (Identity(), BandedSquareRoot(4))] == [1, 4]
    assert bands(LowerTriangular(np.eye(20)), scheme) == 1
    for bad in (0, -1, 2.0, True, 5000):
        with pytest.raises(InvalidParameter):
            BandedSquareRoot(bad)  # type: ignore[arg-type]  # the wrong type is the point
    for scales, decays in (((), ()), ((0.1,), (1.0,)), ((math.nan,), (0.5,)), ((0.1, 0.2), (0.5,))):
        with pytest.raises(InvalidParameter):
            BLT(scales, decays)
    with pytest.raises(InvalidParameter):
        LowerTriangular(np.array([[math.inf]]))
    with pytest.raises(InvalidParameter):
        LowerTriangular(np.eye(5)).gram(scheme)


@pytest.mark.parametrize("kind", [BandMF, BandedInverseMF])
def test_an_optimised_strategy_can_be_written_down(kind: type[BandMF] | type[BandedInverseMF]) -> None:
    scheme = BallsInBins(20, 3)
    fixed = kind(4).fixed(scheme)
    assert fixed != kind(4)
    assert len(fixed.taps) == 4
    assert fixed.fixed(scheme) == fixed == kind(4, taps=fixed.taps)
    # the numbers are the strategy: under another scheme, and in another process, they stay what they are
    np.testing.assert_array_equal(fixed.column(scheme).taps, kind(4).column(scheme).taps)
    np.testing.assert_array_equal(fixed.gram(scheme).matrix, kind(4).gram(scheme).matrix)
    other = BallsInBins(9, 2)
    np.testing.assert_array_equal(fixed.column(other).taps[:4], fixed.column(scheme).taps[:4])
    assert not np.array_equal(kind(4).column(other).taps[:4], fixed.column(scheme).taps[:4])
    short = BallsInBins(1, 2)
    assert fixed.matrix_first_column(short).shape == (2,)
    for taps in ((), (1.0,)):
        kind(4, taps=taps)
    for bad in ((0.5, 0.1), (1.0,) * 5, (1.0, float("nan")), (1.0, 1e9), [1.0, 0.5]):
        with pytest.raises(InvalidParameter, match="taps"):
            kind(4, taps=bad)  # type: ignore[arg-type]  # that is what is tried


@pytest.mark.parametrize(
    ("strategy", "participation"),
    [
        (BandedInverseMF(3, True, (1.0, -2.8, 1000.0)), BallsInBins(50, 10)),
        (BandedInverseMF(2, False, (1.0, -3.0)), BallsInBins(5000, 2)),
        (BandedInverseMF(2, False, (1.0, -1e6)), BallsInBins(5, 7)),
        (LowerTriangular(np.eye(4) * 1e160), BallsInBins(2, 2)),
        (LowerTriangular(np.eye(4) * 2.7e-162), BallsInBins(2, 2)),  # its squares keep one digit
        (LowerTriangular(np.zeros((4, 4))), BallsInBins(2, 2)),
    ],
)
def test_entries_beyond_doubles_are_refused_by_name(strategy: Strategy, participation: BallsInBins) -> None:
    with pytest.raises(UnsupportedMechanism, match="a strategy whose entries"):
        account(strategy, participation, 1.0)
