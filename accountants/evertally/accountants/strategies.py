"""Strategies: the lower-triangular matrix C whose inverse correlates the noise.

Every strategy is a frozen description by public parameters. An optimised strategy depends on the
participation too, so the column is asked for together with it. `normalize_columns` divides each column of
C by its norm; it is a field, so it is recorded wherever the strategy is.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray

from evertally.accountants.gram import DENSE_BATCHES_MAX, Gram, circulant_gram
from evertally.accountants.lower_triangular import LowerTriangular
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


class _Toeplitz(abc.ABC):
    """A strategy whose matrix has one column, shifted down."""

    __slots__ = ()
    normalize_columns: bool

    @abc.abstractmethod
    def column(self, participation: BallsInBins) -> Column:
        """First column of C with its rounding error."""

    def matrix_first_column(self, participation: BallsInBins) -> FloatArray:
        """First column of C before normalisation, shape (rows,)."""
        return _padded(self.column(participation).taps, participation.rows)

    def gram(self, participation: BallsInBins) -> Gram:
        """Gram matrix under one bin per record."""
        return _toeplitz(self, participation)


@dataclass(frozen=True, slots=True)
class _Banded(_Toeplitz):
    """A Toeplitz strategy given by a number of diagonals, of C or of its inverse."""

    bands: int
    normalize_columns: bool = False

    def __post_init__(self) -> None:
        positive_integer("bands", self.bands, high=BANDS_MAX)


@dataclass(frozen=True, slots=True)
class _Optimised(_Banded):
    """A banded strategy whose numbers are optimised for the participation, or given."""

    taps: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        _Banded.__post_init__(self)
        _check_taps(self.taps, self.bands)

    def fixed(self, participation: BallsInBins) -> Self:
        """The same strategy with its numbers written down: no other machine has to find them again."""
        return replace(self, taps=tuple(self.optimised(participation).tolist()))

    @abc.abstractmethod
    def optimised(self, participation: BallsInBins) -> FloatArray:
        """The numbers, as given or as found."""


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
class BandedSquareRoot(_Banded):
    """BSR: C is the first `bands` diagonals of the square root of the all-ones matrix: 1, 1/2, 3/8, 5/16, ...

    Reference: arXiv 2405.13763.

    Attributes:
        bands: non-zero diagonals of C, 1..4096; BandedSquareRoot(1) is the identity.
        normalize_columns: whether each column of C is divided by its norm.
    """

    def column(self, participation: BallsInBins) -> Column:
        """First column of C with its rounding error."""
        return exact_column(square_root_taps(min(self.bands, participation.rows), sign=1))


@dataclass(frozen=True, slots=True)
class BandedInverseSquareRoot(_Banded):
    """BISR: C^-1 is the first `bands` diagonals of the inverse square root: 1, -1/2, -1/8, -1/16, ...

    Reference: arXiv 2505.12128.

    Attributes:
        bands: non-zero diagonals of C^-1, 1..4096.
        normalize_columns: whether each column of C is divided by its norm.
    """

    def column(self, participation: BallsInBins) -> Column:
        """First column of C with its rounding error."""
        taps = square_root_taps(min(self.bands, participation.rows), sign=-1)
        return invert_taps(taps, participation.rows)


@dataclass(frozen=True, slots=True)
class BandMF(_Optimised):
    """Banded Toeplitz C of least ||A C^-1||_F sens(C), optimised for the participation at hand.

    Attributes:
        bands: non-zero diagonals of C, 1..4096.
        normalize_columns: whether each column of C is divided by its norm (after the optimisation).
        taps: the non-zero entries of C's first column as an optimisation found them; () runs it here.
    """

    def optimised(self, participation: BallsInBins) -> FloatArray:
        """The non-zero entries of C's first column; these doubles are the strategy."""
        if self.taps:
            return np.array(self.taps[: participation.rows])
        return _band_mf_taps(self.bands, participation)

    def column(self, participation: BallsInBins) -> Column:
        """First column of C, exactly."""
        return exact_column(self.optimised(participation))


@dataclass(frozen=True, slots=True)
class BandedInverseMF(_Optimised):
    """Toeplitz C with a banded inverse of least ||A C^-1||_F sens(C), for the participation at hand.

    Attributes:
        bands: non-zero diagonals of C^-1, 1..4096.
        normalize_columns: whether each column of C is divided by its norm (after the optimisation).
        taps: the non-zero entries of C^-1's first column as an optimisation found them; () runs it here.
    """

    def optimised(self, participation: BallsInBins) -> FloatArray:
        """The non-zero entries of C^-1's first column; these doubles are the strategy."""
        if self.taps:
            return np.array(self.taps[: participation.rows])
        return _band_inverse_mf_taps(self.bands, participation)

    def column(self, participation: BallsInBins) -> Column:
        """First column of C with its rounding error."""
        return invert_taps(self.optimised(participation), participation.rows)


@dataclass(frozen=True, slots=True)
class BLT(_Toeplitz):
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


def bands(strategy: Strategy, participation: BallsInBins) -> int:
    """Non-zero diagonals of C, from the main one down to the lowest."""
    if isinstance(strategy, Identity):
        return 1
    if isinstance(strategy, LowerTriangular):
        rows, columns = np.nonzero(strategy.matrix)
        return int((rows - columns).max(initial=0)) + 1
    if isinstance(strategy, _Toeplitz):
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
def _toeplitz(strategy: _Toeplitz, participation: BallsInBins) -> Gram:
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
