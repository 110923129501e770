"""Real FFTs of one length, on pyfftw where it is installed and on scipy.fft elsewhere.

Plans are made with ESTIMATE and without wisdom of their own: a measured plan depends on timing, so
its rounding would differ from run to run. FFTW's planner is not thread safe and a fork must not
catch it half way, so planning takes a lock that is also held across every fork.
"""

from __future__ import annotations

import os
import threading
from typing import Any, Final, Protocol

import numpy as np
import scipy.fft
from numpy.typing import NDArray

try:
    import pyfftw
except ImportError:  # a platform without FFTW: same results to rounding, about twice the time
    pyfftw = None

__all__ = ["BACKENDS", "ConvolutionTransform", "convolution_error_bound", "real_transform"]

BACKENDS: Final = ("pyfftw", "scipy") if pyfftw is not None else ("scipy",)

FloatArray = NDArray[np.floating[Any]]
ComplexArray = NDArray[np.complexfloating[Any, Any]]

_PLANNER = threading.Lock()
os.register_at_fork(
    before=_PLANNER.acquire, after_in_parent=_PLANNER.release, after_in_child=_PLANNER.release
)


class ConvolutionTransform(Protocol):
    """Real FFT convolutions of one length; inputs shorter than the length are padded with zeros."""

    def forward(self, x: FloatArray) -> ComplexArray:
        """Spectrum of `x`, shape (n // 2 + 1,); the caller owns the result."""
        ...

    def filtered(self, x: FloatArray, spectrum: ComplexArray) -> FloatArray:
        """Cyclic convolution of `x` with the series of `spectrum`, shape (n,); valid until the next call."""
        ...


class _FftwTransform:
    def __init__(self, n: int) -> None:
        # In place: half the memory, and less of it to move.
        self._spectrum = pyfftw.empty_aligned(n // 2 + 1, "complex128")
        self._real = self._spectrum.view("float64")[:n]
        flags = ("FFTW_ESTIMATE", "FFTW_DESTROY_INPUT")
        with _PLANNER:
            self._forward = pyfftw.FFTW(self._real, self._spectrum, flags=flags)
            self._inverse = pyfftw.FFTW(self._spectrum, self._real, direction="FFTW_BACKWARD", flags=flags)
        self._scale = 1.0 / n

    def forward(self, x: FloatArray) -> ComplexArray:
        self._real[: len(x)] = x
        self._real[len(x) :] = 0.0
        self._forward.execute()
        spectrum: ComplexArray = self._spectrum.copy()
        return spectrum

    def filtered(self, x: FloatArray, spectrum: ComplexArray) -> FloatArray:
        np.multiply(x, self._scale, out=self._real[: len(x)])
        self._real[len(x) :] = 0.0
        self._forward.execute()
        np.multiply(self._spectrum, spectrum, out=self._spectrum)
        self._inverse.execute()
        real: FloatArray = self._real
        return real


class _ScipyTransform:
    def __init__(self, n: int) -> None:
        self._n = n

    def forward(self, x: FloatArray) -> ComplexArray:
        with _PLANNER:  # scipy.fft keeps its plans behind a mutex of its own, which a fork could copy locked
            spectrum: ComplexArray = scipy.fft.rfft(x, self._n)
        return spectrum

    def filtered(self, x: FloatArray, spectrum: ComplexArray) -> FloatArray:
        product = self.forward(x)
        product *= spectrum
        with _PLANNER:
            real: FloatArray = scipy.fft.irfft(product, self._n, overwrite_x=True)
        return real


def real_transform(
    n: int, dtype: type[np.floating[Any]] = np.float64, backend: str = BACKENDS[0]
) -> ConvolutionTransform:
    """A transform of length `n`; extended precision (np.longdouble) always runs on scipy.fft."""
    if dtype is np.float64 and backend == "pyfftw":
        return _FftwTransform(n)
    return _ScipyTransform(n)


def convolution_error_bound(n: int, dtype: type[np.floating[Any]] = np.float64) -> float:
    """Bound on ||computed - exact||_inf / (||x||_2 ||y||_2) for a cyclic convolution of length `n`.

    Guarantees:
        - holds for every x and y, for radix-2 stages with correctly rounded twiddles and one more
          stage for the real packing; the codelets and the factor 3 of our lengths do fewer roundings.

    Reference: Brent, Percival, Zimmermann, Math. Comp. 76 (2007), theorem 5 (Percival's bound).
    """
    unit = float(np.finfo(dtype).eps) / 2.0
    stages = float(n.bit_length() + 1)
    twiddle = unit * 0.7071067811865476
    exponent = (
        3.0 * stages * np.log1p(unit)
        + (3.0 * stages + 1.0) * np.log1p(unit * 2.2360679774997900)
        + 3.0 * stages * np.log1p(twiddle)
    )
    return float(np.expm1(exponent)) + 2.0 * unit
