"""The noise that a target needs: the smallest that some bound admits, evaluated there."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

from evertally.accountants import conditional_composition, renyi
from evertally.accountants.applicable import Directions, applicable, left_out
from evertally.accountants.bound import Bound, Source
from evertally.accountants.curves import Conditional, Curve, Gaussian, NarrowingCurve
from evertally.accountants.gaussian import gaussian_noise_multiplier
from evertally.accountants.narrow_search import NOISE_MAX, TOLERANCE, NarrowSearch
from evertally.accountants.participation import Participation
from evertally.accountants.solve import smallest_admitted
from evertally.accountants.strategies import Strategy
from evertally.errors import UnsupportedMechanism
from evertally.validation import positive_real, probability

__all__ = ["calibrate_noise_multiplier"]

_RIVAL = math.e
"""How far a curve's delta may be above the best one and still be taken to the end a few hundredths away."""


def calibrate_noise_multiplier(
    strategy: Strategy,
    participation: Participation,
    *,
    epsilon: float,
    delta: float,
    bounds: Collection[Source] | None = None,
    direction: Directions = "both",
    time_budget_s: float = renyi.TIME_BUDGET_S,
    cc_time_budget_s: float = conditional_composition.TIME_BUDGET_S,
) -> Bound:
    """Smallest noise multiplier found to give (epsilon, delta); the safe side of a relative 1e-7.

    Guarantees:
        - `account(strategy, participation, result.value, ...)` with the same bounds has delta at most the
          target: the value was evaluated, not interpolated.
        - `lower`: at that noise, the certified lower bound on delta is above the target.

    Raises:
        InvalidParameter: a value is out of its range, or a bound does not apply to this mechanism.
        UnsupportedMechanism: no valid bound is known for the combination, or the bounds asked for cannot
            reach the target.

    >>> from evertally.accountants import BallsInBins, Identity
    >>> scheme = BallsInBins(batches=1000, epochs=1)
    >>> found = calibrate_noise_multiplier(Identity(), scheme, epsilon=8.0, delta=1e-5)
    >>> round(found.value, 3)
    0.364
    """
    epsilon, delta = positive_real("epsilon", epsilon), probability("delta", delta)
    curves, floor = applicable(strategy, participation, bounds, direction, time_budget_s, cc_time_budget_s)
    unamplified = _admitted_start(Gaussian(floor.sensitivity_squared), epsilon, delta)
    best = _Found(math.inf, curves[0].source)
    notes = list(left_out(participation, bounds))
    for curve in curves:
        if isinstance(curve, NarrowingCurve):
            continue
        found = _plain(curve, epsilon, delta, min(best.noise, unamplified), known=math.isfinite(best.noise))
        notes.extend([found.note] if found.note and curve.source == "cc" else [])
        best = min(best, found, key=lambda one: one.noise)
    searches = [NarrowSearch(curve, epsilon, delta) for curve in curves if isinstance(curve, NarrowingCurve)]
    if searches:
        best = _narrowing(searches, best, unamplified)
    if not math.isfinite(best.noise):
        raise UnsupportedMechanism(
            f"the bounds asked for do not reach epsilon {epsilon:g} at delta {delta:g}"
        )
    lower = floor.noise_multiplier(best.noise, epsilon, delta)
    if best.note and best.source != "cc":
        notes.insert(0, best.note)
    return Bound.between(lower, best.noise, best.source, floor.scope, tuple(notes))


@dataclass(frozen=True, slots=True)
class _Found:
    """A noise multiplier that a bound admits (infinite where it admits none), and what to say of it."""

    noise: float
    source: Source
    note: str = ""


def _plain(curve: Curve, epsilon: float, delta: float, start: float, *, known: bool) -> _Found:
    """Smallest admitted noise of one curve from `start` down; above `start` only where none is `known`."""
    note = ""

    def log_excess(sigma: float) -> float:
        nonlocal note
        if isinstance(curve, Conditional):
            answer = curve.delta_near(sigma, epsilon, delta)
        else:
            answer = curve.delta(sigma, epsilon)
        note = answer.note
        return math.log(answer.value) - math.log(delta)

    while log_excess(start) > 0.0:
        start *= 2.0
        if known or note.startswith("conditional") or start > NOISE_MAX:
            return _Found(math.inf, curve.source, note)
    _, least = smallest_admitted(log_excess, start, tolerance=TOLERANCE, low=start * 1e-4)
    return _Found(least, curve.source, note)


def _narrowing(searches: list[NarrowSearch], best: _Found, start: float) -> _Found:
    """The least of `best` and of these curves, the most promising first: most others are refused there."""
    near = searches[0].near(min(best.noise, start), known=math.isfinite(best.noise))
    if len(searches) > 1 and math.isfinite(near):
        deltas = {search: search.sharp_delta(near) for search in searches}
        searches = sorted(
            (s for s in searches if deltas[s] < _RIVAL * min(deltas.values())), key=lambda s: deltas[s]
        )
    for search in searches:
        for begin in sorted({min(near, best.noise), min(start, best.noise)}):
            noise, note = search.finish(begin)
            if noise < best.noise:
                best = _Found(noise, search.whole.source, note)
            if math.isfinite(noise):
                break
    return best


def _admitted_start(plain: Gaussian, epsilon: float, delta: float) -> float:
    """A noise multiplier that the unamplified Gaussian admits, within an ulp or two of the smallest."""
    sigma = math.sqrt(plain.sensitivity_squared) * gaussian_noise_multiplier(epsilon, delta)
    while plain.delta(sigma, epsilon).value > delta:
        sigma *= 1.0 + 1e-12
    return sigma
