"""Banded Toeplitz strategies of least error: minimise ||A C^-1||_F sens(C) by L-BFGS, exact gradient.

A is the all-ones lower-triangular matrix of N rows. For Toeplitz C, A C^-1 is Toeplitz with first column s,
so ||A C^-1||_F^2 = sum_d (N - d) s_d^2; and sens(C)^2 = |sum_j |C|[:, j b]|^2, which the first bin attains,
since every later bin is the same column cut short. Scaling C changes nothing, so c_0 = 1.

Reference: Choquette-Choo et al., arXiv 2306.08153, section 4 (banded); Kalinin and Lampert, arXiv 2405.13763.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.signal import lfilter

from evertally.accountants.participation import BallsInBins
from evertally.accountants.toeplitz import square_root_taps

__all__ = ["inverse_objective", "objective", "optimise_inverse_taps", "optimise_taps"]

FloatArray = NDArray[np.float64]
_STEP = 0.01
_Objective = Callable[[FloatArray, BallsInBins], tuple[float, FloatArray]]


def optimise_taps(bands: int, participation: BallsInBins) -> FloatArray:
    """The first `bands` entries of C's first column, c_0 = 1, of least error; shape (bands,)."""
    return _minimise(objective, square_root_taps(min(bands, participation.rows), sign=1), participation)


def optimise_inverse_taps(bands: int, participation: BallsInBins) -> FloatArray:
    """The first `bands` entries of C^-1's first column, first entry 1, of least error; shape (bands,)."""
    return _minimise(
        inverse_objective, square_root_taps(min(bands, participation.rows), sign=-1), participation
    )


def objective(taps: FloatArray, participation: BallsInBins) -> tuple[float, FloatArray]:
    """log(||A C^-1||_F sens(C)) and its gradient, C's first column being `taps`."""
    rows = participation.rows
    prefix = _divide(taps, np.ones(rows))
    error, error_slope = _weighted_square(prefix)
    twice = _divide(taps, prefix)
    gradient = -_lagged(error_slope, twice, taps.size) / (2.0 * error)
    column = np.zeros(rows)
    column[: taps.size] = taps
    square, slope = _sensitivity(column, participation)
    return 0.5 * (np.log(error) + np.log(square)), gradient + slope[: taps.size] / (2.0 * square)


def inverse_objective(taps: FloatArray, participation: BallsInBins) -> tuple[float, FloatArray]:
    """As `objective`, `taps` being the first column of C^-1."""
    rows = participation.rows
    inverse = np.zeros(rows)
    inverse[: taps.size] = taps
    error, error_slope = _weighted_square(np.cumsum(inverse))
    # d s_t / d a_j = 1 for t >= j
    gradient = np.cumsum(error_slope[::-1])[::-1][: taps.size] / (2.0 * error)
    impulse = np.zeros(rows)
    impulse[0] = 1.0
    column = _divide(taps, impulse)
    square, slope = _sensitivity(column, participation)
    gradient = gradient - _lagged(slope, _divide(taps, column), taps.size) / (2.0 * square)
    return 0.5 * (np.log(error) + np.log(square)), gradient


def _minimise(loss: _Objective, start: FloatArray, participation: BallsInBins) -> FloatArray:
    if start.size == 1:
        return start

    def free(tail: FloatArray) -> tuple[float, FloatArray]:
        # a first step of L-BFGS has length one: in these units it stays in the stable region
        with np.errstate(over="ignore", invalid="ignore"):
            value, gradient = loss(np.concatenate(([1.0], _STEP * tail)), participation)
        if not (np.isfinite(value) and np.isfinite(gradient).all()):
            return 1e3, np.zeros_like(tail)
        return value, _STEP * gradient[1:]

    options: dict[str, Any] = {"maxiter": 1000, "maxfun": 2000, "ftol": 1e-13, "gtol": 1e-10}
    search: Any = minimize  # its stubs ask for arrays of fixed rank
    found = search(free, start[1:] / _STEP, jac=True, method="L-BFGS-B", options=options)
    best = np.concatenate(([1.0], _STEP * np.asarray(found.x, dtype=np.float64)))
    return best if loss(best, participation)[0] <= loss(start, participation)[0] else start


def _divide(taps: FloatArray, series: FloatArray) -> FloatArray:
    return np.asarray(lfilter([1.0], taps, series), dtype=np.float64)


def _weighted_square(prefix: FloatArray) -> tuple[float, FloatArray]:
    """sum_d (N - d) s_d^2 and its derivative in s."""
    weighted = np.arange(prefix.size, 0, -1) * prefix
    return float(weighted @ prefix), 2.0 * weighted


def _sensitivity(column: FloatArray, participation: BallsInBins) -> tuple[float, FloatArray]:
    """|sum_j |c| shifted by j b|^2 and its derivative in c."""
    batches, epochs = participation.batches, participation.epochs
    sizes = np.abs(column).reshape(epochs, batches)
    summed = np.cumsum(sizes, axis=0)
    slope = 2.0 * np.cumsum(summed[::-1], axis=0)[::-1]
    return float((summed * summed).sum()), slope.ravel() * np.sign(column)


def _lagged(slope: FloatArray, series: FloatArray, count: int) -> FloatArray:
    """sum_t slope_t series_{t - j} for j < count."""
    return np.array([float(slope[j:] @ series[: series.size - j]) for j in range(count)])
