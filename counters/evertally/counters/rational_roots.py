"""Partial fractions of R for a rational L: the roots of (1-z) L(z) and their amplitudes.

With z = 1 + s, F(s) = (1-z) L(z) = w_1 - s sum_i w_i/(2^-k_i - theta_i s) - w_0 s falls from +inf to
-inf between neighbouring poles, so each interval holds exactly one root, found by bisection and
Newton at high precision. R(z) = 1/F, hence R_n = sum_j c_j (1+s_j)^-n, c_j = -1/((1+s_j) F'(s_j)).
"""

from __future__ import annotations

import itertools
from functools import lru_cache
from typing import Final, NamedTuple

import mpmath

from evertally.errors import IntegrityError

__all__ = ["Decay", "decay_modes", "precise_context"]

_PRECISION: Final = 260


class Decay(NamedTuple):
    """R_n = sum_j amplitudes[j] (1 + roots[j])^-n; both positive, roots increasing."""

    amplitudes: tuple[mpmath.mpf, ...]
    roots: tuple[mpmath.mpf, ...]


@lru_cache(maxsize=64)
def decay_modes(exponents: tuple[int, ...], weights: tuple[int, ...], weight_bits: int) -> Decay:
    """Amplitudes and roots to about 70 digits; checked against sum_j c_j = R_0 = 1."""
    context = precise_context(_PRECISION)
    real = [context.ldexp(w, -weight_bits) for w in weights]
    gaps = [context.ldexp(1, -k) for k in exponents]
    poles = sorted(gap / (1 - gap) for gap in gaps)
    ends = [context.mpf(0), *poles]
    brackets = list(itertools.pairwise(ends))
    if weights[-1] > 0:
        brackets.append((poles[-1], poles[-1] + 1 + 2 * _beyond(real)))
    roots = tuple(_root(low, high, real, gaps) for low, high in brackets)
    amplitudes = tuple(-1 / ((1 + s) * _slope(s, real, gaps)) for s in roots)
    if min(amplitudes) <= 0 or abs(sum(amplitudes) - 1) > context.mpf(10) ** -50:
        raise IntegrityError("the partial fractions of a rational factorization did not close")
    return Decay(amplitudes, roots)


def precise_context(precision: int) -> mpmath.MPContext:
    """A context of the caller's own: mpmath's global precision is shared by all threads of a process."""
    context = mpmath.MPContext()
    context.prec = precision
    return context


def _beyond(real: list[mpmath.mpf]) -> mpmath.mpf:
    """A width beyond the last pole that surely holds the last root: there F <= w_1 + 2 - w_0 s < 0."""
    return (real[-2] + 2) / real[-1] + 2


def _value(s: mpmath.mpf, real: list[mpmath.mpf], gaps: list[mpmath.mpf]) -> mpmath.mpf:
    total = real[-2] - real[-1] * s
    for w, gap in zip(real, gaps, strict=False):
        total -= w * s / (gap - (1 - gap) * s)
    return total


def _slope(s: mpmath.mpf, real: list[mpmath.mpf], gaps: list[mpmath.mpf]) -> mpmath.mpf:
    total = -real[-1]
    for w, gap in zip(real, gaps, strict=False):
        total -= w * gap / (gap - (1 - gap) * s) ** 2
    return total


def _root(low: mpmath.mpf, high: mpmath.mpf, real: list[mpmath.mpf], gaps: list[mpmath.mpf]) -> mpmath.mpf:
    """The one root inside (low, high): F > 0 left of it, < 0 right of it; Newton kept inside by bisection."""
    s = (low + high) / 2
    for _ in range(4 * _PRECISION):
        value = _value(s, real, gaps)
        if value > 0:
            low = s
        else:
            high = s
        newton = s - value / _slope(s, real, gaps)
        following = newton if low < newton < high else (low + high) / 2
        if abs(following - s) <= abs(s) * 2.0 ** (8 - _PRECISION):
            return following
        s = following
    raise IntegrityError("a root of a rational factorization did not converge")
