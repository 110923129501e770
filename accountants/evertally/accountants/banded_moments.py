"""All Renyi moments of a banded Gram matrix in one sweep over the bins.

E_Q[(P/Q)^a] = b^-a a! sum over counts n_1 + ... + n_b = a of prod 1/n_i! exp(sum_i G_ii n_i (n_i - 1) / 2
+ sum_{i<j} G_ij n_i n_j), G being divided by sigma^2. When G_ij = 0 beyond distance p - 1, the sum is a walk
over bins whose state is the counts of the last p - 1 bins and the number of balls so far. Where G wraps
around, the counts of the first p - 1 bins (the "start") are conditioned on; all starts of one sum share
their tables, so they are the columns of one array.

The walk runs in the linear domain, scaled by exp(-g t (t - 1) / 2) with g = max G and t the balls so far,
starts included: every factor is then at most 1, so nothing overflows, and the result is at least 1/a!
(docs/proofs/renyi.md). numba runs the inner loop where it is installed; numpy does otherwise.

Reference: arXiv 2601.21636 (the dynamic programme; its printed formula carries the wrong sign of a log b).
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

from evertally.accountants.banded_sweep import Engine, Sweep, sweep_of, tables_of
from evertally.accountants.compositions import compositions
from evertally.errors import InvalidParameter

__all__ = ["banded_log_moments", "flush_order_max", "sweep_operations"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

_UNIT = 2.0**-53
_LOG_SMALLEST = math.log(2.3e-308)


def banded_log_moments(
    diagonals: FloatArray, order_max: int, *, cyclic: bool, engine: Engine = "auto"
) -> FloatArray:
    """log E_Q[(P/Q)^a] for a = 0..order_max, each rounded up; entries 0 and 1 are 0.

    Args:
        diagonals: shape (b, p), p >= 2: G[i, (i - d) mod b] / sigma^2, every entry finite and >= 0.
        order_max: largest order, at most `flush_order_max(b)`.
        cyclic: whether pairs across the end count (needs b >= 2 p - 1: below, distances coincide).
        engine: "auto" takes numba where it is installed.

    Raises:
        InvalidParameter: b < 2 p - 1 with cyclic, or order_max beyond what underflow allows.
    """
    batches, width = diagonals.shape
    if cyclic and batches < 2 * width - 1:
        raise InvalidParameter("bands", width, f"at most {(batches + 1) // 2} for {batches} cyclic bins")
    if not 2 <= order_max <= flush_order_max(batches):
        raise InvalidParameter("order_max", order_max, f"2..{flush_order_max(batches)} for {batches} bins")
    sweep = sweep_of(engine)
    peak = float(diagonals.max())
    orders = np.arange(order_max + 1, dtype=np.float64)
    log_factorial = np.array([math.lgamma(n + 1.0) for n in range(order_max + 1)])
    pairs = orders * (orders - 1.0) / 2.0
    own = np.exp((diagonals[:, :1] - peak) * pairs - log_factorial)
    total = np.zeros(order_max + 1)
    head = width - 1 if cyclic else 0
    for used in range(order_max + 1 if cyclic else 1):
        starts = compositions(head, used)
        final = _walk(diagonals, starts, order_max - used, peak, own, sweep)
        total[used:] += final
    with np.errstate(divide="ignore"):
        constant = pairs * peak + log_factorial - orders * math.log(batches)
        moments = np.log(total) + constant
    rounding = (
        batches * (orders + 2.0) + 30.0 * orders + 12.0 * (pairs * peak + orders * math.log(batches) + 4.0)
    )
    moments += 2.0 * _UNIT * (rounding + log_factorial)
    moments[:2] = 0.0
    return np.asarray(np.maximum(moments, 0.0))


def sweep_operations(batches: int, width: int, order_max: int, *, cyclic: bool) -> float:
    """Multiply-adds of one sweep, in the leading term."""
    depth = 2 * width if cyclic else width + 1
    return float(batches) * float(math.comb(order_max + depth, depth))


@lru_cache(maxsize=256)
def flush_order_max(batches: int) -> int:
    """Largest order at which underflow loses below 1e-15 of the moment: b (b+a-1)!/(b-1)! 2.3e-308."""
    order = 1
    log_terms = 2.0 * math.log(batches)
    while log_terms + math.log(batches + order) + _LOG_SMALLEST <= math.log(1e-15):
        log_terms += math.log(batches + order)
        order += 1
    return order


def _walk(
    diagonals: FloatArray, starts: IntArray, budget: int, peak: float, own: FloatArray, sweep: Sweep
) -> FloatArray:
    """Scaled sums over all walks of these starts, by balls thrown after the start; shape (budget + 1,)."""
    head = starts.shape[1]
    used = int(starts[0].sum()) if head else 0
    tables = tables_of(budget, diagonals.shape[1] - 1)
    state = np.zeros((tables.balls.size, starts.shape[0]))
    state[0] = _start_weights(diagonals, starts, peak, used)
    base = -peak * (tables.balls + used)
    state = sweep(state, diagonals, base, own[:, : budget + 1], _touching(diagonals, starts), tables)
    return np.asarray(np.bincount(tables.balls, state.sum(axis=1), budget + 1), dtype=np.float64)


def _start_weights(diagonals: FloatArray, starts: IntArray, peak: float, used: int) -> FloatArray:
    """Scaled weight of the balls in the first bins; shape (starts,)."""
    counts = starts.astype(np.float64)
    exponent = np.full(counts.shape[0], -peak * used * (used - 1) / 2.0)
    for i in range(counts.shape[1]):
        exponent += diagonals[i, 0] * counts[:, i] * (counts[:, i] - 1.0) / 2.0
        exponent -= gammaln(counts[:, i] + 1.0)
        for d in range(1, i + 1):
            exponent += diagonals[i, d] * counts[:, i] * counts[:, i - d]
    return np.asarray(np.exp(exponent))


def _touching(diagonals: FloatArray, starts: IntArray) -> dict[int, FloatArray]:
    """For bins within the band of a start bin, either way round: the exponent per ball; shape (starts,)."""
    batches, width = diagonals.shape
    head = starts.shape[1]
    found = {}
    near = range(head, min(head + width - 1, batches))
    for i in sorted({*near, *range(max(head, batches - width + 1), batches)}) if head else ():
        coefficient = np.zeros(head)
        for j in range(head):
            if i - j < width:
                coefficient[j] += diagonals[i, i - j]
            if j + batches - i < width:
                coefficient[j] += diagonals[j, j + batches - i]
        found[i] = starts @ coefficient
    return found
