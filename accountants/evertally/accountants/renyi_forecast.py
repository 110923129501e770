"""What a sweep would say at another noise, guessed from the sweeps that were made: no bound, only a guide.

The log of a line's moments is smooth in log sigma, and more so over the moments of a cheap line of the same
size: that ratio is interpolated, order by order, and the least order is taken after it. So the kinks where
one order takes over from another, which throw a secant off, are where they should be.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from evertally.accountants.conversion import log_deltas
from evertally.accountants.renyi import Focus
from evertally.accountants.renyi_lines import Line, floor_moments, is_sweep, line_moments

__all__ = ["forecast_log_delta"]

FloatArray = NDArray[np.float64]

_POINTS = 3
_SMALLEST = 1e-300


def forecast_log_delta(focus: Focus, known: Sequence[float], sigma: float, epsilon: float) -> float:
    """log delta at `epsilon` of these lines; exact (up to rounding) at the last three noises of `known`.

    Args:
        focus: lines, of which the sweeps were made at every noise in `known` up to `focus.last`.
        known: noise multipliers, at least one.
        sigma: the noise to guess at.
        epsilon: privacy loss >= 0.
    """
    guesses = (_interpolated(line, known[-_POINTS:], sigma, focus.last) for line in focus.lines)
    return min(0.0, *(float(log_deltas(moments, epsilon).min()) for moments in guesses))


def _interpolated(line: Line, known: Sequence[float], sigma: float, order_max: int) -> FloatArray:
    """Moments at `sigma` by Lagrange's polynomial in log sigma through the `known` noises."""
    at = math.log(sigma)
    nodes = [math.log(noise) for noise in known]
    shape = _shape(line, sigma, order_max)
    log_ratio = np.zeros_like(shape)
    for i, (noise, node) in enumerate(zip(known, nodes, strict=True)):
        share = math.prod((at - other) / (node - other) for j, other in enumerate(nodes) if j != i)
        found = np.maximum(line_moments(line, noise, order_max), _SMALLEST)
        log_ratio += share * np.log(found / _shape(line, noise, order_max))
    moments = shape * np.exp(np.clip(log_ratio, -700.0, 700.0))
    moments[:2] = 0.0
    return np.asarray(moments)


def _shape(line: Line, sigma: float, order_max: int) -> FloatArray:
    """Moments of about the same form, for next to nothing."""
    if is_sweep(line):
        return np.maximum(floor_moments(line, sigma, order_max), _SMALLEST)
    return np.full(order_max + 1, sigma**-2)
