"""Sensitivity of k participations at least b apart, for R positive and non-increasing.

The worst pattern is 1, 1+b, 1+2b, ... with all contributions of one sign, so
sens^2 = ||sum_{i<k} R e_{1+ib}||^2. docs/proofs/sensitivity-quadrature.md, "Several participations".
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

__all__ = ["COEFFICIENT_MARGIN", "finite_pattern_norm", "infinite_pattern_norm", "rounded_up_sum"]

COEFFICIENT_MARGIN: Final = 1e-11
"""Relative; covers coefficients (error below 1e-13) and summation, with a factor of 50."""


def rounded_up_sum(strategy: NDArray[np.float64]) -> float:
    """sum of r_n^2 over the given coefficients, rounded up."""
    return _up(float(np.dot(strategy, strategy)))


def finite_pattern_norm(strategy: NDArray[np.float64], participations: int, min_separation: int) -> float:
    """sens^2 at clip 1 for a stream of len(strategy) ticks, rounded up.

    >>> round(finite_pattern_norm(np.ones(4), 2, 2), 9)
    10.0
    """
    summed = _pattern(strategy, participations, min_separation)
    return _up(float(np.dot(summed, summed)))


def infinite_pattern_norm(
    strategy: NDArray[np.float64], norm_squared: float, participations: int, min_separation: int
) -> float:
    """Upper bound on sens^2 at clip 1 for ever, from the first coefficients and all of ||R||^2.

    Past the last coefficient N each of the k columns contributes at most r_{n-(k-1)b}, so the rest is
    at most k^2 sum_{n >= N-(k-1)b} r_n^2, which is ||R||^2 less a partial sum.
    """
    reach = max(0, len(strategy) - (participations - 1) * min_separation)
    known = float(np.dot(strategy[:reach], strategy[:reach])) * (1.0 - COEFFICIENT_MARGIN)
    rest = float(participations) ** 2 * max(0.0, norm_squared - known)
    everything = float(participations) ** 2 * norm_squared
    if reach == 0:
        return _up(everything)
    return _up(min(everything, finite_pattern_norm(strategy, participations, min_separation) + rest))


def _pattern(strategy: NDArray[np.float64], k: int, b: int) -> NDArray[np.float64]:
    """u_n = sum_{i<k} r_{n-ib}: sums along each residue class mod b, less what has left the window."""
    n = len(strategy)
    rows = -(-n // b)
    folded = np.zeros(rows * b)
    folded[:n] = strategy
    running = np.cumsum(folded.reshape(rows, b), axis=0)
    if k < rows:
        running[k:] -= running[:-k].copy()
    summed: NDArray[np.float64] = running.ravel()[:n]
    return summed


def _up(x: float) -> float:
    return math.nextafter(x * (1.0 + COEFFICIENT_MARGIN), math.inf)
