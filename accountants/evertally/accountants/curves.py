"""The upper bounds of this package behind one face: delta at an epsilon, epsilon at a delta, for any noise.

A curve holds what does not depend on the noise; each of its answers is an upper bound by itself. The curves
that take long to evaluate can be narrowed, which leaves them bounds: `renyi_curve`, `allocation_curves`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol, Self, runtime_checkable

from evertally.accountants import conditional_composition
from evertally.accountants.bound import Direction, Source
from evertally.accountants.gaussian import gaussian_delta, gaussian_epsilon
from evertally.accountants.gram import Gram
from evertally.accountants.renyi_lines import scaled_entry

__all__ = ["TINIEST", "Answer", "Conditional", "Curve", "Gaussian", "NarrowingCurve"]

TINIEST = 5e-324
"""A bound on delta that underflows is this: no delta is ever reported as 0."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An upper bound, and what a reader should know about it."""

    value: float
    note: str = ""


class Curve(Protocol):
    """One upper bound of one mechanism, as a function of the noise multiplier."""

    @property
    def source(self) -> Source:
        """Its name in results."""
        ...

    def delta(self, sigma: float, epsilon: float) -> Answer:
        """Upper bound on delta at `epsilon`; the larger of the directions asked for."""
        ...

    def epsilon(self, sigma: float, delta: float) -> Answer:
        """Upper bound on epsilon at `delta`; infinite where this bound has none."""
        ...


@runtime_checkable
class NarrowingCurve(Curve, Protocol):
    """A curve of many parts, of which few matter at one noise: the narrowed ones are bounds too."""

    def focused(self, sigma: float, epsilon: float) -> Self:
        """A cheap curve that is good nearby: enough to find where to look."""
        ...

    def sharpened(self, sigma: float, epsilon: float) -> Self:
        """The parts that give the whole curve's value nearby."""
        ...

    def shortlisted(self, sigma: float, epsilon: float) -> Self:
        """The parts that may give the whole curve's value a few hundredths away."""
        ...

    def covers(self, other: Curve) -> bool:
        """Whether this curve has every part of the other."""
        ...

    def forecast(self, known: Sequence[float], sigma: float, epsilon: float) -> float:
        """log delta guessed from the noises evaluated before, for next to nothing; no bound."""
        ...


@dataclass(frozen=True, slots=True)
class Gaussian:
    """The mechanism as one Gaussian of its largest sensitivity: no amplification.

    Attributes:
        sensitivity_squared: squared l2 sensitivity at clip norm 1, rounded up.
    """

    sensitivity_squared: float
    source: ClassVar[Source] = "gaussian"

    def delta(self, sigma: float, epsilon: float) -> Answer:
        """Exact for a participation that is known to the adversary."""
        return Answer(gaussian_delta(epsilon, self._mu(sigma)))

    def epsilon(self, sigma: float, delta: float) -> Answer:
        """Exact for a participation that is known to the adversary."""
        return Answer(gaussian_epsilon(delta, self._mu(sigma)))

    def _mu(self, sigma: float) -> float:
        return math.sqrt(scaled_entry(self.sensitivity_squared, sigma)) * (1.0 + 2.0**-51)


@dataclass(frozen=True, slots=True)
class Conditional:
    """Conditional composition, within a time budget of its own."""

    gram: Gram
    directions: tuple[Direction, ...]
    time_budget_s: float
    source: ClassVar[Source] = "cc"

    def delta(self, sigma: float, epsilon: float) -> Answer:
        """The larger of the directions, the bad event's probability chosen on a grid."""
        if not self._affordable():
            return Answer(1.0, self._note())
        budget = self.time_budget_s
        found = [
            conditional_composition.delta(self.gram, sigma, epsilon, d, time_budget_s=budget)
            for d in self.directions
        ]
        return Answer(max(found))

    def delta_near(self, sigma: float, epsilon: float, target: float) -> Answer:
        """As `delta`, the bad event's probability being a few shares of `target`: less work."""
        if not self._affordable():
            return Answer(1.0, self._note())
        events = tuple(share * target for share in conditional_composition.SHARES)
        budget = self.time_budget_s
        found = [
            conditional_composition.delta(self.gram, sigma, epsilon, d, events, time_budget_s=budget)
            for d in self.directions
        ]
        return Answer(max(found))

    def epsilon(self, sigma: float, delta: float) -> Answer:
        """The larger of the directions."""
        if not self._affordable():
            return Answer(math.inf, self._note())
        budget = self.time_budget_s
        found = [
            conditional_composition.epsilon(self.gram, sigma, delta, d, time_budget_s=budget)
            for d in self.directions
        ]
        return Answer(max(math.inf if value is None else value for value in found))

    def _affordable(self) -> bool:
        return conditional_composition.prepared(self.gram, time_budget_s=self.time_budget_s) is not None

    def _note(self) -> str:
        return f"conditional composition left out: over its time budget of {self.time_budget_s:g} s"
