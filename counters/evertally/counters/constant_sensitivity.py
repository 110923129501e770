"""What the constant-memory engine pays: norms of its realised dyadic weights and thetas.

L(z) = w_0 + sum_i w_i/(1 - theta_i z) with theta = 1 among them, so f_R = 1/((1-z) f_L) is bounded and
||R||^2 finite for an infinite stream. docs/proofs/quadrature-form.md.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from evertally.counters.log_perturbed_nodes import THETA_BITS, WEIGHT_BITS, DyadicNodes
from evertally.counters.rational_roots import Decay, decay_modes
from evertally.counters.series import reciprocal_series
from evertally.errors import UnsupportedMechanism

__all__ = [
    "constant_decay",
    "constant_noise_coefficients",
    "constant_noise_power",
    "constant_norm_squared",
    "constant_kappa",
    "constant_strategy_coefficients",
]

FloatArray = NDArray[np.float64]

_LOWEST: Final = -75.0  # ln th; below it f_R is constant to 1e-16 and the rest of the integral negligible
_AGREEMENT: Final = 1e-11
_MARGIN: Final = 2e-12
_BLOCK: Final = 1024


@lru_cache(maxsize=64)
def constant_norm_squared(nodes: DyadicNodes) -> float:
    """||R||^2 over all n of the realised mechanism, rounded up.

    (1/pi) int |f_R|^2 dth with th = e^x: every node is a feature of width 1 in x, so equal
    Gauss-Legendre panels converge geometrically.

    Raises:
        UnsupportedMechanism: two quadratures disagree.
    """
    coarse = _norm_squared(nodes, 128)
    fine = _norm_squared(nodes, 256)
    change = abs(fine - coarse)
    if not (math.isfinite(fine) and fine >= 1.0 and change <= _AGREEMENT * fine):
        raise UnsupportedMechanism(f"unconverged sensitivity: relative change {change / fine:.1e}")
    return math.nextafter(fine * (1.0 + _MARGIN) + 4.0 * change, math.inf)


def _norm_squared(nodes: DyadicNodes, panels: int) -> float:
    node, weight = np.polynomial.legendre.leggauss(24)
    edges = np.linspace(_LOWEST, math.log(math.pi), panels + 1)
    half = np.diff(edges) / 2.0
    x = ((edges[1:] + edges[:-1])[:, None] / 2.0 + half[:, None] * node).ravel()
    quadrature_weight = (half[:, None] * weight).ravel()
    th = np.exp(x)
    inverse = np.abs(_one_minus_z_times_noise(nodes, th)) ** -2.0
    # Below the lowest th the integrand in th is at most 1 / (weight at theta = 1)^2.
    rest = math.exp(_LOWEST) / (nodes.weights[-1] / 2.0**WEIGHT_BITS) ** 2
    return (float(np.dot(quadrature_weight, th * inverse)) + rest) / math.pi


def _one_minus_z_times_noise(nodes: DyadicNodes, th: FloatArray) -> NDArray[np.complex128]:
    """(1-z) f_L(z) at z = e^{i th}, without cancellation near th = 0."""
    weights, decays = nodes.arrays()
    one_minus_z = -2j * np.sin(th / 2.0) * np.exp(0.5j * th)
    total = np.full(th.shape, weights[-1], dtype=np.complex128)
    total += one_minus_z * (nodes.at_zero / 2.0**WEIGHT_BITS)
    for w, decay in zip(weights[:-1], decays[:-1], strict=True):
        total += w * one_minus_z / (decay + (1.0 - decay) * one_minus_z)
    return total


def constant_decay(nodes: DyadicNodes) -> Decay:
    """R as a sum of decaying exponentials: several participations cost a closed form, whatever k and b."""
    ones, one = 1 << THETA_BITS, 1 << WEIGHT_BITS
    weights = tuple(Fraction(w, one) for w in (*nodes.weights, nodes.at_zero))
    return decay_modes(tuple(Fraction(ones - theta, ones) for theta in nodes.thetas[:-1]), weights)


def constant_kappa(nodes: DyadicNodes) -> float:
    """||L^{-1}||_{2->2} = 1/f_L(-1): on the circle Re 1/(1 - theta z) >= 1/(1 + theta). Rounded up."""
    at_minus_one = Fraction(nodes.at_zero, 1 << WEIGHT_BITS)
    for w, theta in zip(nodes.weights, nodes.thetas, strict=True):
        at_minus_one += Fraction(w, 1 << WEIGHT_BITS) / (1 + Fraction(theta, 1 << THETA_BITS))
    return math.nextafter(float(1 / at_minus_one), math.inf)


def constant_noise_coefficients(nodes: DyadicNodes, n: int) -> FloatArray:
    """l_0 .. l_{n-1} of the realised weights; relative error a few 2^-53 each.

    theta^(a + 1024 b) = theta^a theta^(1024 b): a matrix product of two small tables.
    """
    weights, decays = nodes.arrays()
    log_theta = _log_theta(decays)
    fine = np.exp(np.outer(np.arange(min(n, _BLOCK)), log_theta))
    coarse = weights * np.exp(np.outer(_BLOCK * np.arange(-(-n // _BLOCK)), log_theta))
    coefficients: FloatArray = (coarse @ fine.T).ravel()[:n]
    coefficients[0] = 1.0
    return coefficients


def constant_strategy_coefficients(nodes: DyadicNodes, n: int) -> FloatArray:
    """r_0 .. r_{n-1} of R = 1/((1-z) L)."""
    weights, decays = nodes.arrays()
    log_theta = _log_theta(decays)
    # (1-z) L = 1 - sum over n >= 1 of [sum_i w_i (1-theta_i) theta_i^{n-1}] z^n, less the node at 0.
    slopes = np.empty(n)
    slopes[0] = 1.0
    scaled = weights * decays
    fine = np.exp(np.outer(np.arange(min(n, _BLOCK)), log_theta))
    coarse = scaled * np.exp(np.outer(_BLOCK * np.arange(-(-n // _BLOCK)), log_theta))
    slopes[1:] = -(coarse @ fine.T).ravel()[: n - 1]
    if n > 1:
        slopes[1] -= nodes.at_zero / 2.0**WEIGHT_BITS
    return np.asarray(reciprocal_series(slopes), dtype=np.float64)


def constant_noise_power(nodes: DyadicNodes, t: int) -> float:
    """sum_{n<t} l_n^2 in closed form: a geometric sum for each pair of nodes."""
    if t == 1:
        return 1.0
    weights, decays = nodes.arrays()
    log_theta = _log_theta(decays)
    rate = -(log_theta[:, None] + log_theta[None, :])
    last = float(t - 1)
    with np.errstate(invalid="ignore", divide="ignore"):
        series = np.exp(-rate) * np.expm1(-last * rate) / np.expm1(-rate)
    series[-1, -1] = last  # theta = 1 with itself
    return 1.0 + float(weights @ series @ weights)


def _log_theta(decays: FloatArray) -> FloatArray:
    log_theta: FloatArray = np.log1p(-decays)
    return log_theta
