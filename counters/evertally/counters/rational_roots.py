"""Partial fractions of R for L = w_0 + sum_i w_i/(1 - theta_i z): its roots, and norms in closed form.

With z = 1 + s, F(s) = (1-z) L(z) = w_1 - s sum_i w_i/(gap_i - theta_i s) - w_0 s, gap_i = 1 - theta_i, falls
from +inf to -inf between neighbouring poles, so each interval holds exactly one root, found at high
precision by Newton on F times the factors of its poles, which is smooth there. R(z) = 1/F, hence
R_n = sum_j c_j (1+s_j)^-n, c_j = -1/((1+s_j) F'(s_j)).
"""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from functools import lru_cache
from typing import Final, NamedTuple

import mpmath

from evertally.errors import IntegrityError

__all__ = ["Decay", "decay_modes", "decay_norm_squared", "precise_context"]

_PRECISION: Final = 260


class Decay(NamedTuple):
    """R_n = sum_j amplitudes[j] (1 + roots[j])^-n; both positive, roots increasing."""

    amplitudes: tuple[mpmath.mpf, ...]
    roots: tuple[mpmath.mpf, ...]


class _Terms(NamedTuple):
    """F in high precision: (w_i, gap_i, theta_i) by growing gap, the weights of theta = 1 and theta = 0."""

    decaying: list[tuple[mpmath.mpf, mpmath.mpf, mpmath.mpf]]
    at_one: mpmath.mpf
    at_zero: mpmath.mpf


@lru_cache(maxsize=64)
def decay_modes(gaps: tuple[Fraction, ...], weights: tuple[Fraction, ...]) -> Decay:
    """Amplitudes and roots to about 70 digits; checked against sum_j c_j = R_0 = 1.

    Args:
        gaps: 1 - theta_i of each decaying term, distinct, in (0, 1).
        weights: of those terms, > 0; then that of theta = 1, > 0; then that of theta = 0, >= 0.
    """
    context = precise_context(_PRECISION)

    def precise(x: Fraction) -> mpmath.mpf:
        return context.mpf(x.numerator) / x.denominator

    decaying = [
        (precise(w), precise(gap), precise(1 - gap)) for gap, w in sorted(zip(gaps, weights, strict=False))
    ]
    terms = _Terms(decaying, precise(weights[-2]), precise(weights[-1]))
    poles = [gap / theta for _, gap, theta in decaying]
    ends = [context.mpf(0), *poles]
    if terms.at_zero > 0:
        ends.append(_beyond(poles[-1], terms))
    roots = tuple(_root(low, high, poles, terms) for low, high in itertools.pairwise(ends))
    amplitudes = tuple(-1 / ((1 + s) * _value_and_slope(s, terms)[1]) for s in roots)
    if min(amplitudes) <= 0 or abs(sum(amplitudes) - 1) > context.mpf(10) ** -50:
        raise IntegrityError("the partial fractions of a rational factorization did not close")
    return Decay(amplitudes, roots)


@lru_cache(maxsize=256)
def decay_norm_squared(decay: Decay, k: int, b: int, horizon: int | None) -> float:
    """||sum_{i<k} R e_{1+ib}||^2, rounded up: over `horizon` ticks for k = 1, else over all of them."""
    context = precise_context(400)
    amplitudes, roots = ([context.mpf(x) for x in part] for part in decay)
    logs = [context.log1p(s) for s in roots]
    total = context.mpf(0)
    for c, s, u in zip(amplitudes, roots, logs, strict=True):
        pattern = c * (1 + s) * _pattern_sum(context, u, k, b)
        for d, t, v in zip(amplitudes, roots, logs, strict=True):
            term = pattern * d * (1 + t) / (s + t + s * t)  # 1 - 1/((1+s)(1+t)), without cancellation
            total += term if horizon is None or k > 1 else -term * context.expm1(-(u + v) * horizon)
    found = float(total)
    return math.nextafter(found, math.inf) if context.mpf(found) < total else found


def precise_context(precision: int) -> mpmath.MPContext:
    """A context of the caller's own: mpmath's global precision is shared by all threads of a process."""
    context = mpmath.MPContext()
    context.prec = precision
    return context


def _beyond(pole: mpmath.mpf, terms: _Terms) -> mpmath.mpf:
    """A place surely beyond the last root: from twice the last pole on s/(theta s - gap) <= 2/theta."""
    rest = sum(2 * w / theta for w, _, theta in terms.decaying)
    return 2 * pole + (terms.at_one + rest) / terms.at_zero + 1


def _value_and_slope(s: mpmath.mpf, terms: _Terms) -> tuple[mpmath.mpf, mpmath.mpf]:
    """F and its derivative at s."""
    value, slope = terms.at_one - terms.at_zero * s, -terms.at_zero
    for w, gap, theta in terms.decaying:
        distance = gap - theta * s
        part = w / distance
        value -= part * s
        slope -= part * gap / distance
    return value, slope


def _root(left: mpmath.mpf, right: mpmath.mpf, poles: list[mpmath.mpf], terms: _Terms) -> mpmath.mpf:
    """The one root inside (left, right): F > 0 left of it, < 0 right; Newton kept inside by bisection."""
    own = [end for end in (left, right) if end in poles]
    low, high, s = left, right, (left + right) / 2
    for _ in range(4 * _PRECISION):
        value, slope = _value_and_slope(s, terms)
        if value > 0:
            low = s
        else:
            high = s
        # of F times (s - pole) for the poles at the ends
        newton = s - value / (slope + value * sum(1 / (s - pole) for pole in own))
        if abs(newton - s) <= abs(s) * 2.0 ** (16 - _PRECISION) and left < newton < right:
            return newton
        s = newton if low < newton < high else (low + high) / 2
    raise IntegrityError("a root of a rational factorization did not converge")


def _pattern_sum(context: mpmath.MPContext, rate: mpmath.mpf, k: int, b: int) -> mpmath.mpf:
    """k + 2 sum_{m=1}^{k-1} (k - m) q^m with q = e^{-rate b}, in closed form."""
    if k == 1:
        return context.mpf(1)
    gap = -context.expm1(-rate * b)
    q = 1 - gap
    return k + 2 * q * (k * gap + context.expm1(-rate * b * k)) / gap**2
