"""A law below a sum of lognormals in the convex order: cells are replaced by their means.

The companion of lognormal_sum (read its header first). A cell of the geometric grid carries its mass and
its exact mean; the sum of two cells goes to the cell in which the sum of their centres falls. Any way to
group pairs is valid, since Jensen's inequality holds for each group; only the mean must be exact.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evertally.accountants.lognormal_grid import (
    TAIL_MASS,
    Law,
    base_cells,
    base_nodes,
    by_doubling,
    put_in,
    round_copies,
    sum_first,
)

__all__ = ["sum_below"]

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class _Cells:
    """Sum of `copies` lognormals: cell j holds `masses[j]` at mean `moments[j]/masses[j]`, which lies near
    [e^{(first+j) step}, e^{(first+j+1) step}] (anything beyond is in the end cells).
    """

    step: float
    first: int
    masses: Array
    moments: Array
    copies: int

    @property
    def last(self) -> int:
        return self.first + len(self.masses) - 1


def sum_below(variance: float, copies: int, cells: int) -> Law:
    """A law below W = (sum of `copies` lognormals of log-variance `variance`)/copies in convex order.

    `copies` is rounded up to 10 significant bits: more copies mean less in convex order.

    Guarantees:
        - a lower bound of E(W - c)_+ and E(1 - c W)_+ for every c, up to the two margins.

    Args:
        variance: v > 0, at most 600.
        copies: number of lognormals, >= 1.
        cells: number of grid cells to aim at.
    """
    copies = round_copies(copies, up=True)

    def join(total: _Cells, power: _Cells) -> _Cells:
        return _trim(_add(*_aligned(total, power, cells)))

    def double(power: _Cells) -> _Cells:
        if 1.4 * len(power.masses) <= cells:
            power = _regridded(power, power.step * 1.4 * len(power.masses) / cells)
        return _trim(_add(power, power))

    total = by_doubling(_lognormal_below(variance, cells), copies, join, double)
    kept = total.masses > 0.0
    masses, moments = total.masses[kept], total.moments[kept]
    log_values = np.log(moments) - np.log(masses) - math.log(copies)
    order = np.argsort(log_values)
    return Law(log_values[order], masses[order], 0.0, 0.0)


def _lognormal_below(variance: float, cells: int) -> _Cells:
    step, first, nodes = base_nodes(variance, cells)
    q, p = base_cells(nodes, variance)
    return _Cells(step, first - 1, q, p, 1)


def _regridded(grid: _Cells, step: float) -> _Cells:
    """The cells relabelled on a grid of another step by their means."""
    kept = np.flatnonzero(grid.masses > 0.0)
    masses, moments = grid.masses[kept], grid.moments[kept]
    labels = np.floor(np.log(moments / masses) / step).astype(np.int64)
    labels = np.clip(
        labels, math.floor(grid.first * grid.step / step), math.ceil((grid.last + 1) * grid.step / step)
    )
    first = int(labels.min())
    return _Cells(
        step,
        first,
        np.asarray(np.bincount(labels - first, masses), dtype=np.float64),
        np.asarray(np.bincount(labels - first, moments), dtype=np.float64),
        grid.copies,
    )


def _aligned(total: _Cells, power: _Cells, cells: int) -> tuple[_Cells, _Cells]:
    """The two grids at one step, the finer of the two unless that would make the other too long."""
    step = max(power.step, len(total.masses) * total.step / (8 * cells))
    step = min(step, total.step)
    return (
        total if step == total.step else _regridded(total, step),
        power if step == power.step else _regridded(power, step),
    )


def _trim(grid: _Cells) -> _Cells:
    """Merge the far ends into the first and the last kept cell."""
    tail = np.cumsum(grid.moments[::-1])[::-1] / grid.copies
    last = max(1, int(np.searchsorted(-tail, -TAIL_MASS)))
    first = min(int(np.searchsorted(np.cumsum(grid.masses), TAIL_MASS)), last - 1)

    def merged(x: Array) -> Array:
        out = x[first:last].copy()
        out[0] += np.sum(x[:first])
        out[-1] += np.sum(x[last:])
        return out

    return _Cells(grid.step, grid.first + first, merged(grid.masses), merged(grid.moments), grid.copies)


def _add(a: _Cells, b: _Cells) -> _Cells:
    """The sum of two independent laws on grids of one step."""
    first, last = sum_first(a.first, b.first, a.step), sum_first(a.last, b.last, a.step) + 3
    masses, moments = np.zeros(last - first + 1), np.zeros(last - first + 1)
    if a is b:
        _add_pairs(masses, moments, first, a, b, 1)
        masses *= 2.0
        moments *= 2.0
        _add_pairs(masses, moments, first, a, b, 0, most=0)
    else:
        _add_pairs(masses, moments, first, a, b, 0)
        _add_pairs(masses, moments, first, b, a, 1)
    return _Cells(a.step, first, masses, moments, a.copies + b.copies)


def _add_pairs(
    masses: Array, moments: Array, first: int, a: _Cells, b: _Cells, least: int, most: int | None = None
) -> None:
    """Add the pairs whose cell of `a` is `least` .. `most` steps above that of `b`."""
    low, high = max(least, a.first - b.last), a.last - b.first if most is None else most
    if high < low:
        return
    d = np.arange(low, high + 1)
    jump = np.floor(0.5 + np.log1p(np.exp(-d * a.step)) / a.step).astype(np.int64)
    starts = np.flatnonzero(np.diff(jump, prepend=jump[0] + 1))
    n, padded_first = len(a.masses), a.first - high
    padded_masses = _window(b, b.masses, padded_first, n + high - low)
    padded_moments = _window(b, b.moments, padded_first, n + high - low)
    ones = np.ones(int(np.diff(starts, append=len(d)).max()))
    places = (a.first + jump[starts] - first).tolist()
    for start, stop, at in zip(starts.tolist(), [*starts[1:].tolist(), len(d)], places, strict=True):
        # a cell J of `a` meets the cells J - d, d in this run, of `b`
        if stop == len(d) and jump[start] == 0 and most is None:
            reach = np.clip(a.first + np.arange(n) - int(d[start]) - b.first, -1, len(b.masses) - 1)
            mass = np.append(np.cumsum(b.masses), 0.0)[reach]
            moment = np.append(np.cumsum(b.moments), 0.0)[reach]
        else:
            offset = high - low - stop + 1
            met = slice(offset, offset + n + (stop - start) - 1)
            mass = np.correlate(padded_masses[met], ones[: stop - start], "valid")
            moment = np.correlate(padded_moments[met], ones[: stop - start], "valid")
        moment *= a.masses
        moment += a.moments * mass
        mass *= a.masses
        put_in(masses, at, mass)
        put_in(moments, at, moment)


def _window(grid: _Cells, values: Array, first: int, size: int) -> Array:
    """`values` at the cells first .. first+size-1, zeros where the grid has none."""
    out = np.zeros(size)
    low, high = max(first, grid.first), min(first + size - 1, grid.last)
    if low <= high:
        out[low - first : high + 1 - first] = values[low - grid.first : high + 1 - grid.first]
    return out
