"""Is a refill on FFTW with cached coefficients at least twice as fast as the same code on numpy.fft?

python tests/benchmarks/bench_fft_refill.py [--ticks 1048576] [--strict]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evertally.counters.fft_refill import convolve_block
from evertally.counters.log_perturbed import LogPerturbed
from evertally.counters.series_fft import ConvolutionTransform, real_transform

BAR = 0.5


class NumpyTransform:
    """The rival: numpy.fft behind the same protocol."""

    def __init__(self, n: int) -> None:
        self._n = n

    def forward(self, x: NDArray[np.floating[Any]]) -> NDArray[np.complexfloating[Any, Any]]:
        return np.fft.rfft(x, self._n)

    def filtered(
        self, x: NDArray[np.floating[Any]], spectrum: NDArray[np.complexfloating[Any, Any]]
    ) -> NDArray[np.floating[Any]]:
        product = np.fft.rfft(x, self._n)
        product *= spectrum
        return np.fft.irfft(product, self._n)


def refill_seconds(
    transform: ConvolutionTransform, past: NDArray[np.float64], draws: NDArray[np.float64], low: int
) -> Callable[[], float]:
    """One refill of one key: spectrum of l, convolution, rounding."""

    def once() -> float:
        start = time.perf_counter()
        spectrum = transform.forward(past)
        np.floor(convolve_block(spectrum, draws, low, transform) + 0.5).astype(np.int64)
        return time.perf_counter() - start

    return once


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ticks", type=int, default=1 << 20)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--strict", action="store_true")
    arguments = parser.parse_args()
    low = arguments.ticks
    past = LogPerturbed().noise_coefficients(2 * low).copy()
    past[0] = 0.0
    draws = np.rint(np.random.default_rng(1).standard_normal(2 * low) * 2.0**30)
    runs = {
        "pyfftw": refill_seconds(real_transform(3 * low), past, draws, low),
        "numpy.fft": refill_seconds(NumpyTransform(3 * low), past, draws, low),
    }
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(arguments.repeats):
        for name, once in runs.items():
            times[name].append(once())
    best = {name: min(seconds) for name, seconds in times.items()}
    ratio = statistics.median(a / b for a, b in zip(times["pyfftw"], times["numpy.fft"], strict=True))
    for name, seconds in best.items():
        print(f"{name:10s} {1e9 * seconds / low:8.1f} ns a step (best of {arguments.repeats})")
    met = ratio <= BAR
    print(f"ratio {ratio:.2f} (median of pairs), bar <= {BAR}: {'met' if met else 'MISSED'}")
    raise SystemExit(1 if arguments.strict and not met else 0)


if __name__ == "__main__":
    main()
