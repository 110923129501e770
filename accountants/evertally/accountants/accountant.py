"""The accountant: for one mechanism and one target, the least of all valid upper bounds, and its gap.

Every curve is a valid (epsilon, delta) statement, so at a fixed epsilon or delta the smallest is one too.
(For a later composition choose one curve; minima of different curves do not compose.) The certified lower
bound says how much any better accountant could still gain.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

from evertally.accountants import conditional_composition, renyi
from evertally.accountants.applicable import Directions, applicable, left_out
from evertally.accountants.bound import Bound, Source
from evertally.accountants.curves import Answer, Curve
from evertally.accountants.floor import Floor
from evertally.accountants.participation import Participation
from evertally.accountants.renyi_lines import scaled_entry
from evertally.accountants.strategies import Strategy
from evertally.errors import UnsupportedMechanism
from evertally.validation import positive_real, probability, real

__all__ = ["Account", "account"]


@dataclass(frozen=True, slots=True)
class Account:
    """One mechanism at one noise multiplier; ask it for epsilon or delta.

    Attributes:
        strategy: the matrix C, with its normalisation.
        participation: how records take part.
        noise_multiplier: sigma over the clip norm.
        direction: "both" (add/remove and zero-out adjacency), or one of the two alone.
        curves: the upper bounds that enter the minimum.
        floor: the certified lower bound.
        left_out: a note for each bound that applies and was not asked for by name.
    """

    strategy: Strategy
    participation: Participation
    noise_multiplier: float
    direction: Directions
    curves: tuple[Curve, ...]
    floor: Floor
    left_out: tuple[str, ...] = ()

    def epsilon(self, *, delta: float) -> Bound:
        """Epsilon >= 0 at `delta`, natural logarithm.

        Raises:
            InvalidParameter: delta is not strictly between 0 and 1.
            UnsupportedMechanism: none of the bounds asked for gives a finite value.
        """
        delta = probability("delta", delta)
        answers = [(curve.source, curve.epsilon(self.noise_multiplier, delta)) for curve in self.curves]
        return self._least(answers, self.floor.epsilon(self.noise_multiplier, delta))

    def delta(self, *, epsilon: float) -> Bound:
        """Delta at `epsilon` >= 0; never 0 by underflow.

        Raises:
            InvalidParameter: epsilon is negative or not finite.
        """
        epsilon = real("epsilon", epsilon, low=0.0)
        answers = [(curve.source, curve.delta(self.noise_multiplier, epsilon)) for curve in self.curves]
        return self._least(answers, self.floor.delta(self.noise_multiplier, epsilon))

    def each_epsilon(self, *, delta: float) -> dict[Source, float]:
        """Epsilon of every bound by itself (infinite where one has none): the rows of a comparison."""
        delta = probability("delta", delta)
        return {curve.source: curve.epsilon(self.noise_multiplier, delta).value for curve in self.curves}

    def each_delta(self, *, epsilon: float) -> dict[Source, float]:
        """Delta of every bound by itself."""
        epsilon = real("epsilon", epsilon, low=0.0)
        return {curve.source: curve.delta(self.noise_multiplier, epsilon).value for curve in self.curves}

    def _least(self, answers: list[tuple[Source, Answer]], lower: float) -> Bound:
        source, best = min(answers, key=lambda answer: answer[1].value)
        if not math.isfinite(best.value):
            raise UnsupportedMechanism(f"no finite value from the bounds asked for ({source})")
        over_budget = tuple(a.note for s, a in answers if s == "cc" and a.note)
        notes = ((best.note,) if best.note and source != "cc" else ()) + over_budget + self.left_out
        return Bound.between(lower, best.value, source, self.floor.scope, notes)


def account(
    strategy: Strategy,
    participation: Participation,
    noise_multiplier: float,
    bounds: Collection[Source] | None = None,
    direction: Directions = "both",
    *,
    time_budget_s: float = renyi.TIME_BUDGET_S,
    cc_time_budget_s: float = conditional_composition.TIME_BUDGET_S,
) -> Account:
    """Account for one mechanism.

    Args:
        strategy: the matrix C; sigma multiplies the clip norm, C is not normalised unless it says so.
        participation: the sampler's promise; b, k and N are public constants.
        noise_multiplier: sigma over the clip norm, > 0.
        bounds: names of the bounds to take; None takes all that apply but conditional composition ("cc"),
            which takes minutes and is asked for by name.
        direction: "both", "remove" or "add".
        time_budget_s: work for one Renyi sweep, counted in operations (results do not depend on load).
        cc_time_budget_s: work for conditional composition; over it, it is left out with a note.

    Raises:
        InvalidParameter: a value is out of its range, or a bound does not apply to this mechanism.
        UnsupportedMechanism: no valid bound is known for the combination.

    >>> from evertally.accountants import BallsInBins, Identity
    >>> mechanism = account(Identity(), BallsInBins(batches=1000, epochs=1), 1.0)
    >>> bound = mechanism.epsilon(delta=1e-5)
    >>> 0 < bound.lower <= bound.value < 0.2, bound.source
    (True, 'random-allocation')
    """
    sigma = positive_real("noise_multiplier", noise_multiplier)
    curves, floor = applicable(strategy, participation, bounds, direction, time_budget_s, cc_time_budget_s)
    scaled_entry(floor.sensitivity_squared, sigma)
    notes = left_out(participation, bounds)
    return Account(strategy, participation, sigma, direction, curves, floor, notes)
