"""From the first column of a lower-triangular Toeplitz strategy to its Gram matrix."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evertally.accountants.gram import DENSE_BATCHES_MAX, Gram, circulant_gram, dense_gram
from evertally.accountants.participation import BallsInBins
from evertally.errors import UnsupportedMechanism

__all__ = ["Column", "exact_column", "invert_taps", "square_root_taps", "toeplitz_gram"]

FloatArray = NDArray[np.float64]

_CELLS_MAX = 2**26
_DIRECT_LENGTH_MAX = 2048
_UNIT = 2.0**-53


@dataclass(frozen=True, slots=True, eq=False)
class Column:
    """The first column of C, and how far rounding may have moved each entry.

    Attributes:
        taps: shape (n,), c_0..c_{n-1}; entries past the end are zero.
        error: shape (n,), |computed - exact| is at most this.
    """

    taps: FloatArray
    error: FloatArray

    @property
    def magnitudes(self) -> FloatArray:
        """|c_d|, rounded up."""
        return np.abs(self.taps) + self.error

    @property
    def nonnegative(self) -> bool:
        """Whether no entry can be negative."""
        return bool((self.taps >= 0.0).all())


def exact_column(taps: FloatArray) -> Column:
    """The column whose entries are these doubles, with no error."""
    return Column(taps, np.zeros_like(taps))


def square_root_taps(count: int, *, sign: int) -> FloatArray:
    """First coefficients of (1 - z)^(-sign/2): 1, 1/2, 3/8, ... for +1, and 1, -1/2, -1/8, ... for -1."""
    index = np.arange(1, count, dtype=np.float64)
    return np.concatenate(([1.0], np.cumprod((index - 1.0 + 0.5 * sign) / index)))


@np.errstate(over="ignore", invalid="ignore")  # as below
def invert_taps(taps: FloatArray, rows: int) -> Column:
    """Power series inverse of `taps` (taps[0] = 1) to `rows` terms, with a running error bound.

    c_n = -sum_d a_d c_{n-d}; the error obeys e_n <= sum_d |a_d| e_{n-d} + (p + 1) 2^-53 sum_d |a_d c_{n-d}|.
    """
    reach = taps.size - 1
    weights = -taps[1:]
    sizes = np.abs(weights)
    out = np.zeros(rows + reach)
    error = np.zeros(rows + reach)
    out[reach] = 1.0
    for n in range(reach + 1, rows + reach):
        past = out[n - reach : n][::-1]
        out[n] = float(weights @ past)
        error[n] = float(sizes @ (error[n - reach : n][::-1] + (reach + 2) * _UNIT * np.abs(past)))
    return Column(out[reach:], error[reach:] * (1.0 + (rows + reach) * 4.0 * _UNIT))


@np.errstate(over="ignore", invalid="ignore")  # what grows beyond all doubles is refused by name
def toeplitz_gram(column: Column, participation: BallsInBins, *, normalize_columns: bool) -> Gram:
    """Gram matrix of the Toeplitz strategy with this first column; dense, or a circulant majorant of it.

    Up to 4,096 bins (and 2^26 entries of means) G is computed as it is. Beyond, the last epoch is wrapped
    into the first: C circulant modulo N has G_circ(d) = k sum_i f_i f_{i+d}, f the column folded modulo b,
    which is positive semidefinite and entrywise at least G (docs/proofs/kahane.md).
    """
    batches, epochs, rows = participation.batches, participation.epochs, participation.rows
    length = min(rows, column.taps.size)
    taps, magnitudes = column.taps[:length], column.magnitudes[:length]
    if not np.isfinite(magnitudes).all():
        raise UnsupportedMechanism("a strategy whose entries grow beyond all doubles")
    small = batches <= DENSE_BATCHES_MAX and rows * batches <= _CELLS_MAX
    if normalize_columns and not small:
        raise UnsupportedMechanism(f"column normalisation above {DENSE_BATCHES_MAX} batches")
    shrink = 1.0 - (rows + 8) * 4.0 * _UNIT
    squares = np.cumsum(np.maximum(np.abs(taps) - column.error[:length], 0.0) ** 2)
    if not small:
        ends = np.minimum(rows - (batches - 1) - batches * np.arange(epochs), length) - 1
        return circulant_gram(
            _folded_row(magnitudes, batches, epochs),
            batches=batches,
            epochs=epochs,
            lower_diagonal=float(squares[ends].sum()) * shrink,
            nonnegative=column.nonnegative,
            is_identity=False,
            means=lambda: _shifted_means(magnitudes, np.ones(rows), participation),
        )
    scale = np.ones(rows)
    if normalize_columns:
        lengths = np.minimum(rows - np.arange(rows), length) - 1
        scale = 1.0 / np.sqrt(np.cumsum(taps**2)[lengths] * shrink)
    means = _shifted_means(magnitudes, scale, participation)
    signed = _shifted_means(taps, scale, participation)
    own = squares[np.minimum(rows - np.arange(rows), length) - 1] * scale**2
    diagonal = own.reshape(epochs, batches).sum(axis=0)
    # the signed sums may cancel: what rounding can have moved is taken off first
    moved = _shifted_means(column.error[:length], scale, participation) + means * (epochs + 4) * 4.0 * _UNIT
    attained = np.maximum(np.abs(signed) - moved, 0.0)
    diagonal = np.maximum(diagonal, np.einsum("ni,ni->i", attained, attained))
    return dense_gram(
        means,
        batches=batches,
        epochs=epochs,
        lower_diagonal=float(diagonal.min()) * shrink**2,
        nonnegative=column.nonnegative,
    )


def _shifted_means(taps: FloatArray, scale: FloatArray, participation: BallsInBins) -> FloatArray:
    """sum_j of the columns i + j b, shape (rows, b): column s is `taps` from row s on, times scale[s]."""
    batches, rows = participation.batches, participation.rows
    if rows * batches > _CELLS_MAX:
        raise UnsupportedMechanism(f"dense means of {rows} rows and {batches} batches do not fit")
    means = np.zeros((rows, batches))
    for start in range(rows):
        stop = min(rows, start + taps.size)
        means[start:stop, start % batches] += scale[start] * taps[: stop - start]
    return means


def _folded_row(magnitudes: FloatArray, batches: int, epochs: int) -> FloatArray:
    length = magnitudes.size
    if length <= min(_DIRECT_LENGTH_MAX, batches):
        row = np.zeros(batches)
        right = np.correlate(magnitudes, magnitudes, mode="full")[length - 1 :]
        row[:length] += right
        row[(batches - np.arange(1, length)) % batches] += right[1:]
        return np.asarray(epochs * row * (1.0 + (length + 8) * 4.0 * _UNIT))
    folded = np.zeros(-(-length // batches) * batches)
    folded[:length] = magnitudes
    folded = folded.reshape(-1, batches).sum(axis=0)
    spectrum = np.abs(np.fft.rfft(folded)) ** 2
    row = np.fft.irfft(spectrum, batches)
    rounding = (64.0 * np.log2(batches + 2.0) + length / batches + 8.0) * _UNIT * float(folded @ folded)
    return np.asarray(epochs * (np.maximum(row, 0.0) + 4.0 * rounding))
