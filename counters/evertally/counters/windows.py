"""Counts over a window: the difference of two releases, with its exact standard error.

The noise of a_t - a_{t-w} is ((L_t - L_{t-w}) z), so its variance is sigma^2 ||L_t - L_{t-w}||^2: far
below the sum of the two variances, since neighbouring releases share most of their noise.
"""

from __future__ import annotations

from functools import singledispatch
from typing import Final

import numpy as np

from evertally.counters.factorization import Factorization
from evertally.counters.rational import Rational
from evertally.errors import UnsupportedMechanism
from evertally.validation import positive_integer

__all__ = ["window_power"]

_TICKS_MAX: Final = 2**24


@singledispatch
def window_power(factorization: Factorization, t: int, width: int) -> float:
    """||L_t - L_{t-width}||^2, where release 0 is the empty total.

    Args:
        factorization: the mechanism.
        t: tick of the later release, >= 1.
        width: ticks in the window, 1 <= width <= t.

    Raises:
        UnsupportedMechanism: t is above 2^24 and the mechanism has no closed form.
    """
    t = positive_integer("t", t)
    w = positive_integer("width", width, high=t)
    if t > _TICKS_MAX:
        raise UnsupportedMechanism(
            f"window errors of {factorization.mechanism_id} are offered up to t = 2^24"
        )
    coefficients = factorization.noise_coefficients(t)
    change = coefficients.copy()
    change[w:] -= coefficients[: t - w]
    return float(np.dot(change, change))


@window_power.register
def _(factorization: Rational, t: int, width: int) -> float:
    return factorization.window_power(t, width)
