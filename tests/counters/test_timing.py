"""Latencies tell neither the data nor the noise: a Welch test between classes drawn at random.

Each step's class is decided by a coin that the code under test does not see, so whatever else the
machine does falls on both classes alike. Python's integers take longer the wider they are: 20 to 25 ns a step
were measured between small and large noise, and a tenth of a microsecond is allowed. A mean difference
5.5 standard errors beyond that has a false-alarm rate of 4e-8 a comparison. Sources:
the leak of noise through a sampler's running time (libprio-rs#645); the test of "dude, is my code constant
time?" (Reparaz, Balasch and Verbauwhede, 2017), whose cropping of the slowest readings is used as well.
"""

from __future__ import annotations

import time

import numpy as np
import pytest

from evertally.counters import NoiseKey, Rational, RunningCounter

STEPS = 100_000
LIMIT = 5.5
ALLOWED_NS = 100


def latencies(amounts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Nanoseconds a tick, and the noise that tick published, for a counter of one key."""
    key = NoiseKey(bytes(range(32)), stream="timing", stream_id=bytes(16))
    counter = RunningCounter(Rational.preset("W32"), mu=1.0, key=key, clip=2**20)
    elapsed, noise, total = np.empty(len(amounts)), np.empty(len(amounts)), 0
    for t, amount in enumerate(amounts.tolist()):
        counter.add(amount)
        total += amount
        start = time.perf_counter_ns()
        release = counter.close_tick()
        elapsed[t] = time.perf_counter_ns() - start
        noise[t] = release.value - total
    return elapsed, noise


def difference(elapsed: np.ndarray, chosen: np.ndarray) -> tuple[float, float]:
    """(ns, its standard error) between the two classes, without the machine's drift and its slowest tenth."""
    blocks = elapsed.reshape(-1, 100)
    elapsed = (blocks - np.median(blocks, axis=1, keepdims=True)).ravel()
    kept = elapsed <= np.percentile(elapsed, 90)
    a, b = elapsed[kept & chosen], elapsed[kept & ~chosen]
    return float(a.mean() - b.mean()), float(np.sqrt(a.var() / len(a) + b.var() / len(b)))


def tells(elapsed: np.ndarray, chosen: np.ndarray) -> bool:
    apart, error = difference(elapsed, chosen)
    return abs(apart) > ALLOWED_NS + LIMIT * error


@pytest.mark.soak
def test_latency_tells_neither_data_nor_noise() -> None:
    coin = np.random.default_rng(20).integers(0, 2, STEPS).astype(bool)
    elapsed, noise = latencies(np.where(coin, 2**20, 0))
    assert not tells(elapsed, coin)
    steps = np.diff(noise, prepend=0.0)
    for chosen in (steps > 0, np.abs(steps) > np.median(np.abs(steps))):
        assert not tells(elapsed, chosen)


@pytest.mark.soak
def test_the_timing_test_sees_a_leak() -> None:
    """A branch of half a microsecond on the data is found."""
    coin = np.random.default_rng(21).integers(0, 2, STEPS).astype(bool)
    elapsed, _ = latencies(np.zeros(STEPS, dtype=np.int64))
    assert tells(elapsed + np.where(coin, 500, 0), coin)
