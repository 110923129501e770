"""Cutting a Gram matrix to a band, with the residue paid for.

With tau the largest entry outside the band, G <= Gp + tau 11^T for Gp = max(G - tau, 0) inside the band and 0
outside, and adding tau 11^T to a Gram matrix adds tau a / (2 sigma^2) to R_a (docs/proofs/truncation.md).
Which pairs are outside depends on the sweep: by cyclic distance when it closes the circle, by plain distance
when it does not. The two are never mixed: a pair that neither sees would be lost.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evertally.accountants.gram import Gram

__all__ = ["Band", "band_of"]

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Band:
    """G <= band + residue 11^T.

    Attributes:
        diagonals: shape (b, p): the reduced G[i, (i - d) mod b]; where the band does not close, entries with
            d > i are 0.
        residue: tau >= 0.
        cyclic: whether distances go round.
    """

    diagonals: FloatArray
    residue: float
    cyclic: bool


def band_of(gram: Gram, width: int, *, cyclic: bool) -> Band:
    """The tight band of `width` diagonals (1: the diagonal alone) and its residue.

    Guarantees:
        - G <= band + residue 11^T, entry by entry (checked on every call).
    """
    residue = _largest_outside(gram, width, cyclic=cyclic)
    inside = gram.diagonals(width)
    diagonals = np.maximum(inside - residue, 0.0)
    # the difference is rounded to nearest: adding tau again must not fall short
    short = diagonals + residue < inside
    diagonals[short] = np.nextafter(diagonals[short], np.inf)
    if not cyclic:
        rows, offsets = np.indices(diagonals.shape)
        diagonals[offsets > rows] = 0.0
    band = Band(diagonals, residue, cyclic)
    assert _covers(band, gram), "an entry of G is above the band plus its residue"
    return band


def _covers(band: Band, gram: Gram) -> bool:
    """Whether G <= band + residue 11^T for every pair, by plain distance."""
    batches, width = band.diagonals.shape
    beyond = max(width, batches - width + 1) if band.cyclic else batches
    if gram.is_circulant and not bool((gram.entries[width:beyond] <= band.residue).all()):
        return False
    offsets = (*range(width), *range(beyond, batches)) if gram.is_circulant else range(batches)
    for offset in offsets:
        entries = gram.entries[offset] if gram.is_circulant else np.diagonal(gram.entries, -offset)
        if offset < width:
            reduced: FloatArray | float = band.diagonals[offset:, offset]
        elif band.cyclic and batches - offset < width:
            reduced = band.diagonals[: batches - offset, batches - offset]
        else:
            reduced = 0.0
        if not bool(np.all(entries <= (reduced + band.residue) * (1.0 + 2.0**-52))):
            return False
    return True


def _largest_outside(gram: Gram, width: int, *, cyclic: bool) -> float:
    batches = gram.batches
    if gram.is_circulant:
        # entries[d] stands for the plain distances d and b - d
        reach = gram.entries[width : batches - width + 1] if cyclic else gram.entries[width:]
        return float(reach.max(initial=0.0))
    worst = 0.0
    for offset in range(width, batches):
        if cyclic and batches - offset < width:
            continue
        worst = max(worst, float(np.diagonal(gram.entries, -offset).max()))
    return worst
