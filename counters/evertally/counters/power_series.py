"""Coefficients of (1-z)^(-p), 0 < p <= 1, to full precision at any index, and sums of their squares.

l_k = Gamma(k+p)/(Gamma(p) k!). The first ones come from exact products; beyond, in x = k + p/2,
Gamma(k+p)/k! = x^(p-1) (1 + e_1/x^2 + e_2/x^4 + ...), even powers only (Fields' expansion of a ratio of Gamma
functions, with generalised Bernoulli polynomials). No product over k is taken, so no error grows with k.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import mpmath
import numpy as np
from numpy.typing import NDArray

from evertally.validation import positive_integer, positive_real

__all__ = ["POWER_SERIES_ERROR", "extended_power_coefficients", "power_coefficients", "power_noise_power"]

POWER_SERIES_ERROR: Final = 2.0**-50
"""Relative bound on every coefficient in double precision; 2^-61 in extended precision."""

_HEAD: Final = 256
_MP = mpmath.MPContext()
_MP.prec = 100


def power_coefficients(power: float, n: int) -> NDArray[np.float64]:
    """Coefficients 0 .. n-1 of (1-z)^(-power), float64 of shape (n,).

    >>> power_coefficients(0.5, 4).tolist()
    [1.0, 0.5, 0.375, 0.3125]
    """
    return extended_power_coefficients(power, n).astype(np.float64)


def extended_power_coefficients(power: float, n: int) -> NDArray[np.longdouble]:
    """The same in extended precision, np.longdouble of shape (n,)."""
    positive_real("power", power, high=1.0)
    head, scale, corrections = _expansion(power)
    if positive_integer("n", n) <= _HEAD:
        return head[:n].copy()
    x = np.arange(_HEAD, n, dtype=np.longdouble) + np.longdouble(power) / 2
    inverse_square = 1 / (x * x)
    tail = np.zeros_like(x)
    for e in reversed(corrections):
        tail = (tail + e) * inverse_square
    leading = x ** (np.longdouble(power) - 1)
    return np.concatenate([head, scale * leading * (1 + tail)])


@lru_cache(maxsize=4096)
def power_noise_power(power: float, t: int) -> float:
    """sum_{k<t} l_k^2 for L = (1-z)^(-power), by Hurwitz zeta functions beyond the first coefficients."""
    positive_real("power", power, high=1.0)
    head, scale, corrections = _expansion(power)
    squares = head[: min(positive_integer("t", t), _HEAD)] ** 2
    total = float(squares[::-1].sum())
    if t <= _HEAD:
        return total
    series = [_MP.mpf(1), *(_MP.mpf(str(e)) for e in corrections)]
    tail = _MP.mpf(0)
    for j in range(len(series)):
        e = sum((series[i] * series[j - i] for i in range(j + 1)), _MP.mpf(0))
        exponent = 2 - 2 * _MP.mpf(power) + 2 * j
        tail += e * _zeta_difference(exponent, _HEAD + _MP.mpf(power) / 2, t + _MP.mpf(power) / 2)
    return total + float(scale) ** 2 * float(tail)


def _zeta_difference(s: mpmath.mpf, low: mpmath.mpf, high: mpmath.mpf) -> mpmath.mpf:
    """sum of x^-s over x = low, low+1, ..., high-1; the digamma function where s = 1."""
    if s == 1:
        return _MP.digamma(high) - _MP.digamma(low)
    if s == 0:
        return high - low
    return _MP.zeta(s, low) - _MP.zeta(s, high)


@lru_cache(maxsize=64)
def _expansion(power: float) -> tuple[NDArray[np.longdouble], np.longdouble, tuple[np.longdouble, ...]]:
    """(first coefficients, 1/Gamma(p), e_1 .. e_4)."""
    p = _MP.mpf(power)
    head = [_MP.mpf(1)]
    for k in range(1, _HEAD):
        head.append(head[-1] * (k - 1 + p) / k)
    # Binomial(p-1, 2j) B_{2j}^{(p)}(p/2), the generalised Bernoulli polynomials at their centre.
    bernoulli = (
        -p / 12,
        p * (5 * p + 2) / 240,
        -p * (35 * p**2 + 42 * p + 16) / 4032,
        p * (175 * p**3 + 420 * p**2 + 404 * p + 144) / 34560,
    )
    corrections = [_MP.binomial(p - 1, 2 * j) * b for j, b in enumerate(bernoulli, start=1)]
    extended = np.array([_longdouble(c) for c in head], dtype=np.longdouble)
    return extended, _longdouble(1 / _MP.gamma(p)), tuple(_longdouble(e) for e in corrections)


def _longdouble(x: mpmath.mpf) -> np.longdouble:
    return np.longdouble(_MP.nstr(x, 30))
