"""What the two enclosures of a sum of lognormals share: grids, cells, doubling, and the law they end in."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from evertally.accountants.normal import normal_mass

__all__ = [
    "MASS_MARGIN",
    "TAIL_MASS",
    "VALUE_MARGIN",
    "Law",
    "base_cells",
    "base_nodes",
    "by_doubling",
    "put_in",
    "round_copies",
    "sum_first",
]

Array = NDArray[np.float64]
_Sum = TypeVar("_Sum")

VALUE_MARGIN = 1e-11
"""Relative rounding of the support points, generously."""
MASS_MARGIN = 4e-12
"""Relative rounding of the masses, generously, per copy: errors of a factor add up in a product."""
_TAIL_SDS = 8.5
TAIL_MASS = 1e-18
"""Mass (or mean) below which the ends of a grid are cut at one step."""
_SIGNIFICANT_BITS = 10
"""Numbers of copies are rounded, to the safe side, to this many bits: 0.1 % of b, and log2 b sums suffice."""


@dataclass(frozen=True, slots=True)
class Law:
    """A discrete law of W.

    Attributes:
        log_values: log of the support points, ascending, shape (n,); the point 0 is apart.
        masses: probability (under the noise-only law Q) of each point, shape (n,).
        zero: probability of W = 0.
        excess: mean of W that lies beyond the support (mass of the first law at infinite loss).
    """

    log_values: Array
    masses: Array
    zero: float
    excess: float


def base_nodes(variance: float, cells: int) -> tuple[float, int, Array]:
    """Step, first index and nodes (logs) of a grid of one lognormal, _TAIL_SDS deviations to both sides
    under both laws of the pair.
    """
    sd = math.sqrt(variance)
    low, high = -variance / 2 - _TAIL_SDS * sd, variance / 2 + _TAIL_SDS * sd
    step = (high - low) / cells
    first = math.floor(low / step)
    return step, first, (first + np.arange(cells + 2)) * step


def base_cells(nodes: Array, variance: float) -> tuple[Array, Array]:
    """Mass and mean of the lognormal in the cells cut by `nodes`, both tails included: shape (n+1,)."""
    sd = math.sqrt(variance)
    edges = np.concatenate([[-np.inf], nodes, [np.inf]])
    return normal_mass((edges + variance / 2) / sd), normal_mass((edges - variance / 2) / sd)


def round_copies(copies: int, *, up: bool) -> int:
    """A number of copies of few significant bits, not above (or not below) the given one."""
    shift = max(0, copies.bit_length() - _SIGNIFICANT_BITS)
    return (-(-copies >> shift) if up else copies >> shift) << shift


def by_doubling(
    power: _Sum, copies: int, join: Callable[[_Sum, _Sum], _Sum], double: Callable[[_Sum], _Sum]
) -> _Sum:
    """The sum of `copies` independent copies of `power`, by the bits of the number."""
    total: _Sum | None = None
    while True:
        if copies & 1:
            total = power if total is None else join(total, power)
        copies >>= 1
        if not copies:
            assert total is not None
            return total
        power = double(power)


def sum_first(i: int, j: int, step: float) -> int:
    """Index at or below the sum of the points i and j (one less than exact where rounding could tell)."""
    return max(i, j) + math.floor(math.log1p(math.exp(-abs(i - j) * step)) / step) - 1


def put_in(out: Array, at: int, values: Array) -> None:
    """Add `values` to out[at:]; what would fall off an end is zero by the choice of the range."""
    low, high = max(0, -at), min(len(values), len(out) - at)
    if low < high:
        out[at + low : at + high] += values[low:high]
