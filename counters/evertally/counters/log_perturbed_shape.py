"""Is R positive and non-increasing for ever? A certificate for the (k, b) formula.

r_n = int_0^inf e^{-n s} m(s) ds, m with the sign of sin(phase), phase = pi/2 + gamma a(v) + delta b(v)
on the cut at x = e^s = 1 + e^{-v}. Where 0 < phase < pi everywhere, R is completely monotone. With
delta = 0 the phase falls from pi/2 as s grows and m changes sign at most once, from + to -; then
e^{n s*} (r_n - r_{n+1}) grows with n, so an early difference that is positive proves all later ones.
docs/proofs/sensitivity-quadrature.md, "Shape of R".
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Final

import numpy as np

from evertally.counters.log_perturbed_nodes import cut_phase
from evertally.counters.series import log_perturbed_series

__all__ = ["strategy_is_decreasing"]

_REACH: Final = 700.0
_SPACING: Final = 2e-3
_HEAD: Final = 64
_CLEAR: Final = 1e-12  # a difference of early coefficients that rounding cannot have made


@lru_cache(maxsize=64)
def strategy_is_decreasing(gamma: float, delta: float) -> bool:
    """True only if r_0 >= r_1 >= ... > 0 is proved for R = f(.; gamma, delta), -3/2 <= gamma < -1/2.

    >>> strategy_is_decreasing(-1.5, 1.8), strategy_is_decreasing(-1.5, 0.0)
    (True, False)
    """
    head = log_perturbed_series(gamma, delta, _HEAD)
    if not (np.all(np.diff(head) <= -_CLEAR) and head[-1] > _CLEAR):
        return False
    # delta = 0: the phase is monotone in s and stays above -pi for gamma >= -3/2; the integral
    # converges from n = 2 on, where the differences above take over.
    return delta == 0.0 or _phase_stays_inside(gamma, delta)


def _phase_stays_inside(gamma: float, delta: float) -> bool:
    """0 < phase < pi on the whole cut: grid and Lipschitz constant inside |v| <= 700, bounds beyond."""
    v = np.linspace(-_REACH, _REACH, round(2 * _REACH / _SPACING) + 1)
    arg_a, arg_b, log_modulus = cut_phase(v)
    phase = math.pi / 2 + gamma * arg_a + delta * arg_b
    # |da/dv| <= 1/pi and |d ln|A| / dv| <= 1 + 1/(2 pi), so |d ln A/dv| <= 1.21 and |db/dv| <= 1.21/|ln A|.
    slope_b = 1.21 / (float(log_modulus.min()) - 1.21 * _SPACING)
    allowance = 0.5 * _SPACING * (abs(gamma) / math.pi + abs(delta) * slope_b) + 1e-9
    if phase.min() <= allowance or phase.max() >= math.pi - allowance:
        return False
    # v < -700: pi - pi/|v| <= a < pi and pi - b <= pi/(|v| - ln|v| - 1/|v|).
    # v > 700: a <= pi/v and 0 < b <= a / ln v <= a; both shift the phase from pi/2 by little.
    a_gap = math.pi / _REACH
    b_gap = math.pi / (_REACH - math.log(_REACH) - 1.0)
    limit = math.pi * (0.5 + gamma + delta)
    return (
        limit - delta * b_gap > 0.0
        and limit - gamma * a_gap < math.pi
        and (abs(gamma) + delta) * a_gap < math.pi / 2
    )
