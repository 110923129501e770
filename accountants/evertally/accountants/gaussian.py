"""The Gaussian mechanism, exactly: delta, epsilon and noise from one another.

One Gaussian mechanism of l2 sensitivity D and noise sigma is mu-GDP with mu = D/sigma, and
delta(epsilon) = Phi(-epsilon/mu + mu/2) - e^epsilon Phi(-epsilon/mu - mu/2)
(Balle and Wang, arXiv 1805.06530, theorem 8; Dong, Roth and Su, arXiv 1905.02383, corollary 2.13).
"""

from __future__ import annotations

import math
from collections.abc import Callable

from scipy.special import log_ndtr

from evertally.errors import InvalidParameter
from evertally.validation import positive_real, probability, real

__all__ = [
    "delta_below",
    "epsilon_below",
    "gaussian_delta",
    "gaussian_epsilon",
    "gaussian_mu",
    "gaussian_noise_multiplier",
]

_RELATIVE_STEP = 2.0**-48
_SMALLEST = 5e-324


def gaussian_delta(epsilon: float, mu: float) -> float:
    """Smallest delta at which mu-GDP gives (epsilon, delta), rounded up; never 0 by underflow.

    Args:
        epsilon: privacy loss >= 0, natural logarithm.
        mu: sensitivity over noise standard deviation, > 0.

    Guarantees:
        - an upper bound on the exact value: the relative rounding error of the evaluation is added.

    >>> round(gaussian_delta(1.0, 1.0), 12)
    0.126936737507
    """
    return (
        math.exp(min(0.0, _log_delta(real("epsilon", epsilon, low=0.0), positive_real("mu", mu))))
        or _SMALLEST
    )


def gaussian_epsilon(delta: float, mu: float) -> float:
    """Smallest epsilon at which mu-GDP gives (epsilon, delta), rounded up.

    >>> round(gaussian_epsilon(1e-6, 1.0), 10)
    4.8865541175
    """
    delta, mu = probability("delta", delta), positive_real("mu", mu)
    target = math.log(delta)
    if _log_delta(0.0, mu) <= target:
        return 0.0
    low, high = 0.0, max(1.0, mu * mu)
    while math.isfinite(high) and _log_delta(high, mu) > target:
        low, high = high, 2.0 * high
    if not math.isfinite(high):
        raise InvalidParameter("mu", mu, "a value whose epsilon is a finite number")
    return _bisect_down(lambda epsilon: _log_delta(epsilon, mu) <= target, low, high)


def delta_below(epsilon: float, mu: float) -> float:
    """As `gaussian_delta`, rounded down: 0 where rounding may have made all of it."""
    return math.exp(min(0.0, _log_delta(epsilon, mu, -1.0)))


def epsilon_below(delta: float, mu: float) -> float:
    """As `gaussian_epsilon`, rounded down."""
    target = math.log(delta) * (1.0 - 2.0**-50)
    if not _log_delta(0.0, mu, -1.0) > target:
        return 0.0
    low, high = 0.0, gaussian_epsilon(delta, mu)
    for _ in range(200):
        middle = 0.5 * (low + high)
        if high - low <= _RELATIVE_STEP * high or middle in (low, high):
            break
        if _log_delta(middle, mu, -1.0) > target:
            low = middle
        else:
            high = middle
    return low


def gaussian_mu(epsilon: float, delta: float) -> float:
    """Largest mu for which mu-GDP implies (epsilon, delta), rounded down.

    >>> round(gaussian_mu(4.8865541175, 1e-6), 8)
    1.0
    """
    return 1.0 / gaussian_noise_multiplier(epsilon, delta)


def gaussian_noise_multiplier(epsilon: float, delta: float) -> float:
    """Smallest sigma/sensitivity that gives (epsilon, delta), rounded up (to the safe side).

    >>> round(gaussian_noise_multiplier(1.0, 1e-6), 8)
    4.22467889
    """
    epsilon, delta = positive_real("epsilon", epsilon), probability("delta", delta)
    target = math.log(delta)
    low, high = 1.0, 1.0
    while _log_delta(epsilon, 1.0 / high) > target:
        high *= 2.0
        if high > 2.0**1000:
            raise InvalidParameter("epsilon", epsilon, "a target that some noise reaches")
    while _log_delta(epsilon, 1.0 / low) <= target:
        low /= 2.0
    return _bisect_down(lambda sigma: _log_delta(epsilon, 1.0 / sigma) <= target, low, high)


def _log_delta(epsilon: float, mu: float, side: float = 1.0) -> float:
    """log delta with a margin for the rounding of its two terms: above (side = 1) or below (-1)."""
    upper = float(log_ndtr(-epsilon / mu + mu / 2.0))
    lower = epsilon + float(log_ndtr(-epsilon / mu - mu / 2.0))
    ratio = lower - upper
    margin = 2.0**-50 * (4.0 + abs(upper) + abs(lower) + epsilon)
    share = (0.0 if ratio >= 0.0 else min(1.0, -math.expm1(ratio))) + side * margin
    return upper + math.log(min(1.0, share)) if share > 0.0 else -math.inf


def _bisect_down(admits: Callable[[float], bool], low: float, high: float) -> float:
    """Smallest admitted value between low (refused) and high (admitted), from the admitted side."""
    for _ in range(200):
        middle = 0.5 * (low + high)
        if high - low <= _RELATIVE_STEP * high or middle in (low, high):
            break
        if admits(middle):
            high = middle
        else:
            low = middle
    return high
