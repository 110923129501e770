"""Poisson sampling as an upper bound, for comparison with other accountants."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

from evertally.accountants import renyi
from evertally.accountants.bound import Source
from evertally.accountants.conversion import SMALLEST_DELTA, epsilon_from_moments, log_delta_from_moments
from evertally.accountants.curves import Answer
from evertally.accountants.renyi_curve import edge_note
from evertally.accountants.renyi_lines import scaled_entry

__all__ = ["PoissonRenyi"]

FloatArray = NDArray[np.float64]


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
        return Answer(max(math.exp(log_delta), SMALLEST_DELTA), edge_note(order, renyi.CONVERSION_ORDER_MAX))

    def epsilon(self, sigma: float, delta: float) -> Answer:
        """Upper bound on epsilon."""
        value, order = epsilon_from_moments(self._moments(sigma), delta)
        return Answer(value, edge_note(order, renyi.CONVERSION_ORDER_MAX))

    def _moments(self, sigma: float) -> FloatArray:
        scaled = scaled_entry(self.sensitivity_squared, sigma)
        return _poisson_moments(self.sampling_probability, scaled) * self.rounds


@lru_cache(maxsize=256)
def _poisson_moments(q: float, scaled: float) -> FloatArray:
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
