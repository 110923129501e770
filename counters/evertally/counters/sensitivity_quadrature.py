"""||R||^2 and kappa of the log-perturbed family, by integrals on the unit circle.

||R||^2 = (1/pi) int_0^pi |f_R(e^{i th})|^2 dth is what an infinite stream pays. Near th = 0 the
integrand falls like 1/(th ln^{1+2 alpha}(1/th)), so for small alpha most of the mass lies beyond
every th a generic routine visits. Here th = e^{-e^u} below e^-2 and the rest beyond u = 24 is an
incomplete gamma function. Proof and error budget: docs/proofs/sensitivity-quadrature.md.

On the circle x = -ln(2 sin(th/2)), y = (pi - th)/2, A = (x + i y) e^{-i th}.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, Final

import mpmath
import numpy as np
from numpy.typing import NDArray

from evertally.errors import UnsupportedMechanism

__all__ = ["inverse_noise_norm", "strategy_norm_squared"]

FloatArray = NDArray[np.floating[Any]]

_SPLIT: Final = 2.0  # th = e^-2
_TAIL_FROM: Final = 24.0  # |A| = e^u to a relative e^{-2u} < 1e-20 from here on
_AGREEMENT: Final = 1e-11  # between a quadrature and the one with twice the panels, in more precision
_MARGIN: Final = 2e-12  # relative, added on top: 100 times the error seen against 60 digits


@lru_cache(maxsize=256)
def strategy_norm_squared(gamma: float, delta: float) -> float:
    """||R||^2 = sum of r_n^2 over ALL n for R = f(.; gamma, delta) with gamma < -1/2, rounded up.

    Raises:
        UnsupportedMechanism: the quadrature did not converge; its value is not used.

    Guarantees:
        - at least the true value: margins of 2e-12 and of four times the change under refinement.
        - within 1e-10 of the true value.

    Reference: Parseval on the circle; docs/proofs/sensitivity-quadrature.md.

    >>> round(strategy_norm_squared(-0.51, 0.0), 9)
    16.587489215
    """
    coarse = _norm_squared(gamma, delta, 1, np.float64)
    fine = _norm_squared(gamma, delta, 2, np.longdouble)
    change = abs(fine - coarse)
    if not (math.isfinite(fine) and fine >= 1.0 and change <= _AGREEMENT * fine):
        raise UnsupportedMechanism(
            f"unconverged sensitivity for gamma={gamma}, delta={delta}: two quadratures differ by "
            f"a relative {change / fine:.1e}"
        )
    return math.nextafter(fine * (1.0 + _MARGIN) + 4.0 * change, math.inf)


def _norm_squared(gamma: float, delta: float, refinement: int, dtype: type[np.floating[Any]]) -> float:
    """The integral with `refinement` times the base panels, evaluated in `dtype`."""
    th, weight = _panels(np.exp(dtype(-_SPLIT)), dtype(mpmath.pi), 16 * refinement, dtype)
    x = -np.log(2 * np.sin(th / 2))
    y = (dtype(mpmath.pi) - th) / 2
    near_one = _modulus_squared(gamma, delta, np.zeros_like(th), x, y, th) / (2 * np.sin(th / 2))
    outer = np.dot(weight, near_one)

    u, weight = _panels(np.log(dtype(_SPLIT)), dtype(_TAIL_FROM), 48 * refinement, dtype)
    log_inverse = np.exp(u)  # ln(1/th)
    th = np.exp(-np.minimum(log_inverse, 700))
    chord = 2 * np.sin(th / 2) / th
    x = 1 - np.log(chord) / log_inverse
    y = (dtype(mpmath.pi) - th) / 2 / log_inverse
    # th e^u / |1-z| |A|^{2 gamma} |B|^{2 delta}, with A scaled by e^{-u}.
    decaying = np.exp(u) / chord * _modulus_squared(gamma, delta, u, x, y, th)
    inner = np.dot(weight, decaying)
    return float(outer + inner) / math.pi + _closed_tail(gamma, delta) / math.pi


def _modulus_squared(
    gamma: float, delta: float, u: FloatArray, x: FloatArray, y: FloatArray, th: FloatArray
) -> FloatArray:
    """|A|^{2 gamma} |B|^{2 delta} for A = e^u (x + i y) e^{-i th}, |B| = 2 |ln A|."""
    log_a = u + np.log(x * x + y * y) / 2
    arg_a = np.arctan2(y, x) - th
    log_b = np.log(4 * (log_a * log_a + arg_a * arg_a))
    squared: FloatArray = np.exp(2 * gamma * log_a + delta * log_b)
    return squared


def _closed_tail(gamma: float, delta: float) -> float:
    """int_{24}^inf e^{-2 alpha u} (2u)^{2 delta} du, 2 alpha = -1 - 2 gamma."""
    context = mpmath.MPContext()  # its own: mpmath's precision is global
    context.prec = 120
    rate = -1 - 2 * context.mpf(gamma)
    power = 2 * context.mpf(delta)
    tail = context.gammainc(power + 1, rate * context.mpf(_TAIL_FROM))
    return float(2**power * tail / rate ** (power + 1))


def _panels(
    low: np.floating[Any], high: np.floating[Any], count: int, dtype: type[np.floating[Any]]
) -> tuple[FloatArray, FloatArray]:
    """Gauss-Legendre nodes and weights, 24 points on each of `count` equal panels."""
    node, weight = (part.astype(dtype) for part in np.polynomial.legendre.leggauss(24))
    edges = np.linspace(low, high, count + 1, dtype=dtype)
    half = np.diff(edges) / 2
    centre = (edges[1:] + edges[:-1]) / 2
    return (centre[:, None] + half[:, None] * node).ravel(), (half[:, None] * weight).ravel()


@lru_cache(maxsize=256)
def inverse_noise_norm(gamma: float, delta: float) -> float:
    """kappa = max over the circle of 1/|f(.; gamma, delta)|, rounded up: bounds ||L^{-1}||_{2->2}.

    Between two nodes of a grid in ln th, |f| exceeds the larger by at most h^2/8 sup|(ln|f|)''|;
    twice the largest neighbouring second difference stands for the supremum, on a grid 1e3 times
    finer than the nearest singularity is far.

    >>> round(inverse_noise_norm(0.51, 0.0), 4)
    1.7049
    """
    log_th = np.linspace(-200.0, math.log(math.pi), 400_001)
    th = np.exp(log_th)
    chord = 2.0 * np.sin(th / 2.0)
    x = -np.log(chord)
    y = (math.pi - th) / 2.0
    log_f = 0.5 * (np.log(_modulus_squared(gamma, delta, np.zeros_like(th), x, y, th)) - np.log(chord))
    bend = np.abs(np.diff(log_f, 2))
    bend = np.concatenate([bend[:1], bend, bend[-1:]])
    peak = np.maximum(-log_f[1:], -log_f[:-1]) + 0.25 * np.maximum(bend[1:], bend[:-1])
    # Below th = e^-200 the square root of |1-z| beats every power of logarithms in range.
    return math.nextafter(math.exp(float(peak.max()) + 1e-13), math.inf)
