"""The walk over bins behind `banded_moments`: its states, its moves, and the loop, by numba or by numpy.

A state is the counts of the last p - 1 bins and the number of balls so far. States that differ in the oldest
count alone form a group: a move of n balls takes a whole group to one state.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from evertally.accountants.compositions import compositions
from evertally.errors import InvalidParameter

__all__ = ["Engine", "Sweep", "Tables", "sweep_of", "tables_of"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
Engine = Literal["auto", "numba", "numpy"]

Sweep = Callable[
    [FloatArray, FloatArray, FloatArray, FloatArray, dict[int, FloatArray], "Tables"], FloatArray
]


@dataclass(frozen=True, slots=True, eq=False)
class Tables:
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


@lru_cache(maxsize=128)
def tables_of(budget: int, window: int) -> Tables:
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
    return Tables(budget, counts, group_balls[group], first, length, group_balls, target)


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
    tables: Tables,
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


def _live(tables: Tables, n: int) -> tuple[IntArray, IntArray, IntArray]:
    """Groups that can still take n balls, their states, and where each group begins among these."""
    live = tables.group_balls + n <= tables.budget
    length = tables.length[live]
    return np.flatnonzero(live), np.flatnonzero(np.repeat(live, tables.length)), np.cumsum(length) - length


@lru_cache(maxsize=1)
def _numba_sweep() -> Sweep | None:
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
        tables: Tables,
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
    exponent, power = np.empty(states), np.empty(states)
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
            if row[i] >= 0:
                for r in range(first[g], first[g] + length[g]):
                    for c in range(columns):
                        weight[c] = np.exp(min(exponent[r] + extra[row[i], c], 0.0))
                    for n in range(room):
                        to = target[g, n]
                        for c in range(columns):
                            kept = state[r, c]
                            fresh[to, c] += kept * own[i, n]
                            state[r, c] = kept * weight[c]
                continue
            # a small matrix product, four rows at a time: reading and writing `fresh` is what costs
            begin_row, end_row = first[g], first[g] + length[g]
            power[begin_row:end_row] = 1.0
            for n in range(room):
                to, share = target[g, n], own[i, n]
                r = begin_row
                while r + 3 < end_row:
                    w0, w1 = power[r] * share, power[r + 1] * share
                    w2, w3 = power[r + 2] * share, power[r + 3] * share
                    for c in range(columns):
                        fresh[to, c] += (w0 * state[r, c] + w1 * state[r + 1, c]) + (
                            w2 * state[r + 2, c] + w3 * state[r + 3, c]
                        )
                    r += 4
                while r < end_row:
                    w0 = power[r] * share
                    for c in range(columns):
                        fresh[to, c] += w0 * state[r, c]
                    r += 1
                for r in range(begin_row, end_row):
                    power[r] *= exponent[r]
        state, fresh = fresh, state
    return state


def sweep_of(engine: Engine) -> Sweep:
    """The loop by this engine; "auto" takes numba where it is installed."""
    if engine == "numpy":
        return _numpy_sweep
    found = _numba_sweep()
    if found is None and engine == "numba":
        raise InvalidParameter("engine", engine, "an installed engine: the extra `numba` of the wheel")
    return found or _numpy_sweep
