"""The upper bounds of this package behind one face: delta at an epsilon, epsilon at a delta, for any noise.

A curve holds what does not depend on the noise; each of its answers is an upper bound by itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar, Protocol

import numpy as np
from scipy.special import gammaln

from evertally.accountants import colour, conditional_composition, renyi
from evertally.accountants.bound import Direction, Source
from evertally.accountants.conversion import SMALLEST_DELTA, epsilon_from_moments, log_delta_from_moments
from evertally.accountants.gaussian import gaussian_delta, gaussian_epsilon
from evertally.accountants.gram import Gram
from evertally.accountants.random_allocation import CELLS, RandomAllocationPLD
from evertally.accountants.renyi_lines import scaled_entry

__all__ = [
    "Answer",
    "Colour",
    "Conditional",
    "Curve",
    "Gaussian",
    "PoissonRenyi",
    "RandomAllocation",
    "Renyi",
]

_TINIEST = 5e-324
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
class Renyi:
    """Renyi moments of integer orders, converted.

    Attributes:
        directions: for each direction asked for, the lines whose minimum bounds its moments, and orders.
    """

    directions: tuple[renyi.Focus, ...]
    source: ClassVar[Source] = "renyi"

    @classmethod
    def of(cls, gram: Gram, directions: tuple[Direction, ...], time_budget_s: float) -> Renyi:
        """All lines that the time budget of one sweep affords."""
        return cls(tuple(renyi.Focus(renyi.direction_lines(gram, d, time_budget_s)) for d in directions))

    def delta(self, sigma: float, epsilon: float) -> Answer:
        """The larger of the directions."""
        return _renyi_answer([renyi.delta(found, sigma, epsilon) for found in self.directions])

    def epsilon(self, sigma: float, delta: float) -> Answer:
        """The larger of the directions."""
        return _renyi_answer([renyi.epsilon(found, sigma, delta) for found in self.directions])

    def focused(self, sigma: float, epsilon: float) -> Renyi:
        """The line that matters nearby, of low orders."""
        last = renyi.COARSE_ORDER
        return Renyi(tuple(renyi.focused(found, sigma, epsilon, last) for found in self.directions))

    def sharpened(self, sigma: float, epsilon: float) -> Renyi:
        """The line and the order that matter nearby."""
        return Renyi(tuple(renyi.focused(found, sigma, epsilon) for found in self.directions))

    def covers(self, other: Curve) -> bool:
        """Whether this curve has every line and order of the other."""
        return isinstance(other, Renyi) and all(
            set(theirs.lines) <= set(ours.lines) and theirs.last <= ours.last
            for ours, theirs in zip(self.directions, other.directions, strict=True)
        )


@dataclass(frozen=True, slots=True)
class Colour:
    """The colour bound: bins split into classes, each a random allocation and one Gaussian.

    Attributes:
        gram: the strategy's Gram matrix.
        directions: which to bound.
        colours: one number of colours for each direction, or None for the best of several.
        cells: grid points of each law.
    """

    gram: Gram
    directions: tuple[Direction, ...]
    colours: tuple[int, ...] | None = None
    cells: int = CELLS
    source: ClassVar[Source] = "colour"

    def delta(self, sigma: float, epsilon: float) -> Answer:
        """The larger of the directions."""
        found = max(colour.delta(self.gram, sigma, epsilon, d, p, self.cells) for d, p in self._pairs())
        return Answer(max(found, _TINIEST))

    def epsilon(self, sigma: float, delta: float) -> Answer:
        """The larger of the directions."""
        return Answer(
            max(colour.epsilon(self.gram, sigma, delta, d, p, self.cells) for d, p in self._pairs())
        )

    def focused(self, sigma: float, epsilon: float) -> Colour:
        """The number of colours that is best nearby, on a coarse grid."""
        best = tuple(
            min(colour.candidates(self.gram), key=lambda p: self._coarse(sigma, epsilon, d, p))
            for d in self.directions
        )
        return Colour(self.gram, self.directions, best, colour.SCREEN_CELLS)

    def sharpened(self, sigma: float, epsilon: float) -> Colour:
        """The best two numbers of colours compared on the full grid."""
        best = tuple(
            min(
                sorted(colour.candidates(self.gram), key=lambda p: self._coarse(sigma, epsilon, d, p))[:2],
                key=lambda p: colour.delta(self.gram, sigma, epsilon, d, p),
            )
            for d in self.directions
        )
        return Colour(self.gram, self.directions, best)

    def covers(self, other: Curve) -> bool:
        """Whether this is the same choice of colours."""
        return self == other

    def _coarse(self, sigma: float, epsilon: float, direction: Direction, colours: int) -> float:
        return colour.delta(self.gram, sigma, epsilon, direction, colours, colour.SCREEN_CELLS)

    def _pairs(self) -> list[tuple[Direction, int | None]]:
        return list(zip(self.directions, self.colours or (None,) * len(self.directions), strict=True))


@dataclass(frozen=True, slots=True)
class RandomAllocation:
    """The exact privacy loss distribution of C = I, rounded outward."""

    batches: int
    epochs: int
    directions: tuple[Direction, ...]
    cells: int = CELLS
    source: ClassVar[Source] = "random-allocation"

    def delta(self, sigma: float, epsilon: float) -> Answer:
        """The larger of the directions."""
        return Answer(max(_TINIEST, *(pld.delta(epsilon) for pld in self._plds(sigma))))

    def epsilon(self, sigma: float, delta: float) -> Answer:
        """The larger of the directions."""
        return Answer(max(pld.epsilon(delta) for pld in self._plds(sigma)))

    def focused(self, sigma: float, epsilon: float) -> RandomAllocation:  # noqa: ARG002  as the others
        """Itself, on a coarse grid."""
        return replace(self, cells=colour.SCREEN_CELLS)

    def sharpened(self, sigma: float, epsilon: float) -> RandomAllocation:  # noqa: ARG002  as the others
        """Itself, on the full grid."""
        return replace(self, cells=CELLS)

    def covers(self, other: Curve) -> bool:
        """Whether this is the same curve."""
        return self == other

    def _plds(self, sigma: float) -> list[RandomAllocationPLD]:
        return [
            RandomAllocationPLD(self.batches, sigma, d, epochs=self.epochs, cells=self.cells)
            for d in self.directions
        ]


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


@dataclass(frozen=True, slots=True)
class PoissonRenyi:
    """Rounds of the Gaussian sampled by Poisson, by the exact moments of integer orders; both directions.

    Attributes:
        sampling_probability: in (0, 1].
        rounds: independent rounds a record may be in.
        sensitivity_squared: of one round, at clip norm 1.

    Reference: Mironov, Talwar and Zhang, arXiv 1908.10530, section 3.3 (the moment), theorem 5 (directions).
    """

    sampling_probability: float
    rounds: int
    sensitivity_squared: float
    source: ClassVar[Source] = "poisson-renyi"

    def delta(self, sigma: float, epsilon: float) -> Answer:
        """Upper bound on delta."""
        log_delta, order = log_delta_from_moments(self._moments(sigma), epsilon)
        return Answer(max(math.exp(log_delta), SMALLEST_DELTA), _edge_note(order, renyi.CONVERSION_ORDER_MAX))

    def epsilon(self, sigma: float, delta: float) -> Answer:
        """Upper bound on epsilon."""
        value, order = epsilon_from_moments(self._moments(sigma), delta)
        return Answer(value, _edge_note(order, renyi.CONVERSION_ORDER_MAX))

    def _moments(self, sigma: float) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        scaled = scaled_entry(self.sensitivity_squared, sigma)
        return _poisson_moments(self.sampling_probability, scaled) * self.rounds


@lru_cache(maxsize=256)
def _poisson_moments(q: float, scaled: float) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """log sum_j C(a, j) (1 - q)^(a - j) q^j exp(j (j - 1) / (2 sigma^2)) for every order a, rounded up."""
    order_max = renyi.CONVERSION_ORDER_MAX
    moments = np.zeros(order_max + 1)
    keep, take = (math.log1p(-q) if q < 1.0 else -math.inf), math.log(q)
    for a in range(2, order_max + 1):
        j = np.arange(a + 1, dtype=np.float64)
        terms = (
            gammaln(a + 1.0)
            - gammaln(j + 1.0)
            - gammaln(a - j + 1.0)
            + j * take
            + j * (j - 1.0) / 2.0 * scaled
        )
        terms[:-1] += (a - j[:-1]) * keep
        top = float(terms.max())
        value = top + math.log(float(np.exp(terms - top).sum()))
        size = a * (a - 1) / 2 * scaled - a * take + 2.0 * math.lgamma(a + 1.0)
        moments[a] = max(0.0, value) + (8.0 * size + a + 8.0) * 2.0**-52
    return moments


def _renyi_answer(found: list[renyi.RenyiResult]) -> Answer:
    worst = max(found, key=lambda result: result.value)
    return Answer(worst.value, _edge_note(worst.order, worst.order) if worst.on_edge else "")


def _edge_note(order: int, edge: int) -> str:
    return f"the best Renyi order, {order}, is the largest that was computed" if order >= edge else ""
