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
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

from evertally.accountants.compositions import compositions
from evertally.errors import InvalidParameter

__all__ = ["Engine", "banded_log_moments", "flush_order_max", "sweep_operations"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
Engine = Literal["auto", "numba", "numpy"]

_UNIT = 2.0**-53
_LOG_SMALLEST = math.log(2.3e-308)
_Sweep = Callable[
    [FloatArray, FloatArray, FloatArray, FloatArray, dict[int, FloatArray], "_Tables"], FloatArray
]


@dataclass(frozen=True, slots=True, eq=False)
class _Tables:
    """States (window counts, balls), window sum <= balls <= budget, by (all but oldest, balls, oldest).

    Attributes:
        budget: balls that may still be thrown.
        counts: shape (states, p - 1), newest first.
        balls: shape (states,).
        first, length, group_balls: of the groups that differ in the oldest count only; shape (groups,).
        target: shape (groups, budget + 1): the state reached from a group by n balls (where affordable).
    """

    budget: int
    counts: IntArray
    balls: IntArray
    first: IntArray
    length: IntArray
    group_balls: IntArray
    target: IntArray


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
    sweep = _sweep(engine)
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
    diagonals: FloatArray, starts: IntArray, budget: int, peak: float, own: FloatArray, sweep: _Sweep
) -> FloatArray:
    """Scaled sums over all walks of these starts, by balls thrown after the start; shape (budget + 1,)."""
    head = starts.shape[1]
    used = int(starts[0].sum()) if head else 0
    tables = _tables(budget, diagonals.shape[1] - 1)
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


@lru_cache(maxsize=128)
def _tables(budget: int, window: int) -> _Tables:
    """States and transitions for a window of `window` >= 1 bins."""
    prefixes = np.concatenate(
        [compositions(window - 1, s) for s in range(budget + 1)]
        if window > 1
        else [np.zeros((1, 0), dtype=np.int64)]
    )
    sums = prefixes.sum(axis=1)
    span = budget - sums + 1
    group_prefix = np.repeat(np.arange(sums.size), span)
    group_offset = np.arange(group_prefix.size) - np.repeat(np.cumsum(span) - span, span)
    group_balls = group_offset + sums[group_prefix]
    length = group_offset + 1
    first = np.cumsum(length) - length
    group = np.repeat(np.arange(length.size), length)
    oldest = np.arange(group.size) - first[group]
    counts = np.concatenate([prefixes[group_prefix[group]], oldest[:, None]], axis=1)
    group_of = _prefix_index(prefixes, budget)
    group_start = np.cumsum(span) - span
    target = np.zeros((length.size, budget + 1), dtype=np.int64)
    for n in range(budget + 1):
        live = np.flatnonzero(group_balls + n <= budget)
        old = prefixes[group_prefix[live]]
        moved = np.concatenate([np.full((live.size, 1), n, dtype=np.int64), old], axis=1)
        prefix = group_of[_digits(moved[:, :-1], budget)]
        where = group_start[prefix] + (group_balls[live] + n - sums[prefix])
        target[live, n] = first[where] + moved[:, -1]
    return _Tables(budget, counts, group_balls[group], first, length, group_balls, target)


def _digits(tuples: IntArray, budget: int) -> IntArray:
    value = np.zeros(tuples.shape[0], dtype=np.int64)
    for column in range(tuples.shape[1]):
        value = value * (budget + 1) + tuples[:, column]
    return value


class _PrefixIndex:
    """From a tuple's number in base budget + 1 to its row."""

    def __init__(self, keys: IntArray) -> None:
        self._order = np.argsort(keys)
        self._keys = keys[self._order]

    def __getitem__(self, keys: IntArray) -> IntArray:
        return np.asarray(self._order[np.searchsorted(self._keys, keys)])


def _prefix_index(prefixes: IntArray, budget: int) -> _PrefixIndex:
    return _PrefixIndex(_digits(prefixes, budget))


def _numpy_sweep(
    state: FloatArray,
    diagonals: FloatArray,
    base: FloatArray,
    own: FloatArray,
    touching: dict[int, FloatArray],
    tables: _Tables,
) -> FloatArray:
    counts = tables.counts.astype(np.float64)
    live = [_live(tables, n) for n in range(tables.budget + 1)]
    for i in range(diagonals.shape[1] - 1 if touching else 0, diagonals.shape[0]):
        exponent = (counts @ diagonals[i, 1:] + base)[:, None]
        if i in touching:
            exponent = exponent + touching[i]
        weights = np.exp(np.minimum(exponent, 0.0))
        fresh = np.zeros_like(state)
        for n, (groups, rows, firsts) in enumerate(live):
            kept = state[rows]
            fresh[tables.target[groups, n]] = own[i, n] * np.add.reduceat(kept, firsts, axis=0)
            state[rows] = kept * weights[rows]
        state = fresh
    return state


def _live(tables: _Tables, n: int) -> tuple[IntArray, IntArray, IntArray]:
    """Groups that can still take n balls, their states, and where each group begins among these."""
    live = tables.group_balls + n <= tables.budget
    length = tables.length[live]
    return np.flatnonzero(live), np.flatnonzero(np.repeat(live, tables.length)), np.cumsum(length) - length


@lru_cache(maxsize=1)
def _numba_sweep() -> _Sweep | None:
    try:
        from numba import njit  # noqa: PLC0415  optional, and slow to import
    except ImportError:
        return None
    kernel = njit(nogil=True, fastmath=False)(_kernel)

    def sweep(
        state: FloatArray,
        diagonals: FloatArray,
        base: FloatArray,
        own: FloatArray,
        touching: dict[int, FloatArray],
        tables: _Tables,
    ) -> FloatArray:
        row = np.full(diagonals.shape[0], -1)
        row[list(touching)] = np.arange(len(touching))
        extra = np.array(list(touching.values())) if touching else np.zeros((1, 1))
        shape = (tables.first, tables.length, tables.group_balls, tables.target)
        begin = diagonals.shape[1] - 1 if touching else 0
        own = np.ascontiguousarray(own)
        found = kernel(state, diagonals, tables.counts, base, own, row, extra, *shape, begin)
        return np.asarray(found)

    return sweep


def _kernel(  # noqa: PLR0912  one loop nest, compiled as it stands
    state: FloatArray,
    diagonals: FloatArray,
    counts: IntArray,
    base: FloatArray,
    own: FloatArray,
    row: IntArray,
    extra: FloatArray,
    first: IntArray,
    length: IntArray,
    balls: IntArray,
    target: IntArray,
    begin: int,
) -> FloatArray:
    """`_numpy_sweep`, loop by loop."""
    states, columns = state.shape
    fresh = np.zeros_like(state)
    exponent = np.empty(states)
    weight = np.empty(columns)
    for i in range(begin, diagonals.shape[0]):
        for r in range(states):
            total = base[r]
            for d in range(counts.shape[1]):
                total += counts[r, d] * diagonals[i, d + 1]
            exponent[r] = total if row[i] >= 0 else np.exp(min(total, 0.0))
        fresh[:] = 0.0
        for g in range(first.size):
            room = own.shape[1] - balls[g]
            if columns == 1 and row[i] < 0:
                for n in range(room):
                    found = 0.0
                    for r in range(first[g], first[g] + length[g]):
                        found += state[r, 0]
                        state[r, 0] *= exponent[r]
                    fresh[target[g, n], 0] = found * own[i, n]
                continue
            for r in range(first[g], first[g] + length[g]):
                if row[i] >= 0:
                    for c in range(columns):
                        weight[c] = np.exp(min(exponent[r] + extra[row[i], c], 0.0))
                for n in range(room):
                    to = target[g, n]
                    for c in range(columns):
                        fresh[to, c] += state[r, c]
                    if row[i] >= 0:
                        for c in range(columns):
                            state[r, c] *= weight[c]
                    else:
                        w = exponent[r]
                        for c in range(columns):
                            state[r, c] *= w
            for n in range(room):
                for c in range(columns):
                    fresh[target[g, n], c] *= own[i, n]
        state, fresh = fresh, state
    return state


def _sweep(engine: Engine) -> _Sweep:
    if engine == "numpy":
        return _numpy_sweep
    found = _numba_sweep()
    if found is None and engine == "numba":
        raise InvalidParameter("engine", engine, "an installed engine: pip install evertally[numba]")
    return found or _numpy_sweep
