"""Renyi moments in the add direction for C = I, by the Laplace transform: validated, from above.

With S = (1/b) sum_i e^{X_i}, X_i ~ N(-g/2, g) independent, and c = a - 1,
E_P[(Q/P)^a] = E S^-c = 1/Gamma(c) int t^(c-1) L(t) dt, L(t) = E e^(-tS) = phi(t/b)^b, phi(u) = E e^(-u e^X).
Because E S = 1, the moment minus one is the integral of t^(c-1) (L(t) - e^-t) / Gamma(c), whose integrand is
positive: small divergences keep their relative accuracy.

Both integrals are taken by the trapezoidal rule in log t and in the normal variable, whose integrands are
analytic in a strip; |L(t e^(i theta))| <= L(t cos theta) turns the classical bound into a relative one,
2 cos(theta)^-c / (e^(2 pi theta / h) - 1), which is added, as are the tails (L is log-concave in log t) and
a margin for rounding. See docs/proofs/renyi.md.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

__all__ = ["allocation_add_log_moments"]

FloatArray = NDArray[np.float64]

_STEP = 0.05
_LOG_T_MIN = -16.0
_LOG_T_MAX = 200.0
_REACH = 14.0
_PHI_ERROR = 1e-42
_SWITCH = 30.0
_ROUNDING = 1e-11
_NODES_MAX = 4000
_SHIFT_MAX = 8.0
_DEPTH = 60.0
_LOG_PHI_MIN = -78.0


def allocation_add_log_moments(batches: int, g: float, order_max: int) -> FloatArray:
    """log E_P[(Q/P)^a] for a = 0..order_max, rounded up, of `batches` equal bins with G_ii / sigma^2 = g.

    Entries 0 and 1 are 0. An order whose moment lives where the quadrature does not reach (large g a^2 / b^2)
    is bounded by the moment without amplification, g a (a - 1) / 2.
    """
    orders = np.arange(order_max + 1, dtype=np.float64)
    plain = g * orders * (orders - 1.0) / 2.0 * (1.0 + 2.0**-50)
    reached = np.flatnonzero((orders >= 2) & ((orders - 1.0) * math.sqrt(g) / batches <= _SHIFT_MAX))
    if batches == 1 or reached.size == 0 or _node_count(g) > _NODES_MAX:
        return plain
    powers = orders[reached] - 1.0
    log_t, log_excess = _log_excess(batches, g, 2.0 ** math.ceil(math.log2(max(powers[-1], 256.0))))
    terms = powers[:, None] * log_t[None, :] + log_excess[None, :]
    top = terms.max(axis=1)
    past = np.arange(log_t.size)[None, :] > terms.argmax(axis=1)[:, None]
    dead = past & (terms < top[:, None] - _DEPTH)
    end = np.where(dead.any(axis=1), dead.argmax(axis=1), log_t.size - 1)
    index = np.arange(powers.size)
    total = np.where(np.arange(log_t.size) <= end[:, None], np.exp(terms - top[:, None]), 0.0).sum(axis=1)
    with np.errstate(over="ignore", divide="ignore"):
        # geometric tails: the summand is log-concave on the right, and at most linear in t on the left
        last = np.exp(terms[index, end] - top)
        ratio = np.exp(np.minimum(terms[index, end] - terms[index, end - 8], 0.0) / 8.0)
        total += np.where(ratio < 0.999, last * ratio / np.maximum(1.0 - ratio, 1e-3), np.inf)
        total += np.exp(terms[:, 0] - top) / np.expm1(_STEP * (powers + 1.0))
        excess = np.exp(top + np.log(_STEP * total) - gammaln(powers))
        excess = excess * (1.0 + _ROUNDING) + _strip_error(powers) * (2.0 + excess)
        moments = plain.copy()
        moments[reached] = np.minimum(plain[reached], np.log1p(excess))
    return moments


def _node_step(g: float) -> float:
    half_width = min(10.0, math.pi / (2.0 * math.sqrt(g))) if g > 0.0 else 10.0
    return 2.0 * math.pi * half_width / (100.0 + half_width**2 / 2.0)


def _node_count(g: float) -> int:
    return math.ceil((2.0 * _REACH + math.sqrt(g)) / _node_step(g))


def _normal_nodes(g: float) -> tuple[FloatArray, FloatArray]:
    """Values of Y - 1 = e^X - 1 at the nodes, and their weights."""
    step = _node_step(g)
    z = -_REACH + step * np.arange(_node_count(g) + 1)
    weights = np.exp(-z * z / 2.0) * (step / math.sqrt(2.0 * math.pi))
    with np.errstate(over="ignore"):
        return np.minimum(np.expm1(math.sqrt(g) * z - g / 2.0), 1e300), weights


@lru_cache(maxsize=512)
def _log_excess(batches: int, g: float, power: float) -> tuple[FloatArray, FloatArray]:
    """Grid of log t, and log(L(t) - e^-t) on it, far enough for t^power L(t) to have died out."""
    less_one, weights = _normal_nodes(g)
    power = min(power, max(1.0, _SHIFT_MAX * batches / math.sqrt(g)))
    log_t: list[FloatArray] = []
    values: list[FloatArray] = []
    start, top = _LOG_T_MIN, -math.inf
    while True:
        block = start + _STEP * np.arange(64)
        found = _block(batches, np.exp(block), less_one, weights)
        log_t.append(block)
        values.append(found)
        shape = power * block + found
        top = max(top, float(shape.max()))
        start = float(block[-1]) + _STEP
        # every smaller power has died out, measured from its own peak, when this one has; and the grid ends
        # where phi comes near the error that is added to it
        died = block[-1] > math.log(power + 2.0) and shape[-1] < top - _DEPTH and found[-1] < -_DEPTH
        if died or found[-1] < batches * _LOG_PHI_MIN or block[-1] > _LOG_T_MAX:
            break
    return np.concatenate(log_t), np.concatenate(values)


def _block(batches: int, t: FloatArray, less_one: FloatArray, weights: FloatArray) -> FloatArray:
    u = t / batches
    exponent = np.empty_like(t)
    low = u <= _SWITCH
    if low.any():
        rho = _second_difference(u[low, None] * less_one[None, :]) @ weights
        exponent[low] = batches * np.log1p(np.maximum(rho, 0.0) + _PHI_ERROR)
    if not low.all():
        with np.errstate(over="ignore", under="ignore"):
            phi = np.exp(-u[~low, None] * (1.0 + less_one[None, :])) @ weights
        exponent[~low] = t[~low] + batches * np.log(phi + _PHI_ERROR)
    exponent = np.maximum(exponent, 1e-300)
    return np.asarray(exponent - t + np.log(-np.expm1(-exponent)))


def _second_difference(x: FloatArray) -> FloatArray:
    """e^-x - 1 + x, accurate near 0."""
    with np.errstate(over="ignore", invalid="ignore"):
        series = x * x * (0.5 - x * (1 / 6 - x * (1 / 24 - x * (1 / 120 - x * (1 / 720 - x / 5040)))))
        return np.where(np.abs(x) < 0.02, series, np.expm1(-x) + x)


def _strip_error(powers: FloatArray) -> FloatArray:
    """The least, over strip widths theta, of the trapezoidal rule's relative error."""
    theta = np.linspace(0.05, 1.5, 30)
    with np.errstate(over="ignore"):
        bound = -powers[:, None] * np.log(np.cos(theta))[None, :] - np.log(
            np.expm1(2.0 * math.pi * theta / _STEP)
        )
    return np.asarray(2.0 * np.exp(np.minimum(bound.min(axis=1), 700.0)))
