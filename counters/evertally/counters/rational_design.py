"""Designing a rational preset: weights that minimise the worst variance over a range of ticks.

L(z) = sum_i w_i/(1 - theta_i z) with theta_i in {1 - 2^-k_i, 1, 0} and w_i > 0, sum w_i = 1. Then (1-z) L has
real zeros that interlace with the 1/theta_i, so R = 1/((1-z) L) has R_0 = 1 and R_n = sum_j rho_j p_j^(n-1),
rho_j > 0, 0 < p_j < 1 (docs/proofs/rational-presets.md). Everything below is written in delta = 1 - p and
epsilon_i = 1 - theta_i, which keep full relative accuracy for time constants of 2^40 ticks and beyond.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from evertally.counters.yardstick import yardstick_variance
from evertally.errors import InvalidParameter
from evertally.validation import positive_integer

__all__ = ["RationalForms", "design_rational", "grid_exponents"]

FloatArray = NDArray[np.float64]

_LAST_LIMIT: Final = 2**48
_TICKS_PER_OCTAVE: Final = 6
_SHARPNESS: Final = (10.0, 40.0, 160.0, 640.0, 2560.0, 10240.0, 40960.0)
_BISECTIONS: Final = 16
_NEWTON_STEPS: Final = 7
_SMALLEST_LOG_WEIGHT: Final = -60.0
_NEGLIGIBLE: Final = 1e-9


@dataclass(frozen=True, slots=True)
class RationalForms:
    """||R||^2 of one L in closed form, in doubles and with its gradient: what an optimiser needs.

    The certified bound of a realised mechanism is `Rational.sensitivity_squared`, in high precision.

    Attributes:
        decay: 1 - p_j of every mode of R, shape (modes,), descending in p.
        residue: rho_j > 0 in R_n = sum_j rho_j p_j^(n-1) for n >= 1, shape (modes,).
        sensitivity_squared: ||R||^2 = sum_{n>=0} R_n^2.
        gradient: d ||R||^2 / d w_i, shape (terms,), at fixed sum w = 1 (R_0 is not varied).
    """

    decay: FloatArray
    residue: FloatArray
    sensitivity_squared: float
    gradient: FloatArray

    @classmethod
    def of(cls, epsilon: FloatArray, weights: FloatArray) -> RationalForms:
        """Closed forms for distinct poles theta = 1 - epsilon, 0 and 1 among them, and weights > 0."""
        order = np.argsort(epsilon)
        e, w = epsilon[order], weights[order]
        origin, offset = _secular_roots(e, w)
        decay = e[origin] + offset
        # epsilon_i - delta_j without cancellation: every root is kept as (nearest pole, offset).
        gap = (e[None, :] - e[origin][:, None]) - offset[:, None]
        slope = (w / gap**2).sum(axis=1)
        bend = 2.0 * (w / gap**3).sum(axis=1)
        residue = 1.0 / (decay * slope)
        overlap = decay[:, None] + decay[None, :] - decay[:, None] * decay[None, :]
        product = residue[:, None] * residue[None, :]
        squared = 1.0 + float((product / overlap).sum())
        by_residue = 2.0 * (residue[None, :] / overlap).sum(axis=1)
        by_decay = -2.0 * (product * (1.0 - decay[None, :]) / overlap**2).sum(axis=1)
        decay_by_w = -(1.0 / gap) / slope[:, None]
        slope_by_w = 1.0 / gap**2 + bend[:, None] * decay_by_w
        residue_by_w = -residue[:, None] * (decay_by_w / decay[:, None] + slope_by_w / slope[:, None])
        gradient = np.empty_like(w)
        gradient[order] = by_residue @ residue_by_w + by_decay @ decay_by_w
        return cls(decay=decay, residue=residue, sensitivity_squared=squared, gradient=gradient)


def grid_exponents(last: int) -> tuple[tuple[int, ...], ...]:
    """The ratio-8 grids of exponents k from 1 to log2(last) that a design tries.

    >>> grid_exponents(2**12)
    ((1, 3, 6, 9, 12), (1, 3, 5, 8, 11))
    """
    top = max(1, math.ceil(math.log2(last)))
    grids = (1, *range(3, top + 1, 3)), tuple(k for k in (1, 3, *range(5, top + 1, 3)) if k <= top)
    return tuple(dict.fromkeys(grids))


def design_rational(first: int, last: int) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Exponents and weights whose worst variance over V_t^2, for t in [first, last], is smallest.

    Minimises log ||R||^2 + log max_t (sum_{k<t} l_k^2 / V_t^2) over log-weights with L-BFGS, the maximum
    being softened and sharpened in stages, with exact gradients. Takes one to two seconds.

    Args:
        first: first tick of the range, >= 1.
        last: last tick of the range, > first, at most 2^48.

    Returns:
        (exponents, weights): exponents ascending; weights one for each exponent, then theta = 1, then
        theta = 0. Weights are positive and sum to 1.

    Guarantees:
        - deterministic: the same range gives the same weights (test_design_is_deterministic);
        - worst ratio at most 1.325 on [2^10, 2^24] and 1.515 on [2^8, 2^32] (test_design_reaches_its_bar).

    Reference: docs/proofs/rational-presets.md, section 5.
    """
    positive_integer("first", first)
    if positive_integer("last", last, high=_LAST_LIMIT) <= first:
        raise InvalidParameter("last", last, f"an integer > first = {first}")
    designs = [_design_on(exponents, first, last) for exponents in grid_exponents(last)]
    _worst, exponents, weights = min(designs, key=lambda design: design[0])
    return exponents, tuple(float(w) for w in weights)


def _design_on(
    exponents: tuple[int, ...], first: int, last: int
) -> tuple[float, tuple[int, ...], FloatArray]:
    """(log of the worst ratio, exponents kept, weights): time constants of no use are dropped."""
    epsilon = np.array([*(2.0**-k for k in exponents), 0.0, 1.0])
    start = np.log(_start(epsilon, last))
    value, weights = _minimise(_Objective(epsilon, first, last), start, _SHARPNESS)
    used = np.append(weights[:-2] > _NEGLIGIBLE, [True, True])
    if not used.all():
        exponents = tuple(k for k, keep in zip(exponents, used, strict=False) if keep)
        value, weights = _minimise(
            _Objective(epsilon[used], first, last), np.log(weights[used]), _SHARPNESS[-1:]
        )
    return value, exponents, weights


def _minimise(objective: _Objective, x: FloatArray, stages: tuple[float, ...]) -> tuple[float, FloatArray]:
    value = math.inf
    for sharpness in stages:
        result = minimize(
            objective.value_and_gradient,
            x,
            args=(sharpness,),
            jac=True,
            method="L-BFGS-B",
            bounds=[(_SMALLEST_LOG_WEIGHT, 2.0)] * len(x),
            options={"maxiter": 1500, "maxcor": 40, "ftol": 1e-15, "gtol": 1e-9},
        )
        x, value = result.x, float(result.fun)
    weights = np.exp(x)
    return value, weights / weights.sum()


class _Objective:
    """log ||R||^2 + soft max over ticks of log(noise power / V_t^2), by log-weights."""

    def __init__(self, epsilon: FloatArray, first: int, last: int) -> None:
        self._epsilon = epsilon
        count = max(2, math.ceil(_TICKS_PER_OCTAVE * math.log2(last / first)) + 1)
        ticks = np.unique(np.rint(np.geomspace(first, last, count)).astype(np.int64))
        yard = np.array([yardstick_variance(int(t)) for t in ticks])
        self._forms = _noise_power_forms(epsilon, ticks) / yard[:, None, None]

    def value_and_gradient(self, x: FloatArray, sharpness: float) -> tuple[float, FloatArray]:
        w = np.exp(x)
        total = w.sum()
        w = w / total
        forms = RationalForms.of(self._epsilon, w)
        applied = self._forms @ w
        power = applied @ w
        level = sharpness * np.log(power)
        top = level.max()
        share = np.exp(level - top)
        value = math.log(forms.sensitivity_squared) + (top + math.log(share.sum())) / sharpness
        share /= share.sum()
        gradient = forms.gradient / forms.sensitivity_squared + (share / power) @ (2.0 * applied)
        # Chain rule through w = exp(x)/sum exp(x).
        return float(value), w * (gradient - w @ gradient)


def _noise_power_forms(epsilon: FloatArray, ticks: NDArray[np.int64]) -> FloatArray:
    """G_t with w' G_t w = sum_{k<t} l_k^2: entries (1 - (theta_i theta_j)^t)/(1 - theta_i theta_j)."""
    gap = epsilon[:, None] + epsilon[None, :] - epsilon[:, None] * epsilon[None, :]
    t = ticks.astype(np.float64)[:, None, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        forms = -np.expm1(t * np.log1p(-gap)) / gap
    return np.where(gap == 0.0, t, forms)


def _start(epsilon: FloatArray, last: int) -> FloatArray:
    """A first guess: the weights that (1-z)^(-1/2) gives to each time constant, ~ sqrt(epsilon)."""
    raw = np.sqrt(np.maximum(epsilon, 1.0 / (4.0 * last)))
    raw[-1] = 0.1 * raw.sum()
    return np.asarray(raw / raw.sum(), dtype=np.float64)


def _secular_roots(e: FloatArray, w: FloatArray) -> tuple[NDArray[np.intp], FloatArray]:
    """Zeros of sum_i w_i/(e_i - delta) between consecutive poles e (ascending).

    Returns (origin, offset): delta_j = e[origin_j] + offset_j with origin the nearer pole of the interval, so
    that differences to every pole keep full relative accuracy. Bisection in log|offset|, then Newton.
    """
    left = np.arange(len(e) - 1)
    width = e[1:] - e[:-1]
    middle = e[:-1] + 0.5 * width
    at_middle = (w[None, :] / (e[None, :] - middle[:, None])).sum(axis=1)
    # The sum rises from -inf to +inf over the interval: positive at the middle means a root left of it.
    near_left = at_middle > 0.0
    origin = np.where(near_left, left, left + 1)
    sign = np.where(near_left, 1.0, -1.0)
    distance = e[None, :] - e[origin][:, None]
    own = w[origin]
    low, high = np.log(width) - 140.0, np.log(0.5 * width)

    def others(step: FloatArray) -> tuple[FloatArray, FloatArray]:
        gap = distance - (sign * step)[:, None]
        gap[left, origin] = np.inf
        return (w / gap).sum(axis=1), (w / gap**2).sum(axis=1)

    for _ in range(_BISECTIONS):
        log_step = 0.5 * (low + high)
        rest, _slope = others(np.exp(log_step))
        # sign * (rest - own/(sign step)): the own pole dominates close to it.
        outside = sign * rest * np.exp(log_step) > own
        high = np.where(outside, log_step, high)
        low = np.where(outside, low, log_step)
    step = np.exp(0.5 * (low + high))
    # Beyond the middle by a little, where a root lies at the middle itself.
    floor, ceiling = np.exp(low), 1.001 * np.exp(high)
    for _ in range(_NEWTON_STEPS):
        rest, slope = others(step)
        # Newton on step * rest = sign * own, whose solution is nearly linear in step.
        value = step * rest - sign * own
        derivative = rest + step * sign * slope
        step = np.clip(step - value / derivative, floor, ceiling)
    return origin.astype(np.intp), np.asarray(sign * step, dtype=np.float64)
