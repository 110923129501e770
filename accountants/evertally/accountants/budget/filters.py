"""Two privacy filters that stay valid when requests are chosen adaptively.

Gaussian scopes: admit while sum mu_i^2 <= mu_cap^2 (arXiv 2210.17520), with mu_cap the largest mu whose
exact trade-off gives (epsilon, delta); exact for Gaussian mechanisms. Mixed scopes: Renyi values at the
scope's one order a, admit while their sum is <= R_cap (arXiv 2008.11193). "Admit when some order still
fits" is not the theorem, and f-DP filters are invalid in general (arXiv 2602.06756): neither exists here.
"""

from __future__ import annotations

import math
from fractions import Fraction

from evertally.accountants.budget.amounts import NANO
from evertally.accountants.gaussian import gaussian_mu
from evertally.errors import InvalidParameter
from evertally.validation import positive_real, probability, real

__all__ = ["gaussian_cap", "gaussian_renyi_units", "renyi_cap", "renyi_cap_value", "zcdp_cap"]

_MARGIN = 2.0**-44


def gaussian_cap(epsilon: float, delta: float) -> int:
    """Cap on sum mu_i^2 in nano units, rounded down.

    Guarantees:
        - composing Gaussian mechanisms below it, adaptively, gives (epsilon, delta).

    >>> gaussian_cap(4.8865541175, 1e-6)
    1000000000
    """
    return _floor_units("epsilon_cap", epsilon, Fraction(gaussian_mu(epsilon, delta)) ** 2)


def zcdp_cap(epsilon: float, delta: float) -> int:
    """What the zCDP conversion epsilon = rho + 2 sqrt(rho log(1/delta)) would allow, as nano mu^2 = 2 rho.

    For comparison only; always below `gaussian_cap`.
    """
    log_delta = -math.log(probability("delta", delta))
    root = math.sqrt(log_delta + positive_real("epsilon", epsilon)) - math.sqrt(log_delta)
    return math.floor(2.0 * root * root * NANO)


def renyi_cap_value(order: float, epsilon: float, delta: float) -> float:
    """R_cap = epsilon - log((a-1)/a) + (log delta + log a)/(a-1), rounded down; may be <= 0.

    The inverse of epsilon = R + log((a-1)/a) - (log delta + log a)/(a-1) (arXiv 2004.00010, proposition 12).
    """
    a = real("order", order, low=1.0)
    if not a > 1.0:
        raise InvalidParameter("order", order, "a number > 1")
    epsilon, delta = positive_real("epsilon", epsilon), probability("delta", delta)
    terms = (epsilon, -math.log1p(-1.0 / a), (math.log(delta) + math.log(a)) / (a - 1.0))
    return sum(terms) - _MARGIN * sum(abs(x) for x in terms)


def renyi_cap(order: float, epsilon: float, delta: float) -> int:
    """Cap on the sum of Renyi values at `order` in nano units, rounded down.

    Raises InvalidParameter where R_cap is not positive: that order cannot give (epsilon, delta).

    >>> renyi_cap(16.0, 2.0, 1e-6)
    1328343732
    """
    value = renyi_cap_value(order, epsilon, delta)
    if not value > 0.0:
        raise InvalidParameter("order", order, "an order at which R_cap > 0 for this epsilon and delta")
    return _floor_units("order", order, Fraction(value))


def gaussian_renyi_units(mu2: Fraction, order: float) -> int:
    """Renyi value a mu^2 / 2 of a Gaussian line in nano units, rounded up."""
    return math.ceil(Fraction(order) * mu2 / 2 * NANO)


def _floor_units(field: str, got: float, value: Fraction) -> int:
    units = math.floor(value * NANO)
    if units < 1:
        raise InvalidParameter(field, got, "a cap of at least one nano unit")
    if units > 2**62:
        raise InvalidParameter(field, got, "a cap below 2^62 nano units")
    return units
