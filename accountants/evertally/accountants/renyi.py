"""The Renyi accountant: divergences for the ledger, and their conversion to (epsilon, delta)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from evertally.accountants.bound import Direction
from evertally.accountants.conversion import (
    SMALLEST_DELTA,
    epsilons,
    fractional_moment,
    log_deltas,
)
from evertally.accountants.gram import Gram
from evertally.accountants.line_choice import lines
from evertally.accountants.participation import BallsInBins
from evertally.accountants.renyi_lines import (
    Line,
    floor_moments,
    is_sweep,
    least_moments,
    line_moments,
    scaled_entry,
)
from evertally.accountants.strategies import Strategy
from evertally.errors import InvalidParameter
from evertally.validation import one_of, positive_real, real

__all__ = [
    "Focus",
    "ORDER_MAX",
    "RenyiResult",
    "TIME_BUDGET_S",
    "delta",
    "direction_lines",
    "epsilon",
    "focused",
    "ledger_renyi",
    "renyi_divergence",
    "shortlisted",
]

FloatArray = NDArray[np.float64]

ORDER_MAX = 1024
"""Largest order that can be asked for."""
TIME_BUDGET_S = 0.1
"""Default seconds for one sweep at one noise; turned into operations, so results never depend on load."""
CONVERSION_ORDER_MAX = 256
COARSE_ORDER = 8
"""Orders whose sweeps cost little: enough to find where to look."""
_OPERATIONS_PER_S = 3e8
_RIVAL = 0.5
"""How far, in log delta, a line may be from the best one and still be looked at a few hundredths away."""


@dataclass(frozen=True, slots=True)
class RenyiResult:
    """A converted figure.

    Attributes:
        value: epsilon or delta.
        order: the integer order that gave it.
        on_edge: whether that is the largest order computed, so that larger ones might do better.
    """

    value: float
    order: int
    on_edge: bool


def renyi_divergence(
    strategy: Strategy,
    participation: BallsInBins,
    noise_multiplier: float,
    order: float,
    direction: Direction = "remove",
    *,
    time_budget_s: float = TIME_BUDGET_S,
) -> float:
    """Upper bound on the Renyi divergence of a real order > 1, natural logarithm.

    Args:
        strategy: the matrix C.
        participation: one bin per record.
        noise_multiplier: sigma over the clip norm; C is not normalised unless the strategy says so.
        order: 1 < order <= 1024. Between integers (a - 1) R_a is interpolated, which is an upper bound.
        direction: "remove" (the record is in P) or "add".
        time_budget_s: work allowed for one sweep; exact orders within it, valid bounds beyond.

    Raises:
        InvalidParameter: order <= 1 or > 1024, or another argument outside its range.

    Guarantees:
        - never below the exact divergence of the dominating pair, up or down the order grid.

    Reference: arXiv 2601.21636; docs/proofs/renyi.md.

    >>> from evertally.accountants.strategies import Identity
    >>> round(renyi_divergence(Identity(), BallsInBins(batches=10, epochs=1), 1.0, 2), 10)
    0.1585650787
    """
    order = real("order", order)
    if not 1.0 < order <= ORDER_MAX:
        raise InvalidParameter("order", order, f"a number above 1 and at most {ORDER_MAX}")
    one_of("direction", direction, ("remove", "add"))
    gram = strategy.gram(participation)
    plain = order / 2.0 * scaled_entry(gram.maximum, noise_multiplier) * (1.0 + 2.0**-50)
    found = direction_lines(gram, direction, time_budget_s)
    moments = least_moments(found, noise_multiplier, math.ceil(order))
    return min(plain, fractional_moment(moments, order) / (order - 1.0) * (1.0 + 2.0**-51))


def ledger_renyi(
    strategy: Strategy, participation: BallsInBins, noise_multiplier: float, order: float
) -> float:
    """The Renyi charge of one order for a ledger: the larger of valid remove and add bounds.

    Charges of one order add up over mechanisms; conversions at different orders do not.
    """
    return max(
        renyi_divergence(strategy, participation, noise_multiplier, order, "remove"),
        renyi_divergence(strategy, participation, noise_multiplier, order, "add"),
    )


@dataclass(frozen=True, slots=True)
class Focus:
    """Lines, and how many orders to begin with.

    Attributes:
        lines: their minimum bounds the moments of one direction.
        order_max: largest order that is tried first; more follow while the best order is next to it.
        last: largest order that is tried at all.
    """

    lines: tuple[Line, ...]
    order_max: int = 8
    last: int = CONVERSION_ORDER_MAX


@dataclass(frozen=True, slots=True)
class _Best:
    """The least value so far, its order and its line."""

    value: float
    order: int
    line: Line

    def result(self, value: float) -> RenyiResult:
        return RenyiResult(value, self.order, self.order >= CONVERSION_ORDER_MAX)


def delta(focus: Focus, sigma: float, epsilon: float) -> RenyiResult:
    """Upper bound on delta at `epsilon` >= 0 from these lines; never 0."""
    best = _least(focus, sigma, lambda moments: log_deltas(moments, epsilon))
    return best.result(max(math.exp(min(0.0, best.value)), SMALLEST_DELTA))


def epsilon(focus: Focus, sigma: float, delta: float) -> RenyiResult:
    """Upper bound on epsilon >= 0 at `delta` from these lines."""
    best = _least(focus, sigma, lambda moments: epsilons(moments, delta))
    return best.result(max(0.0, best.value))


def focused(focus: Focus, sigma: float, epsilon: float, last: int = CONVERSION_ORDER_MAX) -> Focus:
    """The line and the orders, up to `last`, that give delta at `epsilon` near `sigma`: still a bound."""
    best = _least(replace(focus, last=last), sigma, lambda moments: log_deltas(moments, epsilon))
    kept = tuple(dict.fromkeys((focus.lines[0], best.line)))
    return Focus(kept, best.order, best.order)


def shortlisted(focus: Focus, sigma: float, epsilon: float) -> Focus:
    """The lines whose delta near `sigma` comes near that of the best line there: still a bound."""
    ranked = _ranked(focus, sigma, lambda moments: log_deltas(moments, epsilon))
    near = {one.line for one in ranked if one.value < ranked[0].value + _RIVAL}
    return replace(focus, lines=tuple(line for line in focus.lines if line is focus.lines[0] or line in near))


def direction_lines(
    gram: Gram, direction: Direction, time_budget_s: float = TIME_BUDGET_S
) -> tuple[Line, ...]:
    """All lines of one direction, for sweeps of at most about `time_budget_s`."""
    operations = positive_real("time_budget_s", time_budget_s, high=1e6) * _OPERATIONS_PER_S
    return lines(gram, direction, operations)


def _least(focus: Focus, sigma: float, convert: Callable[[FloatArray], FloatArray]) -> _Best:
    """The least value over all lines and orders."""
    return _ranked(focus, sigma, convert)[0]


def _ranked(focus: Focus, sigma: float, convert: Callable[[FloatArray], FloatArray]) -> list[_Best]:
    """The lines, the least value first; where a sweep cannot give it, its floor stands for it."""
    found: list[_Best] = []
    sweeps: list[tuple[float, int, Line, FloatArray]] = []
    for line in focus.lines:
        if is_sweep(line):
            hopes = convert(floor_moments(line, sigma, focus.last))
            sweeps.append((float(hopes.min()), len(sweeps), line, hopes))
        else:
            found.append(_best_of(line, sigma, convert, focus.order_max, focus.last))
    least = min((one.value for one in found), default=math.inf)
    for hope, _, sweep, hopes in sorted(sweeps, key=lambda entry: entry[:2]):
        useful = np.flatnonzero(hopes < least)
        if useful.size:
            found.append(_best_of(sweep, sigma, convert, focus.order_max, int(useful[-1]) + 2))
            least = min(least, found[-1].value)
        else:
            found.append(_Best(hope, int(np.argmin(hopes)) + 2, sweep))
    return sorted(found, key=lambda one: one.value)


def _best_of(
    line: Line, sigma: float, convert: Callable[[FloatArray], FloatArray], order_max: int, last: int
) -> _Best:
    """Take more and more orders, up to `last`, until the least value is not at the two largest.

    A line's values fall and then rise with the order, its log moments being convex.
    """
    while True:
        order_max = min(order_max, last)
        values = convert(line_moments(line, sigma, order_max))
        at = int(np.argmin(values))
        if at + 2 < order_max - 1 or order_max >= last or values.size < order_max - 1:
            return _Best(float(values[at]), at + 2, line)
        order_max *= 2
