"""The Gram matrix of a strategy under one bin per record: all that amplification bounds need of C.

With |C| the entrywise absolute value and m_i = sum_j |C|[:, i + j b], G_ij = <m_i, m_j>. The privacy of the
mechanism at noise sigma is bounded by the pair P = (1/b) sum_i N(m_i, sigma^2 I), Q = N(0, sigma^2 I), which
depends on G / sigma^2 alone (docs/proofs/domination.md). C is not normalised: sigma multiplies the clip norm.
Every entry is rounded up, which is the safe side: no divergence falls when entries rise
(docs/proofs/kahane.md).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from evertally.accountants.bound import LowerScope
from evertally.errors import UnsupportedMechanism

__all__ = ["DENSE_BATCHES_MAX", "Gram", "circulant_gram", "dense_gram"]

FloatArray = NDArray[np.float64]

DENSE_BATCHES_MAX = 4096
_UNIT = 2.0**-53
_SMALLEST = 1e-200


@dataclass(frozen=True, slots=True, eq=False)
class Gram:
    """Upper bounds on all G_ij, and a lower bound on the signed diagonal.

    Attributes:
        batches: b, bins.
        epochs: k, participations of a record.
        entries: shape (b, b), or shape (b,): the first row of a circulant matrix. Read only.
        lower_diagonal: at most min_i D_i, D_i = max(|sum_j C[:, i+jb]|^2, sum_j |C[:, i+jb]|^2) with signs:
            the certified lower bound rests on it.
        nonnegative: whether C >= 0, so that the pair above is attained by the mechanism.
        is_identity: whether C = I (then G = k I exactly).
        means: builds the dense (rows, b) array of m_{i,n}; see `step_means`.
    """

    batches: int
    epochs: int
    entries: FloatArray
    lower_diagonal: float
    nonnegative: bool
    is_identity: bool
    means: Callable[[], FloatArray] = field(repr=False)

    @property
    def is_circulant(self) -> bool:
        """Whether `entries` holds the first row only."""
        return self.entries.ndim == 1

    @property
    def matrix(self) -> FloatArray:
        """G as a dense (b, b) array.

        Raises:
            UnsupportedMechanism: above DENSE_BATCHES_MAX bins (ask `diagonals` or `classes` instead).
        """
        if not self.is_circulant:
            return self.entries
        if self.batches > DENSE_BATCHES_MAX:
            raise UnsupportedMechanism(f"no dense Gram matrix above {DENSE_BATCHES_MAX} batches")
        index = np.arange(self.batches)
        return np.asarray(self.entries[(index[:, None] - index[None, :]) % self.batches])

    @property
    def diagonal(self) -> FloatArray:
        """G_ii, shape (b,)."""
        if self.is_circulant:
            return np.full(self.batches, self.entries[0])
        return np.ascontiguousarray(np.diagonal(self.entries))

    @property
    def maximum(self) -> float:
        """max_i G_ii: the squared sensitivity without amplification (no entry is larger)."""
        return float(self.entries.max())

    @property
    def lower_scope(self) -> LowerScope:
        """What a lower bound from `lower_diagonal` speaks of."""
        return "dominating pair" if self.nonnegative else "mechanism"

    def step_means(self) -> FloatArray:
        """m_{i,n} = sum_j |C|[n, i + j b], shape (rows, b), rounded up; may be large (rows * b doubles)."""
        return self.means()

    def diagonals(self, width: int) -> FloatArray:
        """Cyclic diagonals: out[i, d] = G[i, (i - d) mod b] for d < width; shape (b, width)."""
        index = np.arange(self.batches)[:, None]
        offset = np.arange(width)[None, :]
        if self.is_circulant:
            return np.ascontiguousarray(np.broadcast_to(self.entries[:width], (self.batches, width)))
        return np.ascontiguousarray(self.entries[index, (index - offset) % self.batches])

    def classes(self, colours: int) -> list[tuple[int, float, float]]:
        """Residue classes of the bins modulo `colours`: (size, max G_ii, max G_ij for i != j) of each.

        The last is 0 for a class of one bin. Equal triples of a circulant matrix are not merged.
        """
        found = []
        for residue in range(min(colours, self.batches)):
            members = np.arange(residue, self.batches, colours)
            size = members.size
            if self.is_circulant:
                distances = members[1:] - residue
                apart = self.entries[np.concatenate((distances, (-distances) % self.batches))]
                found.append((size, float(self.entries[0]), float(apart.max()) if size > 1 else 0.0))
                continue
            block = self.entries[residue::colours, residue::colours]
            top = float(np.diagonal(block).max())
            off = block[~np.eye(size, dtype=bool)]
            found.append((size, top, float(off.max()) if size > 1 else 0.0))
        return found


def dense_gram(
    means: FloatArray,
    *,
    batches: int,
    epochs: int,
    lower_diagonal: float,
    nonnegative: bool,
) -> Gram:
    """G = means^T means from the (rows, b) array of m_{i,n} >= 0, each entry rounded up.

    A sum of n products of non-negative doubles is low by at most the factor 1 - n 2^-53 (any order of
    summation); the entries are multiplied by 1 + (n + 4) 2^-52, so zeros stay zero.
    """
    product = means.T @ means
    entries = _finite(np.maximum(product, product.T) * (1.0 + (means.shape[0] + 4) * 2.0 * _UNIT))
    return Gram(
        batches=batches,
        epochs=epochs,
        entries=entries,
        lower_diagonal=lower_diagonal,
        nonnegative=nonnegative,
        is_identity=False,
        means=lambda: means,
    )


def circulant_gram(
    row: FloatArray,
    *,
    batches: int,
    epochs: int,
    lower_diagonal: float,
    nonnegative: bool,
    is_identity: bool,
    means: Callable[[], FloatArray],
) -> Gram:
    """A circulant Gram matrix (or majorant of one), from its first row, which is rounded up already."""
    entries = _finite(np.array(row, dtype=np.float64))
    return Gram(
        batches=batches,
        epochs=epochs,
        entries=entries,
        lower_diagonal=lower_diagonal,
        nonnegative=nonnegative,
        is_identity=is_identity,
        means=means,
    )


def _finite(entries: FloatArray) -> FloatArray:
    """`entries`, read only; refused where doubles do not hold them, or lose digits that count."""
    if not (np.isfinite(entries).all() and _SMALLEST <= entries.max() <= 1.0 / _SMALLEST):
        raise UnsupportedMechanism("a strategy whose entries are all too small, or too large, for doubles")
    entries.setflags(write=False)
    return entries
