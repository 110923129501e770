"""Conditional composition: delta <= H(product of per-row mixtures) + P(bad event), both directions.

A bound of its own kind: it follows the rows in time, enumerates no counts, and wins over Renyi at small
epsilon for one epoch; for many epochs it is loose (an event that is good or bad wastes what the posterior
knows). It has a time budget of its own and is offered behind the minimum over all bounds.

The probability of the bad event is additive in every later composition.

Reference: arXiv 2601.21636, section 5; docs/proofs/conditional-composition.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from evertally.accountants.cc_hazards import TEMPERATURES, HazardTests, prepare
from evertally.accountants.cc_product import product_pld
from evertally.accountants.gram import Gram
from evertally.accountants.random_allocation import DIRECTIONS
from evertally.validation import one_of, positive_real, probability, real

__all__ = [
    "SHARES",
    "TEMPERATURES",
    "TIME_BUDGET_S",
    "ConditionalComposition",
    "delta",
    "epsilon",
    "mean_maximising_temperature",
    "prepared",
]

SHARES = (0.05, 0.1, 0.3, 0.5)
"""Shares of delta that are tried for the probability of the bad event."""
TIME_BUDGET_S = 60.0
"""Default work for the statistics of one strategy; over it, the bound is left out."""
_MU_MAX = 24.0
_EVENTS = tuple(10.0**-exponent for exponent in range(2, 14))


@dataclass(frozen=True, slots=True)
class ConditionalComposition:
    """The bound for one strategy, its tests computed once.

    Guarantees:
        - `delta` is an upper bound for every noise level, epsilon, direction and every choice of the
          probabilities of the bad event.
    """

    tests: HazardTests

    def delta(self, sigma: float, epsilon: float, direction: str, delta_event: float) -> float:
        """Upper bound on delta at `epsilon` with probability `delta_event` spent on the bad event."""
        if self.hopeless(sigma):
            return 1.0
        hazards = self.tests.hazards(sigma, delta_event, direction)
        spent = delta_event if self.tests.count else 0.0
        return min(1.0, product_pld(self.tests, hazards, sigma, epsilon, direction).delta(epsilon) + spent)

    def hopeless(self, sigma: float) -> bool:
        """Whether one row alone loses so much that its masses leave the double range."""
        return float(self.tests.mean.max()) > _MU_MAX * sigma


def mean_maximising_temperature(sigma: float) -> float:
    """The temperature whose psi gives the bound on L_i its largest mean under the tested bin i.

    That mean is -sum psi_j |m_j - m_i|^2/(2 sigma^2) - KL(psi, uniform): its maximiser is Gibbs' measure at
    T = 2 sigma^2. For comparison only: a large mean is not a large threshold, the spread counts as well.

    >>> mean_maximising_temperature(2.0)
    8.0
    """
    return 2.0 * positive_real("sigma", sigma) ** 2


@lru_cache(maxsize=8)
def prepared(
    gram: Gram, temperatures: tuple[float, ...] = TEMPERATURES, time_budget_s: float = TIME_BUDGET_S
) -> ConditionalComposition | None:
    """The bound of a strategy, or None where its statistics would take more than `time_budget_s`."""
    tests = prepare(gram, temperatures, time_budget_s)
    return None if tests is None else ConditionalComposition(tests)


def delta(
    gram: Gram,
    sigma: float,
    epsilon: float,
    direction: str,
    delta_events: tuple[float, ...] = _EVENTS,
    temperatures: tuple[float, ...] = TEMPERATURES,
    time_budget_s: float = TIME_BUDGET_S,
) -> float:
    """Upper bound on delta at `epsilon`: the smallest over `delta_events`; 1.0 when over the time budget.

    Where a target delta is known, pass its shares: `tuple(s * target for s in SHARES)`.
    """
    positive_real("sigma", sigma)
    real("epsilon", epsilon, low=0.0)
    one_of("direction", direction, DIRECTIONS)
    bound = prepared(gram, temperatures, time_budget_s)
    if bound is None:
        return 1.0
    best = 1.0
    for event in sorted(probability("delta_events", event) for event in delta_events):
        value = bound.delta(sigma, epsilon, direction, event)
        if value > best:
            break  # past the optimum: more for the event no longer pays
        best = value
    return best


def epsilon(
    gram: Gram,
    sigma: float,
    delta: float,
    direction: str,
    shares: tuple[float, ...] = SHARES,
    temperatures: tuple[float, ...] = TEMPERATURES,
    time_budget_s: float = TIME_BUDGET_S,
) -> float | None:
    """Upper bound on the epsilon at `delta`, or None where this bound gives none (or is over its budget)."""
    positive_real("sigma", sigma)
    one_of("direction", direction, DIRECTIONS)
    probability("delta", delta)
    bound = prepared(gram, temperatures, time_budget_s)
    if bound is None or bound.hopeless(sigma):
        return None
    found = []
    for share in shares:
        hazards = bound.tests.hazards(sigma, share * delta, direction)
        rest = delta * (1.0 - share) * (1.0 - 2.0**-50)
        pld = product_pld(bound.tests, hazards, sigma, 1.0, direction)
        if pld.infinity < rest:
            found.append(pld.epsilon(rest))
    return min(found, default=None)
