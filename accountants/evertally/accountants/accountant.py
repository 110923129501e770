"""The accountant: for one mechanism and one target, the least of all valid upper bounds, and its gap.

Every curve is a valid (epsilon, delta) statement, so at a fixed epsilon or delta the smallest is one too.
(For a later composition choose one curve; minima of different curves do not compose.) The certified lower
bound says how much any better accountant could still gain.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal, get_args

from evertally.accountants import lower_bound, renyi
from evertally.accountants.bound import Bound, Direction, LowerScope, Source
from evertally.accountants.curves import (
    Answer,
    Colour,
    Conditional,
    Curve,
    Gaussian,
    PoissonRenyi,
    RandomAllocation,
    Renyi,
)
from evertally.accountants.gaussian import gaussian_delta, gaussian_epsilon, gaussian_noise_multiplier
from evertally.accountants.gram import Gram
from evertally.accountants.participation import (
    BallsInBins,
    CyclicPoisson,
    EachEpochOnce,
    Participation,
    Poisson,
)
from evertally.accountants.renyi_lines import scaled_entry
from evertally.accountants.solve import smallest_admitted
from evertally.accountants.strategies import Identity, Strategy, bands
from evertally.errors import InvalidParameter, UnsupportedMechanism
from evertally.validation import one_of, positive_real, probability, real

__all__ = ["CC_TIME_BUDGET_S", "TOLERANCE", "Account", "Directions", "account", "calibrate_noise_multiplier"]

Directions = Literal["both", "remove", "add"]

CC_TIME_BUDGET_S = 60.0
TOLERANCE = 1e-7
_COARSE = 1e-2
_CC_NOT_ASKED = "conditional composition left out: it takes minutes of its own; ask for it by name, 'cc'"
_NOISE_MAX = 1e8
_LOWER_TOLERANCE = 1e-4


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
    floor: _Floor
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
        left_out = tuple(a.note for s, a in answers if s == "cc" and a.note)
        notes = ((best.note,) if best.note and source != "cc" else ()) + left_out + self.left_out
        return _bound(best.value, source, lower, self.floor.scope, notes)


def account(
    strategy: Strategy,
    participation: Participation,
    noise_multiplier: float,
    bounds: Collection[Source] | None = None,
    direction: Directions = "both",
    *,
    time_budget_s: float = renyi.TIME_BUDGET_S,
    cc_time_budget_s: float = CC_TIME_BUDGET_S,
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

    >>> mechanism = account(Identity(), BallsInBins(batches=1000, epochs=1), 1.0)
    >>> bound = mechanism.epsilon(delta=1e-5)
    >>> 0 < bound.lower <= bound.value < 0.2, bound.source
    (True, 'random-allocation')
    """
    sigma = positive_real("noise_multiplier", noise_multiplier)
    one_of("direction", direction, get_args(Directions))
    curves, floor = _curves(strategy, participation, bounds, direction, time_budget_s, cc_time_budget_s)
    scaled_entry(floor.sensitivity_squared, sigma)
    left_out = _left_out(participation, bounds)
    return Account(strategy, participation, sigma, direction, curves, floor, left_out)


def calibrate_noise_multiplier(
    strategy: Strategy,
    participation: Participation,
    *,
    epsilon: float,
    delta: float,
    bounds: Collection[Source] | None = None,
    direction: Directions = "both",
    time_budget_s: float = renyi.TIME_BUDGET_S,
    cc_time_budget_s: float = CC_TIME_BUDGET_S,
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

    >>> scheme = BallsInBins(batches=1000, epochs=1)
    >>> found = calibrate_noise_multiplier(Identity(), scheme, epsilon=8.0, delta=1e-5)
    >>> round(found.value, 3)
    0.364
    """
    epsilon, delta = positive_real("epsilon", epsilon), probability("delta", delta)
    one_of("direction", direction, get_args(Directions))
    curves, floor = _curves(strategy, participation, bounds, direction, time_budget_s, cc_time_budget_s)
    plain = Gaussian(floor.sensitivity_squared)
    unamplified = _admitted_start(plain, epsilon, delta)
    best, source, notes = math.inf, curves[0].source, list(_left_out(participation, bounds))
    for curve in curves:
        value, note = _calibrate(curve, epsilon, delta, min(best, unamplified), known=math.isfinite(best))
        if note:
            notes.append(note)
        if value < best:
            best, source = value, curve.source
    if not math.isfinite(best):
        raise UnsupportedMechanism(
            f"the bounds asked for do not reach epsilon {epsilon:g} at delta {delta:g}"
        )
    return _bound(best, source, floor.noise_multiplier(best, epsilon, delta), floor.scope, tuple(notes))


@dataclass(frozen=True, slots=True)
class _Floor:
    """The certified lower bound of one mechanism.

    Attributes:
        sensitivity_squared: of the mechanism without amplification, at clip norm 1.
        gram: random allocation of its smallest diagonal entry is below the mechanism; None where the bin is
            known or no bound is offered.
        known_bin: squared norm that an adversary who knows the bin attains; 0 where it does not apply.
        directions: which to bound.
        scope: what the lower bound speaks of.
    """

    sensitivity_squared: float
    gram: Gram | None
    known_bin: float
    directions: tuple[Direction, ...]
    scope: LowerScope

    def delta(self, sigma: float, epsilon: float, cells: int = lower_bound.CELLS) -> float:
        if self.gram is not None:
            return lower_bound.delta(self.gram, sigma, epsilon, cells, self.directions).value
        if self.known_bin > 0.0:
            return gaussian_delta(epsilon, math.sqrt(self.known_bin) / sigma) * (1.0 - 1e-9)
        return 0.0

    def epsilon(self, sigma: float, delta: float) -> float:
        if self.gram is not None:
            return lower_bound.epsilon(self.gram, sigma, delta, directions=self.directions).value
        if self.known_bin > 0.0:
            return gaussian_epsilon(delta, math.sqrt(self.known_bin) / sigma) * (1.0 - 1e-9)
        return 0.0

    def noise_multiplier(self, admitted: float, epsilon: float, delta: float) -> float:
        """A noise multiplier that certainly does not meet the target; 0 where none is found."""
        least = admitted / 1e3
        if self.delta(least, epsilon) <= delta:
            return 0.0
        cells = lower_bound.COARSE_CELLS

        def log_excess(sigma: float) -> float:
            return math.log(max(self.delta(sigma, epsilon, cells), 1e-320)) - math.log(delta)

        _, near = smallest_admitted(log_excess, admitted, tolerance=_COARSE, low=least)
        cells = lower_bound.CELLS
        near *= 1.0 + _COARSE
        start, step = (
            (near, 1.0 + _COARSE) if near < admitted and log_excess(near) <= 0.0 else (admitted, 1.25)
        )
        refused, high = smallest_admitted(log_excess, start, tolerance=_LOWER_TOLERANCE, low=least, step=step)
        return refused if refused < high else 0.0


def _calibrate(curve: Curve, epsilon: float, delta: float, start: float, *, known: bool) -> tuple[float, str]:
    """Smallest admitted noise of one curve below `start`, or infinity where it has none there."""
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
        if known or note.startswith("conditional") or start > _NOISE_MAX:
            return math.inf, note if isinstance(curve, Conditional) else ""
    if not isinstance(curve, Renyi | Colour | RandomAllocation):
        return smallest_admitted(log_excess, start, tolerance=TOLERANCE, low=start * 1e-4)[1], note
    # a narrower or coarser curve is a bound too: look for the answer on one, and take to the end the line or
    # number of colours that is the best of the whole curve at its own answer
    whole, known_admitted, step = curve, start, 1.25
    while True:
        curve = narrow = whole.focused(start, epsilon)
        if log_excess(start) > 0.0:
            break
        _, start = smallest_admitted(log_excess, start, tolerance=_COARSE, low=start * 1e-4, step=step)
        step = 1.0 + _COARSE
        if narrow.covers(whole.focused(start, epsilon)):
            break
    curve = sharp = whole.sharpened(start, epsilon)
    if log_excess(start) > 0.0:
        start = known_admitted
        curve = sharp = whole.sharpened(start, epsilon)
    while True:
        _, start = smallest_admitted(
            log_excess, start, tolerance=TOLERANCE, low=start * 1e-4, step=1.0 + _COARSE
        )
        curve = best = whole.sharpened(start, epsilon)
        if sharp.covers(best):
            return start, note
        if log_excess(start) > 0.0:  # what the whole curve takes here is worse: its own value counts
            curve = whole
            while log_excess(start) > 0.0:
                start *= 1.0 + _COARSE / 100.0
            return start, note
        sharp = best


def _left_out(participation: Participation, bounds: Collection[Source] | None) -> tuple[str, ...]:
    return (_CC_NOT_ASKED,) if bounds is None and isinstance(participation, BallsInBins) else ()


def _admitted_start(plain: Gaussian, epsilon: float, delta: float) -> float:
    """A noise multiplier that the unamplified Gaussian admits, within an ulp or two of the smallest."""
    sigma = math.sqrt(plain.sensitivity_squared) * gaussian_noise_multiplier(epsilon, delta)
    while plain.delta(sigma, epsilon).value > delta:
        sigma *= 1.0 + 1e-12
    return sigma


def _curves(
    strategy: Strategy,
    participation: Participation,
    bounds: Collection[Source] | None,
    direction: Directions,
    time_budget_s: float,
    cc_time_budget_s: float,
) -> tuple[tuple[Curve, ...], _Floor]:
    directions: tuple[Direction, ...] = ("remove", "add") if direction == "both" else (direction,)
    found, floor = _offered(strategy, participation, directions, time_budget_s, cc_time_budget_s)
    offered = {curve.source: curve for curve in found}
    if bounds is None:
        return tuple(curve for curve in found if curve.source != "cc"), floor
    if isinstance(bounds, str) or not bounds:
        raise InvalidParameter("bounds", bounds, "a non-empty set of " + ", ".join(offered))
    for name in bounds:
        one_of("bounds", name, tuple(offered))
    return tuple(curve for name, curve in offered.items() if name in bounds), floor


def _offered(
    strategy: Strategy,
    participation: Participation,
    directions: tuple[Direction, ...],
    time_budget_s: float,
    cc_time_budget_s: float,
) -> tuple[list[Curve], _Floor]:
    """All bounds that apply, cheap and strong ones first, and the lower bound."""
    positive_real("time_budget_s", time_budget_s, high=1e6)
    positive_real("cc_time_budget_s", cc_time_budget_s, high=1e6)
    if isinstance(participation, BallsInBins):
        gram = strategy.gram(participation)
        curves: list[Curve] = [Gaussian(gram.maximum)]
        if gram.is_identity:
            curves.append(RandomAllocation(gram.batches, gram.epochs, directions))
        else:
            curves.append(Colour(gram, directions))
        curves.append(Renyi.of(gram, directions, time_budget_s))
        curves.append(Conditional(gram, directions, cc_time_budget_s))
        return curves, _Floor(gram.maximum, gram, 0.0, directions, gram.lower_scope)
    if isinstance(participation, EachEpochOnce):
        gram = strategy.gram(BallsInBins(participation.batches, participation.epochs))
        floor = _Floor(gram.maximum, None, gram.lower_diagonal, directions, gram.lower_scope)
        return [Gaussian(gram.maximum)], floor
    if isinstance(participation, Poisson):
        if not isinstance(strategy, Identity):
            raise UnsupportedMechanism("Poisson sampling is accounted for the identity strategy only")
        return _sampled(participation.sampling_probability, participation.rows, 1.0, directions)
    if isinstance(participation, CyclicPoisson):
        rounds = -(-participation.rows // participation.cycle)
        scheme = BallsInBins(participation.cycle, rounds)
        if bands(strategy, scheme) > participation.cycle:
            raise UnsupportedMechanism("cyclic Poisson sampling needs a strategy with at most `cycle` bands")
        square = strategy.gram(scheme).maximum / rounds * (1.0 + 2.0**-50)
        return _sampled(participation.sampling_probability, rounds, square, directions)
    raise InvalidParameter("participation", type(participation).__name__, "a participation of this package")


def _sampled(
    probability_: float, rounds: int, square: float, directions: tuple[Direction, ...]
) -> tuple[list[Curve], _Floor]:
    whole = square * rounds * (1.0 + 2.0**-50)
    return [Gaussian(whole), PoissonRenyi(probability_, rounds, square)], _Floor(
        whole, None, 0.0, directions, "none"
    )


def _bound(value: float, source: Source, lower: float, scope: LowerScope, notes: tuple[str, ...]) -> Bound:
    assert lower <= value * (1.0 + 1e-9) + 1e-300, "the lower bound is above the upper bound"
    lower = min(lower, value)
    return Bound(value, source, lower, value - lower, scope, notes)
