"""The yardstick of every comparison: the square-root factorization that knows the last tick.

With c the coefficients of (1-z)^(-1/2), the factorization L = R = c truncated at t has sensitivity^2 and
noise power V_t = sum_{k<t} c_k^2 each, so its variance at its last tick t is V_t^2 at unit privacy
(Fichtenberger, Henzinger and Upadhyay, arXiv 2202.11205; the V_t are Landau's constants).
"""

from __future__ import annotations

import math
from functools import cache
from typing import Final

from evertally.counters.power_series import power_coefficients
from evertally.validation import positive_integer

__all__ = ["yardstick", "yardstick_variance"]

_EXACT_UP_TO: Final = 64
_EULER: Final = 0.5772156649015329
_CONSTANT: Final = _EULER + 4.0 * math.log(2.0)
# pi V_t - ln x - constant in powers of 1/x^2 at x = t - 1/4; the next term is below 2e-15 from t = 64 on.
_TAIL: Final = (11 / 192, -1541 / 122880, 63433 / 8257536)


def yardstick(t: int) -> float:
    """V_t = sum_{k<t} c_k^2, to a relative error below 1e-14.

    Guarantees:
        - equal to the exact sum for t <= 64, to its asymptotic expansion beyond; tests/counters/
          test_yardstick.py compares both with exact rational sums and with 40-digit arithmetic.

    >>> round(yardstick(2**12), 13)
    3.7138836274413
    """
    if positive_integer("t", t) <= _EXACT_UP_TO:
        return _small()[t - 1]
    x = t - 0.25
    tail = 0.0
    for coefficient in reversed(_TAIL):
        tail = (tail + coefficient) / (x * x)
    return (math.log(x) + _CONSTANT + tail) / math.pi


def yardstick_variance(t: int) -> float:
    """V_t^2: the variance at tick t, at unit privacy, of the factorization made for exactly t ticks."""
    return yardstick(t) ** 2


@cache
def _small() -> tuple[float, ...]:
    c = power_coefficients(0.5, _EXACT_UP_TO)
    return tuple(math.fsum(c[:t] ** 2) for t in range(1, _EXACT_UP_TO + 1))
