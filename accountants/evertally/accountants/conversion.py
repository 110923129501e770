"""From Renyi divergences to (epsilon, delta), at integer orders.

Reference: Canonne, Kamath and Steinke, arXiv 2004.00010, proposition 12.
"""

from __future__ import annotations

import math
import sys

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "epsilon_from_moments",
    "epsilons",
    "fractional_moment",
    "log_delta_from_moments",
    "log_deltas",
]

FloatArray = NDArray[np.float64]

SMALLEST_DELTA = sys.float_info.min
_UNIT = 2.0**-53


def log_deltas(moments: FloatArray, epsilon: float) -> FloatArray:
    """log delta by each order a = 2..A, shape (A - 1,).

    Args:
        moments: shape (A + 1,), the log moments (a - 1) R_a >= 0 of orders a = 0..A.
        epsilon: privacy loss >= 0.

    delta = exp((a - 1)(R_a - epsilon)) / (a - 1) (1 - 1/a)^a.
    """
    orders = np.arange(2, moments.size, dtype=np.float64)
    fixed = orders * np.log1p(-1.0 / orders) - np.log(orders - 1.0)
    reached = moments[2:] - (orders - 1.0) * epsilon + fixed
    reached += 8.0 * _UNIT * (moments[2:] + (orders - 1.0) * epsilon + 4.0 * orders)
    return np.asarray(reached)


def log_delta_from_moments(moments: FloatArray, epsilon: float) -> tuple[float, int]:
    """log delta (at most 0), the least over the orders, and the order that gives it."""
    reached = log_deltas(moments, epsilon)
    best = int(np.argmin(reached))
    return min(0.0, float(reached[best])), best + 2


def epsilons(moments: FloatArray, delta: float) -> FloatArray:
    """epsilon by each order a = 2..A, shape (A - 1,).

    epsilon = R_a + log((a - 1)/a) - (log delta + log a)/(a - 1).
    """
    orders = np.arange(2, moments.size, dtype=np.float64)
    divergence = moments[2:] / (orders - 1.0)
    shift = np.log1p(-1.0 / orders) - (math.log(delta) + np.log(orders)) / (orders - 1.0)
    reached = divergence + shift + 8.0 * _UNIT * (divergence + np.abs(shift) + 1.0)
    return np.asarray(reached)


def epsilon_from_moments(moments: FloatArray, delta: float) -> tuple[float, int]:
    """epsilon >= 0, the least over the orders, and the order that gives it."""
    reached = epsilons(moments, delta)
    best = int(np.argmin(reached))
    return max(0.0, float(reached[best])), best + 2


def fractional_moment(moments: FloatArray, order: float) -> float:
    """(a - 1) R_a at a real order 1 < a <= A: linear between integers, since it is convex in a."""
    below = math.floor(order)
    if below == order:
        return float(moments[below])
    share = order - below
    return float((1.0 - share) * moments[below] + share * moments[below + 1]) * (1.0 + 4.0 * _UNIT)
