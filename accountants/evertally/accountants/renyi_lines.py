"""The upper bounds on Renyi moments, each a line over the orders; their minimum is the accountant's curve.

remove: the banded sweep at several widths (with the residue of what it cuts off), exact sums for the lowest
orders or few bins, the colour bound and the Gaussian without amplification. add: exact for C = I, else the
colour bound, the closed form and the Gaussian. See docs/proofs/renyi.md, truncation.md and domination.md.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol, TypeGuard

import numpy as np
from numpy.typing import NDArray

from evertally.accountants.banded_moments import banded_log_moments
from evertally.accountants.bound import Direction
from evertally.accountants.gram import Gram
from evertally.accountants.negative_moments import allocation_add_log_moments
from evertally.accountants.small_moments import (
    diagonal_log_moments,
    direct_log_moments,
    enumerated_log_moments,
    enumeration_terms,
)
from evertally.accountants.truncation import Band
from evertally.errors import InvalidParameter
from evertally.validation import positive_real

__all__ = [
    "AllocationAddLine",
    "BandLine",
    "ClosedAddLine",
    "ColourLine",
    "Colouring",
    "DirectLine",
    "EnumeratedLine",
    "GaussianLine",
    "Line",
    "floor_moments",
    "is_sweep",
    "least_moments",
    "line_moments",
    "scaled_entry",
]

FloatArray = NDArray[np.float64]

_SCALED_MAX = 1e12
_ENUMERATED_MAX = 20_000


class Line(Hashable, Protocol):
    """An upper bound on log moments (a - 1) R_a at any noise; hashable."""

    def moments(self, scale: float, order_max: int) -> FloatArray:
        """Orders 0..m for some m <= order_max, `scale` being 1 / sigma^2; shape (m + 1,)."""
        ...


def scaled_entry(entry: float, sigma: float) -> float:
    """entry / sigma^2, rounded up; refuses noise so small or so large that nothing can be said."""
    sigma = positive_real("noise_multiplier", sigma, high=1e9)
    scaled = entry / sigma / sigma
    if not scaled <= _SCALED_MAX:
        raise InvalidParameter("noise_multiplier", sigma, f"at least {math.sqrt(entry / _SCALED_MAX):.3g}")
    return scaled * (1.0 + 2.0**-50)


def least_moments(found: Sequence[Line], sigma: float, order_max: int) -> FloatArray:
    """The minimum over lines, order by order; the first line must reach `order_max`."""
    scale = scaled_entry(1.0, sigma)
    best = _line_moments(found[0], scale, order_max).copy()
    for line in found[1:]:
        moments = _line_moments(line, scale, order_max)
        np.minimum(best[: moments.size], moments, out=best[: moments.size])
    return best


def line_moments(line: Line, sigma: float, order_max: int) -> FloatArray:
    """One line's moments at one noise, kept for the next time; read-only."""
    return _line_moments(line, scaled_entry(1.0, sigma), order_max)


def is_sweep(line: Line) -> TypeGuard[BandLine | DirectLine]:
    """Whether a line takes so long that its floor is worth a look first."""
    return isinstance(line, DirectLine) or (isinstance(line, BandLine) and line.band.diagonals.shape[1] > 1)


def floor_moments(line: BandLine | DirectLine, sigma: float, order_max: int) -> FloatArray:
    """What a sweep certainly does not undercut, for next to nothing; orders up to its reach.

    Off its diagonal the band's entries may be left out, and the diagonal lowered to its least entry
    (moments rise with every entry); the residue stays.
    """
    scale = scaled_entry(1.0, sigma)
    orders = min(order_max, line.reach)
    return _equal_moments(line.batches, line.least * scale, orders) + _gaussian_moments(
        line.residue * scale, orders
    )


@dataclass(frozen=True, slots=True)
class GaussianLine:
    """The mechanism without amplification: R_a <= a max G / (2 sigma^2)."""

    entry: float

    def moments(self, scale: float, order_max: int) -> FloatArray:
        """All orders."""
        return _gaussian_moments(self.entry * scale, order_max)


@dataclass(frozen=True, slots=True, eq=False)
class BandLine:
    """The sweep over one band, plus the Gaussian of its residue.

    Attributes:
        band: reduced diagonals and residue.
        reach: largest order that the sweep affords.
    """

    band: Band
    reach: int

    @property
    def batches(self) -> int:
        """Number of bins b."""
        return int(self.band.diagonals.shape[0])

    @property
    def least(self) -> float:
        """Smallest diagonal entry."""
        return float(self.band.diagonals[:, 0].min())

    @property
    def residue(self) -> float:
        """Largest entry outside the band."""
        return self.band.residue

    def moments(self, scale: float, order_max: int) -> FloatArray:
        """Orders up to `reach`."""
        order_max = min(order_max, self.reach)
        diagonals = self.band.diagonals * scale
        if diagonals.shape[1] == 1:
            swept = diagonal_log_moments(diagonals[:, 0], order_max)
        else:
            swept = banded_log_moments(diagonals, order_max, cyclic=self.band.cyclic)
        return swept + _gaussian_moments(self.band.residue * scale, order_max)


@dataclass(frozen=True, slots=True)
class DirectLine:
    """Exact moments of the lowest orders, by matrix products."""

    gram: Gram
    reach: int

    @property
    def batches(self) -> int:
        """Number of bins b."""
        return self.gram.batches

    @property
    def least(self) -> float:
        """Smallest diagonal entry."""
        return float(self.gram.diagonal.min())

    @property
    def residue(self) -> float:
        """Nothing is left out."""
        return 0.0

    def moments(self, scale: float, order_max: int) -> FloatArray:
        """Orders up to `reach` <= 4."""
        return direct_log_moments(self.gram.matrix * scale, min(order_max, self.reach))


@dataclass(frozen=True, slots=True)
class EnumeratedLine:
    """Exact moments of few bins, by visiting every count vector."""

    gram: Gram

    def moments(self, scale: float, order_max: int) -> FloatArray:
        """Orders up to where the count vectors become too many."""
        while order_max > 2 and enumeration_terms(self.gram.batches, order_max) > _ENUMERATED_MAX:
            order_max -= 1
        return enumerated_log_moments(self.gram.matrix * scale, order_max)


@dataclass(frozen=True, slots=True)
class AllocationAddLine:
    """The add direction of C = I, exactly."""

    batches: int
    entry: float

    def moments(self, scale: float, order_max: int) -> FloatArray:
        """All orders."""
        return allocation_add_log_moments(self.batches, self.entry * scale, order_max)


@dataclass(frozen=True, slots=True)
class ClosedAddLine:
    """R_a <= tr G / (2 b s^2) + (a - 1) sum G / (2 b^2 s^2): valid, but its first term is not amplified."""

    mean_diagonal: float
    mean_entry: float

    def moments(self, scale: float, order_max: int) -> FloatArray:
        """All orders."""
        less = np.arange(-1.0, order_max)
        # the means are sums of up to b^2 positive terms: the margin covers their rounding
        moments = less * scale * (self.mean_diagonal + less * self.mean_entry) / 2.0 * (1.0 + 2.0**-24)
        moments[:2] = 0.0
        return moments


Colouring = tuple[tuple[int, int, float, float], ...]


@dataclass(frozen=True, slots=True)
class ColourLine:
    """The colour bound: the moment is at most the classes' average; a class is C = I and one common Gaussian.

    Attributes:
        colouring: (bins in all, class size, max G_ii, max G_ij within a class) for each size of class.
        batches: b.
        direction: "remove" or "add".
    """

    colouring: Colouring
    batches: int
    direction: Direction

    def moments(self, scale: float, order_max: int) -> FloatArray:
        """All orders."""
        found = []
        for bins, size, peak, residue in self.colouring:
            spread = max(peak - residue, peak * 2.0**-50) * scale * (1.0 + 2.0**-50)
            if self.direction == "remove":
                allocation = diagonal_log_moments(np.full(size, spread), order_max)
            else:
                allocation = allocation_add_log_moments(size, spread, order_max)
            common = _gaussian_moments(residue * scale, order_max)
            found.append(allocation + common + math.log(bins / self.batches))
        averaged = np.maximum(np.logaddexp.reduce(np.array(found), axis=0), 0.0)
        averaged = averaged * (1.0 + 2.0**-49) + 2.0**-49
        averaged[:2] = 0.0
        return np.asarray(averaged)


@lru_cache(maxsize=256)
def _equal_moments(batches: int, entry: float, order_max: int) -> FloatArray:
    return diagonal_log_moments(np.full(batches, entry), order_max)


@lru_cache(maxsize=4096)
def _line_moments(line: Line, scale: float, order_max: int) -> FloatArray:
    moments = line.moments(scale, order_max)
    moments.setflags(write=False)
    return moments


def _gaussian_moments(scaled: float, order_max: int) -> FloatArray:
    orders = np.arange(order_max + 1, dtype=np.float64)
    moments = orders * (orders - 1.0) / 2.0 * scaled * (1.0 + 2.0**-50)
    moments[:2] = 0.0
    return moments
