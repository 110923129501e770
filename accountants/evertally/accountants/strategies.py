"""Strategies: the lower-triangular matrix C whose inverse correlates the noise.

Every strategy is a frozen description by public parameters. An optimised strategy depends on the
participation too, so the column is asked for together with it. `normalize_columns` divides each column of
C by its norm; it is a field, so it is recorded wherever the strategy is.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from evertally.accountants.gram import DENSE_BATCHES_MAX, Gram, circulant_gram, dense_gram
from evertally.accountants.optimised import optimise_inverse_taps, optimise_taps
from evertally.accountants.participation import BallsInBins
from evertally.accountants.toeplitz import Column, exact_column, invert_taps, square_root_taps, toeplitz_gram
from evertally.errors import InvalidParameter, UnsupportedMechanism
from evertally.validation import positive_integer, real

__all__ = [
    "BLT",
    "BandMF",
    "BandedInverseMF",
    "BandedInverseSquareRoot",
    "BandedSquareRoot",
    "Identity",
    "LowerTriangular",
    "Strategy",
    "bands",
]

FloatArray = NDArray[np.float64]
BANDS_MAX = 4096


class Strategy(Protocol):
    """A lower-triangular strategy matrix C, known for every number of rows; hashable."""

    def gram(self, participation: BallsInBins) -> Gram:
        """Gram matrix under one bin per record; equal arguments give the same, cached, object."""
        ...


class _ToeplitzStrategy(Strategy, Protocol):
    @property
    def normalize_columns(self) -> bool: ...

    def column(self, participation: BallsInBins) -> Column: ...


@dataclass(frozen=True, slots=True)
class Identity:
    """C = I: independent noise in every row (DP-SGD)."""

    def matrix_first_column(self, participation: BallsInBins) -> FloatArray:
        """1, 0, 0, ...; shape (rows,)."""
        return _padded(np.ones(1), participation.rows)

    def gram(self, participation: BallsInBins) -> Gram:
        """G = k I, exactly, for any number of bins."""
        return _identity_gram(participation)


@dataclass(frozen=True, slots=True)
class BandedSquareRoot:
    """BSR: C is the first `bands` diagonals of the square root of the all-ones matrix: 1, 1/2, 3/8, 5/16, ...

    Reference: arXiv 2405.13763.

    Attributes:
        bands: non-zero diagonals of C, 1..4096; BandedSquareRoot(1) is the identity.
        normalize_columns: whether each column of C is divided by its norm.
    """

    bands: int
    normalize_columns: bool = False

    def __post_init__(self) -> None:
        positive_integer("bands", self.bands, high=BANDS_MAX)

    def column(self, participation: BallsInBins) -> Column:
        """First column of C with its rounding error."""
        return exact_column(square_root_taps(min(self.bands, participation.rows), sign=1))

    def matrix_first_column(self, participation: BallsInBins) -> FloatArray:
        """First column of C before normalisation, shape (rows,)."""
        return _padded(self.column(participation).taps, participation.rows)

    def gram(self, participation: BallsInBins) -> Gram:
        """Gram matrix under one bin per record."""
        return _toeplitz(self, participation)


@dataclass(frozen=True, slots=True)
class BandedInverseSquareRoot:
    """BISR: C^-1 is the first `bands` diagonals of the inverse square root: 1, -1/2, -1/8, -1/16, ...

    Reference: arXiv 2505.12128.

    Attributes:
        bands: non-zero diagonals of C^-1, 1..4096.
        normalize_columns: whether each column of C is divided by its norm.
    """

    bands: int
    normalize_columns: bool = False

    def __post_init__(self) -> None:
        positive_integer("bands", self.bands, high=BANDS_MAX)

    def column(self, participation: BallsInBins) -> Column:
        """First column of C with its rounding error."""
        taps = square_root_taps(min(self.bands, participation.rows), sign=-1)
        return invert_taps(taps, participation.rows)

    def matrix_first_column(self, participation: BallsInBins) -> FloatArray:
        """First column of C before normalisation, shape (rows,)."""
        return _padded(self.column(participation).taps, participation.rows)

    def gram(self, participation: BallsInBins) -> Gram:
        """Gram matrix under one bin per record."""
        return _toeplitz(self, participation)


@dataclass(frozen=True, slots=True)
class BandMF:
    """Banded Toeplitz C of least ||A C^-1||_F sens(C), optimised for the participation at hand.

    Attributes:
        bands: non-zero diagonals of C, 1..4096.
        normalize_columns: whether each column of C is divided by its norm (after the optimisation).
        taps: the non-zero entries of C's first column as an optimisation found them; () runs it here.
    """

    bands: int
    normalize_columns: bool = False
    taps: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        positive_integer("bands", self.bands, high=BANDS_MAX)
        _check_taps(self.taps, self.bands)

    def fixed(self, participation: BallsInBins) -> BandMF:
        """The same strategy with its numbers written down: no other machine has to find them again."""
        return replace(self, taps=tuple(self.column(participation).taps.tolist()))

    def column(self, participation: BallsInBins) -> Column:
        """First column of C; these doubles are the strategy."""
        taps = np.array(self.taps[: participation.rows]) if self.taps else None
        return exact_column(_band_mf_taps(self.bands, participation) if taps is None else taps)

    def matrix_first_column(self, participation: BallsInBins) -> FloatArray:
        """First column of C before normalisation, shape (rows,)."""
        return _padded(self.column(participation).taps, participation.rows)

    def gram(self, participation: BallsInBins) -> Gram:
        """Gram matrix under one bin per record."""
        return _toeplitz(self, participation)


@dataclass(frozen=True, slots=True)
class BandedInverseMF:
    """Toeplitz C with a banded inverse of least ||A C^-1||_F sens(C), for the participation at hand.

    Attributes:
        bands: non-zero diagonals of C^-1, 1..4096.
        normalize_columns: whether each column of C is divided by its norm (after the optimisation).
        taps: the non-zero entries of C^-1's first column as an optimisation found them; () runs it here.
    """

    bands: int
    normalize_columns: bool = False
    taps: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        positive_integer("bands", self.bands, high=BANDS_MAX)
        _check_taps(self.taps, self.bands)

    def fixed(self, participation: BallsInBins) -> BandedInverseMF:
        """The same strategy with its numbers written down: no other machine has to find them again."""
        return replace(self, taps=tuple(self.inverse_taps(participation).tolist()))

    def inverse_taps(self, participation: BallsInBins) -> FloatArray:
        """The non-zero entries of C^-1's first column; these doubles are the strategy."""
        taps = np.array(self.taps[: participation.rows]) if self.taps else None
        return _band_inverse_mf_taps(self.bands, participation) if taps is None else taps

    def column(self, participation: BallsInBins) -> Column:
        """First column of C with its rounding error."""
        return invert_taps(self.inverse_taps(participation), participation.rows)

    def matrix_first_column(self, participation: BallsInBins) -> FloatArray:
        """First column of C before normalisation, shape (rows,)."""
        return _padded(self.column(participation).taps, participation.rows)

    def gram(self, participation: BallsInBins) -> Gram:
        """Gram matrix under one bin per record."""
        return _toeplitz(self, participation)


@dataclass(frozen=True, slots=True)
class BLT:
    """Buffered linear Toeplitz: c_0 = 1, c_d = sum_i output_scales[i] buffer_decays[i]^(d-1).

    Reference: arXiv 2404.16706, section 3.

    Attributes:
        output_scales: one a buffer, finite, any sign.
        buffer_decays: one a buffer, each in [0, 1).
        normalize_columns: whether each column of C is divided by its norm.
    """

    output_scales: tuple[float, ...]
    buffer_decays: tuple[float, ...]
    normalize_columns: bool = False

    def __post_init__(self) -> None:
        if len(self.output_scales) != len(self.buffer_decays) or not self.output_scales:
            raise InvalidParameter(
                "output_scales", len(self.output_scales), "one per buffer decay, at least one"
            )
        for scale in self.output_scales:
            real("output_scales", scale, low=-1e6, high=1e6)
        for decay in self.buffer_decays:
            if not real("buffer_decays", decay, low=0.0, high=1.0) < 1.0:
                raise InvalidParameter("buffer_decays", decay, "a number in [0, 1)")

    def column(self, participation: BallsInBins) -> Column:
        """First column of C with its rounding error."""
        powers = np.arange(participation.rows - 1, dtype=np.float64)
        terms = np.array(self.output_scales)[:, None] * np.array(self.buffer_decays)[:, None] ** powers
        taps = np.concatenate(([1.0], terms.sum(axis=0)))
        # pow is within an ulp or two; the sum over buffers adds one rounding each
        error = np.concatenate(([0.0], (len(self.output_scales) + 4) * 2.0**-52 * np.abs(terms).sum(axis=0)))
        return Column(taps, error)

    def matrix_first_column(self, participation: BallsInBins) -> FloatArray:
        """First column of C before normalisation, shape (rows,)."""
        return _padded(self.column(participation).taps, participation.rows)

    def gram(self, participation: BallsInBins) -> Gram:
        """Gram matrix under one bin per record."""
        return _toeplitz(self, participation)


@dataclass(frozen=True, slots=True, eq=False)
class LowerTriangular:
    """Any lower-triangular C, given entry by entry.

    Attributes:
        matrix: shape (rows, rows), finite; copied and made read only.
        normalize_columns: whether each column of C is divided by its norm.

    Raises:
        UnsupportedMechanism: an entry above the diagonal is not zero. The accounting of adaptively chosen
            contributions (docs/proofs/domination.md) holds for lower-triangular C only.
    """

    matrix: FloatArray = field(repr=False)
    normalize_columns: bool = False

    def __post_init__(self) -> None:
        matrix = np.array(self.matrix, dtype=np.float64)
        if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or matrix.shape[0] == 0:
            raise InvalidParameter("matrix", matrix.shape, "a square matrix")
        if not np.isfinite(matrix).all():
            raise InvalidParameter("matrix", "NaN or infinite entries", "finite entries")
        if np.triu(matrix, 1).any():
            raise UnsupportedMechanism("the strategy matrix is not lower triangular")
        matrix.setflags(write=False)
        object.__setattr__(self, "matrix", matrix)

    def gram(self, participation: BallsInBins) -> Gram:
        """Gram matrix under one bin per record; participation.rows must be the matrix's."""
        return _explicit_gram(self, participation)


def bands(strategy: Strategy, participation: BallsInBins) -> int:
    """Non-zero diagonals of C, from the main one down to the lowest."""
    if isinstance(strategy, Identity):
        return 1
    if isinstance(strategy, LowerTriangular):
        rows, columns = np.nonzero(strategy.matrix)
        return int((rows - columns).max(initial=0)) + 1
    if isinstance(strategy, BandedSquareRoot | BandedInverseSquareRoot | BandMF | BandedInverseMF | BLT):
        return int(np.flatnonzero(strategy.column(participation).magnitudes).max(initial=0)) + 1
    raise InvalidParameter("strategy", type(strategy).__name__, "a strategy of this package")


def _check_taps(taps: tuple[float, ...], bands: int) -> None:
    if not taps:
        return
    if not isinstance(taps, tuple) or len(taps) > bands or taps[0] != 1.0:
        raise InvalidParameter("taps", "other numbers", f"at most {bands}, a tuple whose first is 1")
    for tap in taps:
        real("taps", tap, low=-1e6, high=1e6)


def _padded(taps: FloatArray, rows: int) -> FloatArray:
    out = np.zeros(rows)
    out[: min(rows, taps.size)] = taps[:rows]
    return out


@lru_cache(maxsize=64)
def _band_mf_taps(count: int, participation: BallsInBins) -> FloatArray:
    return _frozen(optimise_taps(count, participation))


@lru_cache(maxsize=64)
def _band_inverse_mf_taps(count: int, participation: BallsInBins) -> FloatArray:
    return _frozen(optimise_inverse_taps(count, participation))


def _frozen(array: FloatArray) -> FloatArray:
    array.setflags(write=False)
    return array


@lru_cache(maxsize=16)
def _toeplitz(strategy: _ToeplitzStrategy, participation: BallsInBins) -> Gram:
    column = strategy.column(participation)
    return toeplitz_gram(column, participation, normalize_columns=strategy.normalize_columns)


@lru_cache(maxsize=64)
def _identity_gram(participation: BallsInBins) -> Gram:
    batches, epochs = participation.batches, participation.epochs
    row = np.zeros(batches)
    row[0] = epochs

    def means() -> FloatArray:
        if batches > DENSE_BATCHES_MAX:
            raise UnsupportedMechanism(f"no dense means above {DENSE_BATCHES_MAX} batches")
        return np.tile(np.eye(batches), (epochs, 1))

    return circulant_gram(
        row,
        batches=batches,
        epochs=epochs,
        lower_diagonal=float(epochs),
        nonnegative=True,
        is_identity=True,
        means=means,
    )


@lru_cache(maxsize=16)
def _explicit_gram(strategy: LowerTriangular, participation: BallsInBins) -> Gram:
    matrix, batches, epochs = strategy.matrix, participation.batches, participation.epochs
    if matrix.shape[0] != participation.rows:
        raise InvalidParameter(
            "matrix", matrix.shape[0], f"{participation.rows} rows, as the participation has"
        )
    rows = matrix.shape[0]
    outward = (rows + epochs + 8) * 2.0**-51
    if strategy.normalize_columns:
        norms = np.sqrt((matrix * matrix).sum(axis=0))
        if not norms.all():
            raise InvalidParameter("matrix", "a zero column", "columns of positive norm when normalised")
        matrix = matrix / (norms * (1.0 - outward))
    by_bin = matrix.reshape(rows, epochs, batches)
    signed = by_bin.sum(axis=1)
    squares = (matrix * matrix).sum(axis=0).reshape(epochs, batches).sum(axis=0)
    # the signed sums may cancel: their rounding is relative to the sum of magnitudes
    slack = outward * (np.abs(by_bin).sum(axis=1) ** 2).sum(axis=0)
    lower = np.maximum(squares * (1.0 - 4.0 * outward), (signed * signed).sum(axis=0) - 4.0 * slack)
    return dense_gram(
        np.abs(by_bin).sum(axis=1) * (1.0 + outward),
        batches=batches,
        epochs=epochs,
        lower_diagonal=max(0.0, float(lower.min())),
        nonnegative=bool((matrix >= 0.0).all()),
    )
