"""The log-perturbed noise as a sum of exponentials: l_n = sum_j W_j e^{-n s_j}.

f is analytic off [1, inf), so l_n = int_0^inf e^{-n s} m(s) ds with m(s) = Im f(e^s + i0)/pi above
the cut. With s = e^u the trapezoid rule of step h converges at the rate e^{-pi^2/h}, uniformly in
n. Computed in mpmath: the integers made from it are the same on every machine.
docs/proofs/quadrature-form.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import mpmath
import numpy as np
from numpy.typing import NDArray

from evertally.counters.series import log_perturbed_series
from evertally.errors import UnsupportedMechanism

__all__ = [
    "THETA_BITS",
    "WEIGHT_BITS",
    "DyadicNodes",
    "cut_phase",
    "dyadic_nodes",
    "exact_noise_power",
]

THETA_BITS: Final = 62
WEIGHT_BITS: Final = 52
_STEP: Final = "0.4"  # decimal text: mpmath reads it to full precision
_SLOWEST: Final = mpmath.mpf(2) ** -52  # nodes below it join theta = 1
_DROPPED_MASS: Final = 1e-9  # what nodes of negative weight may carry into l_1
_EXCESS_MASS: Final = 1e-6  # what the others may add up to beyond l_0 = 1; the heaviest gives it back
_HEAD: Final = 64

_MP = mpmath.MPContext()
_MP.prec = 160


@dataclass(frozen=True, slots=True)
class DyadicNodes:
    """L = sum_i (weights_i / 2^52) / (1 - (thetas_i / 2^62) z) plus what theta = 0 takes to make l_0 = 1.

    Attributes:
        weights: positive integers in units of 2^-52; they and the weight at theta = 0 sum to 2^52.
        thetas: integers in units of 2^-62, ascending; the last is 1, that is 2^62.
    """

    weights: tuple[int, ...]
    thetas: tuple[int, ...]

    @property
    def at_zero(self) -> int:
        """Weight at theta = 0, in units of 2^-52; it has no state."""
        return (1 << WEIGHT_BITS) - sum(self.weights)

    def arrays(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """(weights, 1 - theta) as float64, each correctly rounded."""
        weights = np.array([w / 2.0**WEIGHT_BITS for w in self.weights])
        decays = np.array([((1 << THETA_BITS) - t) / 2.0**THETA_BITS for t in self.thetas])
        return weights, decays


def cut_phase(v: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """(arg A, arg B, |ln A|) just above the cut, at x = 1 + e^{-v}; all of the shape of `v`.

    The phase of f(.; gamma, delta) there is pi/2 + gamma arg A + delta arg B: m(s) has its sine's sign.
    """
    arg_a = np.arctan2(np.pi, v)
    log_a = 0.5 * np.log(v * v + np.pi * np.pi) - np.logaddexp(0.0, -v)
    return arg_a, np.arctan2(arg_a, log_a), np.hypot(log_a, arg_a)


@lru_cache(maxsize=64)
def dyadic_nodes(gamma: float, delta: float) -> DyadicNodes:
    """The nodes of L = f(.; gamma, delta) that the constant-memory engine realises, exact integers.

    Raises:
        UnsupportedMechanism: the density of L is negative where it matters, so L is no sum of
            exponentials with positive weights.
    """
    one = 1 << WEIGHT_BITS
    weights: list[int] = []
    thetas: list[int] = []
    dropped = _MP.mpf(0)
    slow = _MP.mpf(0)
    for j in range(12, -400, -1):
        s, w = _node(gamma, delta, _MP.mpf(_STEP), j)
        if w < 0:
            dropped -= w * _MP.exp(-s)
        elif s < _SLOWEST:
            slow += w
        else:
            weight = int(_MP.nint(w * one))
            theta = int(_MP.nint(_MP.exp(-s) * (1 << THETA_BITS)))
            if weight > 0 and theta > 0:
                weights.append(weight)
                thetas.append(theta)
    weights.append(int(_MP.nint(slow * one)))
    thetas.append(1 << THETA_BITS)
    excess = max(0, sum(weights) - one)
    weights[weights.index(max(weights))] -= excess
    if dropped > _DROPPED_MASS or excess > _EXCESS_MASS * one or weights[-1] < 1:
        raise UnsupportedMechanism(
            f"memory='constant' needs a noise function with a positive density; gamma={gamma}, "
            f"delta={delta} has none: take a larger loglog_ratio or memory='fft'"
        )
    return DyadicNodes(tuple(weights), tuple(thetas))


def _node(gamma: float, delta: float, step: mpmath.mpf, j: int) -> tuple[mpmath.mpf, mpmath.mpf]:
    """(s_j, W_j = h s_j m(s_j)) for s_j = e^{jh}."""
    s = _MP.exp(j * step)
    v = -_MP.log(_MP.expm1(s))
    a = _MP.mpc(v, _MP.pi) * _MP.exp(-s)
    log_f = _MP.mpc(v, _MP.pi) / 2 + gamma * _MP.log(a) + delta * (_MP.log(2 * _MP.log(a)) - s)
    return s, step * s * _MP.im(_MP.exp(log_f)) / _MP.pi


def exact_noise_power(gamma: float, delta: float, t: int) -> float:
    """sum_{n<t} l_n^2 to a relative 1e-12, for t up to 2^64, without the coefficients past n = 64.

    The trapezoid rule of step 1/4 gives the rest: a geometric sum for each pair of nodes. (Where
    delta < -gamma - 1/2 the density grows at large s and the integral needs n large enough.)
    """
    head = log_perturbed_series(gamma, delta, min(t, _HEAD))
    total = float(np.dot(head, head))
    if t <= _HEAD:
        return total
    s, w = _fine_nodes(gamma, delta)
    rate = s[:, None] + s[None, :]
    series = np.exp(-_HEAD * rate) * np.expm1(-float(t - _HEAD) * rate) / np.expm1(-rate)
    return total + float(w @ series @ w)


@lru_cache(maxsize=64)
def _fine_nodes(gamma: float, delta: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    pairs = [_node(gamma, delta, _MP.mpf("0.25"), j) for j in range(8, -520, -1)]
    return np.array([float(s) for s, _ in pairs]), np.array([float(w) for _, w in pairs])
