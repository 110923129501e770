"""One refill of Algorithm 1: the noise on ticks [low, high) from all draws up to high.

h_i = sum_{j<i} l_{i-j} z_j for low <= i < high = 2 low is that part of a cyclic convolution of
length 3 low: what wraps around lands below low. The draw z_i itself takes no part (l_0 is set to 0):
it is added as an integer by the caller.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from evertally.counters.series_fft import (
    BACKENDS,
    ConvolutionTransform,
    convolution_error_bound,
    real_transform,
)

__all__ = ["ETA", "FIRST_BLOCK", "NoiseSeries", "block_bounds", "convolve_block", "refill"]

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.floating[Any]]

FIRST_BLOCK: Final = 64
"""Ticks of the first block; later ones are [2^m, 2^(m+1))."""
ETA: Final = 0.5
"""Bound in units of g on |h_t - exact h_t| before the last rounding."""

_GROUP_ELEMENTS: Final = 1 << 22
_ROUNDING: Final = 6.0  # units 2^-53 of ||l|| ||z||: scaling z, forming h + 1/2, and the two norms


@dataclass(frozen=True, slots=True)
class NoiseSeries:
    """First column of L in two precisions.

    Attributes:
        double: n -> l_0 .. l_{n-1} as float64.
        extended: n -> the same as np.longdouble, for refills where double cannot promise `ETA`.
        relative_error: bound on ||double - exact||_2 / ||exact||_2; the extended one is 2^11 times better.
    """

    double: Callable[[int], FloatArray]
    extended: Callable[[int], FloatArray]
    relative_error: float


def block_bounds(index: int) -> tuple[int, int]:
    """[low, high) of the block that holds the zero-based tick `index`; fixed, whatever the history.

    >>> block_bounds(63), block_bounds(64), block_bounds(200)
    ((0, 64), (64, 128), (128, 256))
    """
    if index < FIRST_BLOCK:
        return 0, FIRST_BLOCK
    low = 1 << (index.bit_length() - 1)
    return low, 2 * low


def refill(series: NoiseSeries, draws: IntArray, low: int, backend: str = BACKENDS[0]) -> IntArray:
    """round(h/g) on [low, high) for draws of shape (high, keys), shape (high - low, keys), int64.

    Each key is convolved on its own, with the same plan: its integers do not depend on its neighbours.

    Guarantees:
        - |h - exact h| <= ETA g before rounding for every value of the draws: where the a-priori
          bound for double precision exceeds it, that key's refill runs in extended precision.
    """
    high, keys = draws.shape
    double = _Refiller(series.double(high), low, np.float64, series.relative_error, backend)
    extended: _Refiller | None = None
    noise = np.empty((high - low, keys), dtype=np.int64)
    group = max(1, _GROUP_ELEMENTS // high)
    for first in range(0, keys, group):
        columns = draws[:, first : first + group].T.astype(np.float64)
        for offset, z in enumerate(columns):
            used = double
            if double.error_bound(z) > ETA:
                if extended is None:
                    extended = _Refiller(
                        series.extended(high), low, np.longdouble, series.relative_error / 2048.0, backend
                    )
                used = extended
            noise[:, first + offset] = used.rounded_noise(z)
    return noise


class _Refiller:
    """A refill in one precision: spectrum of l made once, then one convolution a key."""

    def __init__(
        self,
        coefficients: FloatArray,
        low: int,
        dtype: type[np.floating[Any]],
        coefficient_error: float,
        backend: str,
    ) -> None:
        high = len(coefficients)
        self._low = low
        self._dtype = dtype
        length = max(3 * low, 2 * high if low == 0 else 0)
        self._transform = real_transform(length, dtype, backend)
        past = coefficients.copy()
        past[0] = 0
        self._spectrum = self._transform.forward(past)
        unit = float(np.finfo(dtype).eps) / 2.0
        relative = convolution_error_bound(length, dtype) + coefficient_error + _ROUNDING * unit
        self._per_norm = relative * float(np.linalg.norm(coefficients.astype(np.float64)))

    def error_bound(self, z: FloatArray) -> float:
        """Bound on |h - exact h| in units of g for these draws."""
        return self._per_norm * math.sqrt(float(np.dot(z, z)))

    def rounded_noise(self, z: FloatArray) -> IntArray:
        convolved = convolve_block(
            self._spectrum, z.astype(self._dtype, copy=False), self._low, self._transform
        )
        rounded: IntArray = np.floor(convolved + 0.5).astype(np.int64)
        return rounded


def convolve_block(
    spectrum: NDArray[np.complexfloating[Any, Any]],
    z: FloatArray,
    low: int,
    transform: ConvolutionTransform,
) -> FloatArray:
    """Ticks low .. len(z)-1 of the convolution of `z` with the series whose spectrum is given."""
    return transform.filtered(z, spectrum)[low : len(z)]
