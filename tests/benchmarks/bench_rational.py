"""What does a step of the default mechanism cost, for one key and for 10,000?

python tests/benchmarks/bench_rational.py [--strict]

Bars: one key <= 6 us a step; 10,000 keys <= 35 ns a key-step for the state update and <= 300 ns with
exactly rounded noise; one key in bulk <= 100 ns a step for the state update. The rival of the same run
is the plain float recurrence in numpy (states only, no exactness), the cheapest thing one could do.
Times are CPU seconds of this one-threaded process, so that a busy machine decides less.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np

from evertally.counters import CounterBank, KeyedNoise, NoiseKey, Rational

KEYS, TICKS = 10_000, 32
W32 = Rational.preset("W32")
KEY = NoiseKey(bytes(32), stream="bench", stream_id=bytes(16))


class Recorded:
    """Draws made beforehand, so that only the state update is timed."""

    def __init__(self, keys: int, ticks: int) -> None:
        self.keys = keys
        self._draws = KeyedNoise(KEY, range(keys)).block(1, ticks)

    def block(self, first: int, count: int) -> np.ndarray:
        return self._draws[(first - 1) % len(self._draws) :][:count]


def median_seconds(once: Callable[[], object], repeats: int = 7) -> float:
    once()
    times = []
    for _ in range(repeats):
        start = time.process_time()
        once()
        times.append(time.process_time() - start)
    return statistics.median(times)


def one_key() -> float:
    engine = W32.engine(Recorded(1, 1 << 16))
    return median_seconds(lambda: [engine.step() for _ in range(4096)]) / 4096


def one_key_bulk() -> float:
    engine = W32.engine(Recorded(1, 1 << 18))
    return median_seconds(lambda: engine.run(1 << 17)) / (1 << 17)


def many_keys_states() -> float:
    engine = W32.engine(Recorded(KEYS, 2 * TICKS))
    return median_seconds(lambda: [engine.run(1) for _ in range(TICKS)]) / (TICKS * KEYS)


def many_keys_with_noise() -> float:
    bank = CounterBank.for_mu(W32, mu=1.0, source=KeyedNoise(KEY, range(KEYS)))
    amounts = [[1] * KEYS]
    return median_seconds(lambda: bank.close_ticks(amounts)) / KEYS


def float_rival() -> float:
    thetas = 1.0 - 2.0 ** -np.array((*W32.exponents, 1024), dtype=float)[:, None]
    weights = np.array(W32.weights[:-1], dtype=float)
    states = np.zeros((len(thetas), KEYS))
    draws = np.ones(KEYS)

    def once() -> None:
        for _ in range(TICKS):
            np.multiply(states, thetas, out=states)
            weights @ states
            np.add(states, draws, out=states)

    return median_seconds(once) / (TICKS * KEYS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--strict", action="store_true")
    strict = parser.parse_args().strict
    rival = float_rival()
    rows = [
        ("one key, a step", one_key(), 6e-6),
        ("one key in bulk, a step", one_key_bulk(), 100e-9),
        ("10,000 keys, state update", many_keys_states(), 35e-9),
        ("10,000 keys, a release with exact noise", many_keys_with_noise(), 300e-9),
    ]
    print(f"rival: float states in numpy, 10,000 keys {rival * 1e9:.1f} ns a key-step")
    missed = 0
    for name, seconds, bar in rows:
        met = seconds <= bar
        missed += not met
        print(
            f"{name:42s} {seconds * 1e9:9.1f} ns  bar {bar * 1e9:7.0f} ns  "
            f"{seconds / rival:7.2f}x rival  {'met' if met else 'MISSED'}"
        )
    raise SystemExit(1 if strict and missed else 0)


if __name__ == "__main__":
    main()
