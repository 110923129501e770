"""A law above a sum of lognormals in the convex order, on a geometric grid.

The privacy loss of random allocation is the logarithm of W = (Y_1 + .. + Y_b)/b, Y_i = e^{X_i} with
X_i ~ N(-v/2, v) independent, and every divergence of it is E f(W) for a convex f. So instead of a loss
we discretise W itself, in the one direction that convex functions respect:

- above (this module): a value between two grid points is split between them with its mean kept;
- below (lognormal_sum_below): all values of a cell are replaced by their mean (Jensen).

Both survive adding independent variables and averaging, so b copies are summed by doubling, with a new
split (or new means) at each of the log2 b steps. On the grid {e^{Jh}} the sum of points J and K = J - d
lies at J + log(1 + e^{-dh})/h: where it falls and how it is split depends on d alone, so a convolution
is a few short filters. All terms are positive: the far tail keeps its relative precision, and no FFT
noise floor appears. Proof: docs/proofs/pld-rounding.md.
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

__all__ = ["sum_above"]

Array = NDArray[np.float64]

_MAX_REFINED = 8


@dataclass(frozen=True, slots=True)
class _Grid:
    """Sum of `copies` lognormals: masses at e^{(first + j) step}, at 0 (`zero`), beyond (`excess`)."""

    step: float
    first: int
    masses: Array
    zero: float
    excess: float
    copies: int

    @property
    def last(self) -> int:
        return self.first + len(self.masses) - 1


def sum_above(variance: float, copies: int, cells: int) -> Law:
    """A law above W = (sum of `copies` lognormals of log-variance `variance`)/copies in convex order.

    For convex f: E f(W) <= E f(law), where mass beyond the support counts through `excess` if f grows
    and through its largest point if f falls. `copies` is rounded down to 10 significant bits: the mean
    of fewer independent copies is larger in convex order.

    Guarantees:
        - an upper bound of E(W - c)_+ and E(1 - c W)_+ for every c, up to the two margins.

    Args:
        variance: v > 0, at most 600 (beyond, masses leave the double range).
        copies: number of lognormals, >= 1.
        cells: number of grid points to aim at; cost grows with its square.
    """
    copies = round_copies(copies, up=False)

    def join(total: _Grid, power: _Grid) -> _Grid:
        return _trim(_add(*_aligned(total, power, cells)))

    def double(power: _Grid) -> _Grid:
        power = _fitted(power, cells)
        return _trim(_add(power, power))

    total = by_doubling(_lognormal_above(variance, cells), copies, join, double)
    log_values = (total.first + np.arange(len(total.masses))) * total.step - math.log(copies)
    return Law(log_values, total.masses, total.zero, total.excess)


def _lognormal_above(variance: float, cells: int) -> _Grid:
    step, first, nodes = base_nodes(variance, cells)
    q, p = base_cells(nodes, variance)
    lower, upper = np.exp(nodes[:-1]), np.exp(nodes[1:])
    to_upper = np.clip((p[1:-1] - q[1:-1] * lower) / (upper - lower), 0.0, q[1:-1])
    masses = np.zeros(len(nodes))
    masses[:-1] += q[1:-1] - to_upper
    masses[1:] += to_upper
    at_bottom = min(q[0], p[0] / lower[0])
    masses[0] += at_bottom
    masses[-1] += q[-1]
    excess = max(0.0, p[-1] - q[-1] * upper[-1])
    return _Grid(step, first, masses, q[0] - at_bottom, excess, 1)


def _fitted(grid: _Grid, cells: int) -> _Grid:
    """Halve the step (exact) while the support is short: the next sum then lands on a finer grid."""
    while 1.4 * len(grid.masses) <= cells and len(grid.masses) > 1:
        grid = _refined(grid, 2)
    return grid


def _refined(grid: _Grid, factor: int) -> _Grid:
    if factor == 1:
        return grid
    masses = np.zeros(factor * (len(grid.masses) - 1) + 1)
    masses[::factor] = grid.masses
    return _Grid(grid.step / factor, grid.first * factor, masses, grid.zero, grid.excess, grid.copies)


def _coarsened(grid: _Grid) -> _Grid:
    """Double the step: odd points are split between their neighbours, mean kept."""
    odd_first = grid.first & 1
    padded = np.concatenate(
        [np.zeros(odd_first), grid.masses, np.zeros((len(grid.masses) + odd_first + 1) % 2)]
    )
    weight = 1.0 / (math.exp(grid.step) + 1.0)
    masses = padded[::2].copy()
    masses[:-1] += (1.0 - weight) * padded[1::2]
    masses[1:] += weight * padded[1::2]
    return _Grid(2 * grid.step, (grid.first - odd_first) // 2, masses, grid.zero, grid.excess, grid.copies)


def _aligned(total: _Grid, power: _Grid, cells: int) -> tuple[_Grid, _Grid]:
    """The two grids at one step: the coarser refined, the finer coarsened where that would cost too much."""
    while (
        total.step > 1.5 * power.step and len(total.masses) * total.step > _MAX_REFINED * cells * power.step
    ):
        power = _coarsened(power)
    step = min(total.step, power.step)
    return _refined(total, round(total.step / step)), _refined(power, round(power.step / step))


def _trim(grid: _Grid) -> _Grid:
    """Cut the far ends: upper values fall to the last kept point (their excess is kept as such), lower
    ones are split between 0 and the first kept point.
    """
    values = np.exp((grid.first + np.arange(len(grid.masses))) * grid.step - math.log(grid.copies))
    means = grid.masses * values
    tail_mean = np.cumsum(means[::-1])[::-1]
    head_mass = np.cumsum(grid.masses)
    last = max(1, int(np.searchsorted(-tail_mean, -TAIL_MASS)))
    first = min(int(np.searchsorted(head_mass, TAIL_MASS)), last - 1)
    masses = grid.masses[first:last].copy()
    cut_mass, cut_mean = float(np.sum(grid.masses[last:])), float(np.sum(means[last:]))
    masses[-1] += cut_mass
    excess = grid.excess + max(0.0, cut_mean - cut_mass * float(values[last - 1]))
    low_mass, low_mean = float(np.sum(grid.masses[:first])), float(np.sum(means[:first]))
    at_first = min(low_mass, low_mean / float(values[first]))
    masses[0] += at_first
    return _Grid(grid.step, grid.first + first, masses, grid.zero + low_mass - at_first, excess, grid.copies)


def _add(a: _Grid, b: _Grid) -> _Grid:
    """The sum of two independent laws on grids of one step."""
    first, last = sum_first(a.first, b.first, a.step), sum_first(a.last, b.last, a.step) + 2
    masses = np.zeros(last - first + 1)
    if a is b:
        _add_pairs(masses, first, a, b, 1)
        masses *= 2.0
        _add_pairs(masses, first, a, b, 0, most=0)
    else:
        _add_pairs(masses, first, a, b, 0)
        _add_pairs(masses, first, b, a, 1)
    zero = a.zero * b.zero
    for other, grid in ((b.zero, a), (a.zero, b)):
        # 0 + x where x lies below the new grid: split between 0 and the first point
        low = max(0, min(first - grid.first, len(grid.masses)))
        below = other * grid.masses[:low]
        share = np.exp((grid.first + np.arange(low) - first) * grid.step)
        masses[0] += np.sum(below * share)
        zero += float(np.sum(below * (1.0 - share)))
        at = grid.first + low - first
        masses[at : at + len(grid.masses) - low] += other * grid.masses[low:]
    copies = a.copies + b.copies
    excess = (a.excess * a.copies + b.excess * b.copies) / copies
    return _Grid(a.step, first, masses, zero, excess, copies)


def _add_pairs(masses: Array, first: int, a: _Grid, b: _Grid, least: int, most: int | None = None) -> None:
    """Add the pairs whose point of `a` is `least` .. `most` steps above that of `b`."""
    low, high = max(least, a.first - b.last), a.last - b.first if most is None else most
    if high < low:
        return
    d = np.arange(low, high + 1)
    jump, weight = _landing(d, a.step)
    near = int(np.searchsorted(-jump, 0)) if most is None else len(d)
    if near < len(d):
        _add_far_pairs(masses, first, a, b, int(d[near]))
    if near == 0:
        return
    starts = np.flatnonzero(np.diff(jump[:near], prepend=jump[0] + 1))
    padded_first = a.first - high
    padded = _window(b, padded_first, a.last - low)
    n, rise = len(a.masses), weight[near - 1 :: -1].copy()
    stay, added = 1.0 - rise, np.zeros(n + 1)
    places = (a.first + jump[starts] - first).tolist()
    for start, stop, at in zip(starts.tolist(), [*starts[1:].tolist(), near], places, strict=True):
        # a point J of `a` meets the points J - d, d in this run, of `b`
        offset = a.first - low - stop + 1 - padded_first
        piece = padded[offset : offset + n + (stop - start) - 1]
        added[:-1] = np.correlate(piece, stay[near - stop : near - start], "valid")
        added[:-1] *= a.masses
        added[1:] += np.correlate(piece, rise[near - stop : near - start], "valid") * a.masses
        put_in(masses, at, added)
        added[-1] = 0.0


def _add_far_pairs(masses: Array, first: int, a: _Grid, b: _Grid, least: int) -> None:
    """Add the pairs at least `least` steps apart, where the sum stays within one step above `a`.

    All of them land on the same two points, so only the total mass and mean of the far points of `b` count.
    """
    scaled = b.masses * np.exp((np.arange(len(b.masses)) - len(b.masses) + 1) * b.step)
    reach = np.clip(a.first + np.arange(len(a.masses)) - least - b.first, -1, len(b.masses) - 1)
    mass = np.append(np.cumsum(b.masses), 0.0)[reach]
    back = np.exp(np.minimum((b.last - a.first - np.arange(len(a.masses))) * a.step, 700.0))
    mean = np.append(np.cumsum(scaled), 0.0)[reach] * back
    up = np.clip(mean / math.expm1(a.step), 0.0, mass)
    put_in(masses, a.first - first, a.masses * (mass - up))
    put_in(masses, a.first + 1 - first, a.masses * up)


def _landing(d: NDArray[np.int64], step: float) -> tuple[NDArray[np.int64], Array]:
    """Where x + x e^{-d step} lies: whole steps above x, and the share that goes one step further up."""
    position = np.log1p(np.exp(-d * step))
    jump = np.floor(position / step).astype(np.int64)
    weight = np.clip(np.expm1(position - jump * step) / math.expm1(step), 0.0, 1.0)
    return jump, weight


def _window(grid: _Grid, first: int, last: int) -> Array:
    """Masses at first .. last, zeros where the grid has no point."""
    out = np.zeros(last - first + 1)
    low, high = max(first, grid.first), min(last, grid.last)
    if low <= high:
        out[low - first : high + 1 - first] = grid.masses[low - grid.first : high + 1 - grid.first]
    return out
