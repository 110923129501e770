"""A certified lower bound on the privacy loss of any strategy under random allocation.

Kahane's inequality turned round: entries of the Gram matrix lowered to a multiple of the identity leave
random allocation of b bins with orthogonal means of squared norm d = min_i D_i, whose exact privacy loss
no mechanism with this Gram matrix undercuts. For C >= 0, D_i = G_ii and the bound speaks of the
dominating pair, which the mechanism attains; with mixed signs D_i = max(|sum_j C_j|^2, sum_j |C_j|^2)
over the columns of bin i, and the bound speaks of the mechanism itself.

Reference: docs/proofs/kahane.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from evertally.accountants.bound import LowerScope
from evertally.accountants.gram import Gram
from evertally.accountants.random_allocation import CELLS, DIRECTIONS, RandomAllocationPLD
from evertally.validation import positive_real

__all__ = ["CELLS", "COARSE_CELLS", "LowerBound", "delta", "epsilon"]

COARSE_CELLS = 64
"""Enough to find where to look."""


@dataclass(frozen=True, slots=True)
class LowerBound:
    """A certified lower bound: its value and what it speaks of."""

    value: float
    scope: LowerScope


def delta(
    gram: Gram, sigma: float, epsilon: float, cells: int = CELLS, directions: Sequence[str] = DIRECTIONS
) -> LowerBound:
    """Lower bound on delta at `epsilon`, the largest over `directions`."""
    plds = _plds(gram, sigma, cells, directions)
    return LowerBound(max((pld.delta(epsilon) for pld in plds), default=0.0), gram.lower_scope)


def epsilon(
    gram: Gram, sigma: float, delta: float, cells: int = CELLS, directions: Sequence[str] = DIRECTIONS
) -> LowerBound:
    """Lower bound on the epsilon at `delta`, the largest over `directions`."""
    plds = _plds(gram, sigma, cells, directions)
    return LowerBound(max((pld.epsilon(delta) for pld in plds), default=0.0), gram.lower_scope)


def _plds(gram: Gram, sigma: float, cells: int, directions: Sequence[str]) -> list[RandomAllocationPLD]:
    positive_real("sigma", sigma)
    if gram.lower_diagonal <= 0.0:
        return []
    scaled = sigma / math.sqrt(gram.lower_diagonal)
    return [RandomAllocationPLD(gram.batches, scaled, d, upper=False, cells=cells) for d in directions]
