"""Does any step wait for a refill? Worst tick of a counter on the FFT engine against its median.

A step closes one tick of a counter with real keyed noise, as fast as the machine can.

Each run steps the same stream. The machine's own pauses fall on different steps in different runs,
a refill falls on the same one: the worst over steps of the fastest of the runs tells them apart.
The rival is the same engine that computes each block when it is needed.

    python tests/benchmarks/bench_step_latency.py [--ticks 1048576] [--runs 3] [--strict]
"""

from __future__ import annotations

import argparse
import gc
import time
from array import array
from collections.abc import Callable
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from evertally.counters.bank import CounterBank
from evertally.counters.fft_engine import FftEngine
from evertally.counters.fft_worker import AheadWorker, Pending
from evertally.counters.keys import KeyedNoise, NoiseKey
from evertally.counters.log_perturbed import LogPerturbed

BAR = 20.0

T = TypeVar("T")


class Deferred(AheadWorker):
    """Computes a job only when its result is asked for, in the stepping thread."""

    def submit(self, job: Callable[[], T]) -> Pending[T]:
        return Late(job)


class Late(Pending[T]):
    def result(self) -> T:
        self.compute()
        return super().result()


def step_times(step: Callable[[], object], ticks: int) -> NDArray[np.float64]:
    """Seconds of each step."""
    stamps = array("q", bytes(8 * (ticks + 1)))
    clock = time.perf_counter_ns
    gc.collect()
    gc.disable()
    stamps[0] = clock()
    for i in range(1, ticks + 1):
        step()
        stamps[i] = clock()
    gc.enable()
    return np.diff(np.frombuffer(stamps, dtype=np.int64)) * 1e-9


def report(name: str, runs: list[NDArray[np.float64]]) -> float:
    quietest = np.min(runs, axis=0)
    median = float(np.median(runs))
    worst = float(quietest[1:].max())
    single = max(float(run[1:].max()) for run in runs)
    high = float(np.quantile(runs, 1 - 1e-5))
    print(
        f"{name:16s} median {1e6 * median:6.2f} us, 99.999 % {high / median:8.1f}x, "
        f"worst that repeats {worst / median:10.1f}x (tick {int(quietest[1:].argmax()) + 2}), "
        f"worst of any run {single / median:10.1f}x"
    )
    return worst / median


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ticks", type=int, default=1 << 20)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--strict", action="store_true")
    arguments = parser.parse_args()
    mechanism = LogPerturbed()
    mechanism.noise_coefficients(4 * arguments.ticks)  # the disk cache is warm
    ahead = [step_times(make_bank(mechanism).close_tick, arguments.ticks) for _ in range(arguments.runs)]
    ratio = report("prepared ahead", ahead)
    deferred = []
    for _ in range(2):
        bank = make_bank(mechanism)
        engine = bank._engine
        assert isinstance(engine, FftEngine)
        object.__setattr__(engine, "_worker", Deferred())
        deferred.append(step_times(bank.close_tick, arguments.ticks))
    report("when needed", deferred)
    met = ratio <= BAR
    print(f"worst that repeats / median = {ratio:.1f}, bar <= {BAR}: {'met' if met else 'MISSED'}")
    raise SystemExit(1 if arguments.strict and not met else 0)


def make_bank(mechanism: LogPerturbed) -> CounterBank:
    return CounterBank.for_mu(mechanism, mu=1.0, source=KeyedNoise(NoiseKey.generate("latency")))


if __name__ == "__main__":
    main()
