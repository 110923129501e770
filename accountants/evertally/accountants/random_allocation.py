"""Random allocation with the identity matrix, exactly: its privacy loss distribution, rounded outward.

A record draws one of b bins and takes part once in each of k epochs, always at its bin. With C = I the
dominating pair has orthogonal means of squared norm k, so the ratio of the two densities under Q is the
mean W of b independent lognormals of log-variance k/sigma^2, and
    delta_remove(e) = E(W - e^e)_+,    delta_add(e) = E(1 - e^e W)_+.
Both are convex in W; `lognormal_sum` and `lognormal_sum_below` enclose W in the convex order.

A sampler that draws a new bin in every epoch is another mechanism, not covered here.

Reference: arXiv 2601.21636, section 3 (the pair); docs/proofs/pld-rounding.md (the enclosure).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr, ndtr

from evertally.accountants.curve import epsilon_at
from evertally.accountants.gaussian import gaussian_delta, gaussian_epsilon
from evertally.accountants.lognormal_grid import MASS_MARGIN, VALUE_MARGIN, Law
from evertally.accountants.lognormal_sum import sum_above
from evertally.accountants.lognormal_sum_below import sum_below
from evertally.validation import integer, one_of, positive_integer, positive_real, probability, real

__all__ = ["CELLS", "DIRECTIONS", "RandomAllocationPLD", "delta"]

Array = NDArray[np.float64]

DIRECTIONS = ("remove", "add")
CELLS = 1024
"""Grid points of a law: about 0.3 % in delta at b = 1000, 0.05 % in sigma."""

_MAX_VARIANCE = 600.0
_MIN_VARIANCE = 1e-14
_UNDERFLOW = 1e-80
"""More than all masses that can be lost by underflow, at variances up to _MAX_VARIANCE."""


def delta(
    batches: int, sigma: float, epsilon: float, direction: str, *, upper: bool = True, epochs: int = 1
) -> float:
    """Delta of random allocation with the identity matrix at `epsilon`, rounded outward.

    Args:
        batches: number of bins b.
        sigma: noise standard deviation over the clip norm, one participation an epoch.
        epsilon: privacy loss >= 0, natural logarithm.
        direction: "remove" (P over Q) or "add" (Q over P).
        upper: True for an upper bound of delta, False for a lower bound.
        epochs: participations k, the same bin in each.

    >>> f"{delta(10, 1.0, 1.0, 'remove'):.3e}"
    '2.786e-03'
    """
    return RandomAllocationPLD(batches, sigma, direction, upper=upper, epochs=epochs).delta(epsilon)


@dataclass(frozen=True, slots=True)
class RandomAllocationPLD:
    """The privacy loss of one random allocation, optionally composed with one Gaussian mechanism.

    Guarantees:
        - upper=True: `delta` and `epsilon` are upper bounds, never above the mechanism without
          amplification; upper=False: lower bounds.
        - delta does not rise with epsilon; an upper bound is never 0.

    Attributes:
        batches: number of bins b.
        sigma: noise standard deviation over the clip norm.
        direction: "remove" or "add".
        upper: which side is certified.
        epochs: participations k, the same bin in each.
        gaussian_mu: mu of an independent Gaussian mechanism composed with it (upper bounds only).
        cells: grid points; fewer are faster and give a wider bound.
    """

    batches: int
    sigma: float
    direction: str
    upper: bool = True
    epochs: int = 1
    gaussian_mu: float = 0.0
    cells: int = CELLS
    _variance: float = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        positive_integer("batches", self.batches)
        positive_real("sigma", self.sigma)
        one_of("direction", self.direction, DIRECTIONS)
        positive_integer("epochs", self.epochs)
        real("gaussian_mu", self.gaussian_mu, low=0.0, high=math.inf if self.upper else 0.0)
        integer("cells", self.cells, low=16)
        variance = max(self.epochs / self.sigma / self.sigma, 1e-300)
        object.__setattr__(self, "_variance", min(variance, 1e300))

    def delta(self, epsilon: float) -> float:
        """Bound on delta at `epsilon` >= 0."""
        epsilon = real("epsilon", epsilon, low=0.0)
        if not self.upper:
            return self._delta_below(epsilon)
        unamplified = gaussian_delta(epsilon, math.sqrt(self._variance + self.gaussian_mu**2))
        if not _MIN_VARIANCE <= self._variance <= _MAX_VARIANCE:
            return max(math.ulp(0.0), unamplified)
        value = _hockey_stick(self._law(), epsilon - VALUE_MARGIN, self.direction, self.gaussian_mu)
        return max(math.ulp(0.0), min(unamplified, value * (1.0 + MASS_MARGIN * self.batches) + _UNDERFLOW))

    def epsilon(self, delta: float) -> float:
        """Bound on the epsilon at `delta`: from above (upper=True) or from below."""
        delta = probability("delta", delta)
        unamplified = gaussian_epsilon(delta, math.sqrt(self._variance + self.gaussian_mu**2))
        return epsilon_at(self.delta, delta, unamplified, upper=self.upper)

    def _delta_below(self, epsilon: float) -> float:
        if _MIN_VARIANCE <= self._variance <= _MAX_VARIANCE:
            value = _hockey_stick(self._law(), epsilon + VALUE_MARGIN, self.direction, 0.0)
            return max(0.0, value * (1.0 - MASS_MARGIN * self.batches) - _UNDERFLOW)
        return _event_delta(self.batches, math.sqrt(self._variance), epsilon, self.direction)

    def _law(self) -> Law:
        return _cached_law(self._variance, self.batches, self.cells, self.upper)


@lru_cache(maxsize=128)
def _cached_law(variance: float, batches: int, cells: int, upper: bool) -> Law:
    return (sum_above if upper else sum_below)(variance, batches, cells)


def _hockey_stick(law: Law, epsilon: float, direction: str, mu: float) -> float:
    """E(W e^Z - e^epsilon)_+ (remove) or E(1 - e^epsilon W e^Z)_+ (add), Z ~ N(-mu^2/2, mu^2)."""
    if direction == "remove":
        left = epsilon - law.log_values
        return float(np.sum(law.masses * np.exp(law.log_values) * _gaussian_deltas(left, mu))) + law.excess
    left = epsilon + law.log_values
    return float(np.sum(law.masses * _gaussian_deltas(left, mu))) + law.zero


def _gaussian_deltas(epsilon: Array, mu: float) -> Array:
    """Delta of mu-GDP at epsilons of any sign, rounded up within MASS_MARGIN; mu = 0 is the trivial pair."""
    if mu < 1e-13:
        # e^Z is within a relative 40 mu of 1 but for a mass below 1e-300: VALUE_MARGIN covers it
        return np.asarray(np.where(epsilon < 0.0, -np.expm1(np.minimum(epsilon, 0.0)), 0.0))
    upper = log_ndtr(-epsilon / mu + mu / 2.0)
    lower = epsilon + log_ndtr(-epsilon / mu - mu / 2.0)
    margin = 2.0**-48 * (4.0 + np.abs(upper) + np.abs(epsilon) + np.abs(lower))
    return np.asarray(np.exp(upper) * np.minimum(1.0, -np.expm1(np.minimum(lower - upper, 0.0)) + margin))


def _event_delta(batches: int, mu: float, epsilon: float, direction: str) -> float:
    """A lower bound from single events, for noise so small that masses leave the double range.

    remove: some coordinate exceeds t; add: none does. max over t of P(A) - e^epsilon Q(A), by the union
    bound over coordinates.
    """
    spread = math.sqrt(2.0 * (math.log(batches) + epsilon)) + 10.0
    t = np.concatenate([np.linspace(-10.0, spread, 512), mu + np.linspace(-spread, 10.0, 512)])
    log_b = math.log(batches)
    if direction == "remove":
        values = ndtr(mu - t) - np.exp(np.minimum(epsilon + log_b + log_ndtr(-t), 1.0))
    else:
        values = (
            1.0
            - np.exp(np.minimum(log_b + log_ndtr(-t), 1.0))
            - np.exp(np.minimum(epsilon + log_ndtr(t - mu), 1.0))
        )
    return max(0.0, float(np.max(values)) - 1e-9)
