"""Coefficients of the log-perturbed functions, by Newton's iteration on power series.

f(z; gamma, delta) = (1-z)^(-1/2) A(z)^gamma B(z)^delta with A = (1/z) ln(1/(1-z)) and
B = (2/z) ln A(z), so the logarithms are nested (arXiv 2506.15018, section 3).

f solves (1-z) z f' = v f with v = (1-z) (z/2/(1-z) + gamma F + delta E), F = z A'/A, E = z B'/B.
The factor 1-z makes every series in an FFT decay, so rounding stays relative to small numbers.
Each doubling n -> 2n extends 1/A, 1/B, v and f and rewrites nothing below n: coefficients do not
depend on how many were asked for, and a prefix is a prefix.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from evertally.counters.series_fft import BACKENDS, ConvolutionTransform, real_transform

__all__ = ["log_perturbed_series", "reciprocal_series"]

FloatArray = NDArray[np.floating[Any]]

_SEED = 32  # below this the quadratic recurrences are exact to rounding and as fast


def log_perturbed_series(
    gamma: float,
    delta: float,
    n: int,
    dtype: type[np.floating[Any]] = np.float64,
    backend: str = BACKENDS[0],
) -> FloatArray:
    """First `n` Taylor coefficients of f(.; gamma, delta), shape (n,), of `dtype`.

    Reference: arXiv 2506.15018, definition of the log-perturbed factorization; Newton iterations as
    in Brent, "Multiple-precision zero-finding methods", 1975.

    >>> log_perturbed_series(-0.51, 0.0, 3).round(7).tolist()
    [1.0, 0.245, 0.1737625]
    """
    size = _SEED
    while size < n:
        size *= 2
    k = np.arange(size + 1, dtype=dtype)
    a = 1 / (k + 1)
    slope_a = 1 / ((k[1:] + 1) * k[1:])  # (1-z) A'
    inverse_a, slope = _seed_quotient(a[:_SEED], slope_a[:_SEED])  # slope = (1-z) A'/A = (1-z) F/z
    b = np.empty(size, dtype=dtype)  # B_k = 2 (ln A)_{k+1} = 2 F_{k+1} / (k+1)
    level = np.cumsum(slope)
    b[:_SEED] = 2 * level / k[1 : _SEED + 1]
    inverse_b, slope_b = _seed_quotient(b[:_SEED], np.diff(k[:_SEED] * b[:_SEED], prepend=0))
    v = np.zeros(size + 1, dtype=dtype)  # (1-z) w
    v[1] = 0.5
    v[1 : _SEED + 1] += gamma * slope
    v[:_SEED] += delta * slope_b
    f, inverse_f = _seed_exponential(v[:_SEED])

    m = _SEED
    while m < size:
        transform = real_transform(2 * m, dtype, backend)
        longer = real_transform(3 * m, dtype, backend)
        inverse_a = _extend_reciprocal(inverse_a, a[: 2 * m], transform)
        slope = _product_upper(slope_a[: 2 * m], inverse_a, m, longer)
        v[m + 1 : 2 * m + 1] += gamma * slope
        if delta != 0.0:
            level = level[-1] + np.cumsum(slope)
            b[m : 2 * m] = 2 * level / k[m + 1 : 2 * m + 1]
            inverse_b = _extend_reciprocal(inverse_b, b[: 2 * m], transform)
            slope_b = np.diff(k[: 2 * m] * b[: 2 * m], prepend=0)
            v[m : 2 * m] += delta * _product_upper(slope_b, inverse_b, m, longer)
        f, inverse_f = _extend_exponential(f, inverse_f, v[: 2 * m], transform, longer, backend)
        m *= 2
    return f[:n]


def reciprocal_series(x: FloatArray, backend: str = BACKENDS[0]) -> FloatArray:
    """Coefficients of 1/x(z) to the length of `x`; x_0 must not be 0. Shape and dtype of `x`."""
    n = len(x)
    size = _SEED
    while size < n:
        size *= 2
    dtype = x.dtype.type
    padded = np.zeros(size, dtype=dtype)
    padded[:n] = x
    inverse, _ = _seed_quotient(padded[:_SEED], padded[:_SEED])
    while len(inverse) < size:
        m = len(inverse)
        inverse = _extend_reciprocal(inverse, padded[: 2 * m], real_transform(2 * m, dtype, backend))
    return inverse[:n]


def _seed_quotient(x: FloatArray, y: FloatArray) -> tuple[FloatArray, FloatArray]:
    """(1/x, y/x) by the schoolbook recurrence."""
    inverse = np.zeros_like(x)
    quotient = np.zeros_like(x)
    for i in range(len(x)):
        tail = x[i:0:-1]
        inverse[i] = ((1 if i == 0 else 0) - np.dot(tail, inverse[:i])) / x[0]
        quotient[i] = (y[i] - np.dot(tail, quotient[:i])) / x[0]
    return inverse, quotient


def _seed_exponential(v: FloatArray) -> tuple[FloatArray, FloatArray]:
    """(f, 1/f) with (1-z) z f' = v f and f_0 = 1; with w = v/(1-z), i f_i = sum w_j f_{i-j}."""
    w = np.cumsum(v)
    f = np.zeros_like(w)
    inverse = np.zeros_like(w)
    f[0] = inverse[0] = 1
    for i in range(1, len(w)):
        f[i] = np.dot(w[i:0:-1], f[:i]) / i
        inverse[i] = -np.dot(w[i:0:-1], inverse[:i]) / i
    return f, inverse


def _extend_reciprocal(g: FloatArray, x: FloatArray, transform: ConvolutionTransform) -> FloatArray:
    """1/x to 2m terms from g = 1/x to m terms; cyclic length 2m wraps only where nothing is read."""
    m = len(g)
    g_spectrum = transform.forward(g)
    error = transform.filtered(x, g_spectrum)[m:].copy()
    upper = -transform.filtered(error, g_spectrum)[:m]
    return np.concatenate([g, upper])


def _product_upper(x: FloatArray, y: FloatArray, m: int, transform: ConvolutionTransform) -> FloatArray:
    """Terms m..2m-1 of x*y for 2m terms each; cyclic length 3m aliases only into terms below m."""
    return transform.filtered(x, transform.forward(y))[m : 2 * m].copy()


def _extend_exponential(
    f: FloatArray,
    inverse: FloatArray,
    v: FloatArray,
    transform: ConvolutionTransform,
    longer: ConvolutionTransform,
    backend: str,
) -> tuple[FloatArray, FloatArray]:
    """f to 2m terms from m terms, and 1/f to m terms (it may come with m/2).

    The guess continues f as a power of k; with f_new = guess (1 + e),
    (1-z) z e' = (v guess - (1-z) z guess')/f from term m on. The closer the guess, the smaller the
    residual and with it the rounding, which the division by 1-z would sum up into a random walk.
    """
    m = len(f)
    if len(inverse) < m:
        inverse = _extend_reciprocal(inverse, f, real_transform(m, f.dtype.type, backend))
    k = np.arange(m, 2 * m, dtype=f.dtype)
    ratio = f[-1] / f[m // 2 - 1] if f[m // 2 - 1] != 0 else f.dtype.type(1)
    power = np.clip(np.log2(ratio), -2, 2) if ratio > 0 else f.dtype.type(0)
    tail = f[-1] * (k / (m - 1)) ** power
    steps = np.diff(k * tail, prepend=(m - 1) * f[-1])
    residual = _product_upper(v, np.concatenate([f, tail]), m, longer) - steps
    growth = np.cumsum(transform.filtered(residual, transform.forward(inverse))[:m])
    e = growth / k
    upper = tail + transform.filtered(e, transform.forward(f))[:m]
    return np.concatenate([f, upper]), inverse
