"""The product of per-row mixtures that dominates a matrix mechanism outside its bad events.

Row n is dominated by sum_i w_i N(m_{i,n}, s^2) against N(0, s^2), with w_i = h_i prod (1 - h_j) over the bins
j of larger mean: more hazard moves mass to larger means, which only helps the adversary, so hazards are
rounded up to a geometric grid (and clipped to 1) before the weights are formed. Equal rows share one
distribution.
"""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
from numpy.typing import NDArray

from evertally.accountants.cc_hazards import HazardTests
from evertally.accountants.pld import PLD, compose, mixture_pld

__all__ = ["product_pld", "row_mixtures"]

Array = NDArray[np.float64]

_RATIOS = (1.01, 1.02, 1.05, 1.1, 1.25, 1.6, 2.5, 10.0)
_KINDS_MAX = 400
_STEP = 1e-3
_POINTS_MAX = 10_000
_STEP_SHARE = 0.5

Mixture = tuple[tuple[float, ...], tuple[float, ...]]


def row_mixtures(tests: HazardTests, hazards: Array, ratio: float) -> Counter[Mixture]:
    """The rows as (means, hazards rounded up), in falling order of mean, with their numbers."""
    with np.errstate(divide="ignore"):
        exponents = np.ceil(np.log(hazards) / math.log(ratio) - 1e-9)
    rounded = np.minimum(1.0, np.maximum(hazards, np.exp(exponents * math.log(ratio)) * (1.0 + 1e-12)))
    rounded = np.where(tests.informed, np.maximum(rounded, hazards), hazards)
    rows: Counter[Mixture] = Counter()
    for part in np.split(np.arange(len(tests.row)), np.flatnonzero(np.diff(tests.row)) + 1):
        means = tuple((np.ceil(tests.mean[part] * 1e12) / 1e12 * (1.0 + 2.0**-50)).tolist())
        rows[means, tuple(rounded[part].tolist())] += 1
    return rows


def product_pld(tests: HazardTests, hazards: Array, sigma: float, epsilon: float, direction: str) -> PLD:
    """The composition of all rows at these hazards, sharp near `epsilon`.

    The grids of hazards and losses are coarsened until the work is bounded: the bound widens, it stays valid.
    """
    for ratio in _RATIOS:
        rows = row_mixtures(tests, hazards, ratio)
        if len(rows) <= _KINDS_MAX:
            break
    step = _step(tests, hazards, sigma)
    parts: list[tuple[PLD, int]] = []
    for (means, row_hazards), count in rows.items():
        h = np.array(row_hazards)
        weights = h * np.concatenate([[1.0], np.cumprod(1.0 - h)[:-1]])
        rest = float(np.prod(1.0 - h))
        pld = mixture_pld(np.append(weights, rest), np.append(means, 0.0), sigma, step, direction)
        parts.append((pld, count))
    return compose(parts, epsilon)


def _step(tests: HazardTests, hazards: Array, sigma: float) -> float:
    """Fine against the spread of one row's loss, but not beyond the points that can be afforded."""
    mu = tests.mean / sigma
    variances = hazards**2 * np.expm1(np.minimum(mu**2, 600.0))
    spread = math.sqrt(float(variances.sum()) / tests.rows)
    top = float(mu.max())
    return max(min(_STEP, _STEP_SHARE * spread), top * (0.5 * top + 9.5) / _POINTS_MAX)
