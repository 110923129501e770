"""A strategy given entry by entry."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from evertally.accountants.gram import Gram, dense_gram
from evertally.accountants.participation import BallsInBins
from evertally.errors import InvalidParameter, UnsupportedMechanism

__all__ = ["LowerTriangular"]

FloatArray = NDArray[np.float64]


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

    def largest_column(self) -> float:
        """Largest squared norm of a column, rounded up."""
        squares = (self.matrix * self.matrix).sum(axis=0)
        largest = 1.0 if self.normalize_columns else float(squares.max())
        return float(largest * (1.0 + (self.matrix.shape[0] + 8) * 2.0**-49))


@lru_cache(maxsize=16)
@np.errstate(over="ignore", invalid="ignore")  # what grows beyond all doubles is refused by name
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
