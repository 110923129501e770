"""Long statistical runs with fresh keys; `make soak` runs them. False alarms below 1e-9 each."""

from __future__ import annotations

import os

import numpy as np
import pytest

from evertally.counters import KeyedNoise, NoiseKey, Rational

pytestmark = pytest.mark.soak


def fresh_key() -> NoiseKey:
    return NoiseKey(os.urandom(32), stream="soak", stream_id=os.urandom(16))


def test_variance_at_two_to_the_twenty_over_400_streams() -> None:
    """H40 at t = 2^20: sample variance of 400 streams within 6.5 of its standard errors."""
    m, t, streams = Rational.preset("H40"), 2**20, 400
    reversed_coefficients = m.noise_coefficients(t)[::-1]
    key, ends = fresh_key(), []
    for stream in range(streams):
        draws = KeyedNoise(key, (stream,)).block(1, t)[:, 0] / 2.0**30
        ends.append(float(reversed_coefficients @ draws))
    ratio = float(np.var(ends)) / m.noise_power(t)
    assert abs(ratio - 1) < 6.5 * np.sqrt(2 / streams)


def test_engine_follows_its_convolution_for_a_million_ticks() -> None:
    """One stream of W32 to 2^20: the integer states stay within their charged rounding of L z."""
    m, t = Rational.preset("W32"), 2**20
    z, h = m.engine(KeyedNoise(fresh_key())).run(t)
    coefficients = m.noise_coefficients(t)[::-1]
    exact = float(coefficients @ z[:, 0].astype(float))
    assert abs(exact - float(z[-1, 0] + h[-1, 0])) < 64  # grid units; float64 dot products err by a few
    assert abs(exact) > 64


def test_covariance_of_short_streams_with_fresh_keys() -> None:
    """20,000 streams of 32 ticks: every entry within 7 standard errors."""
    m, ticks, streams = Rational.preset("W32"), 32, 20_000
    z, h = m.engine(KeyedNoise(fresh_key(), range(streams))).run(ticks)
    noise = (z + h).astype(float) / 2**30
    measured = noise @ noise.T / streams
    row = m.noise_coefficients(ticks)
    L = np.array([[row[i - j] if i >= j else 0.0 for j in range(ticks)] for i in range(ticks)])
    exact = L @ L.T
    deviation = np.sqrt((np.outer(np.diag(exact), np.diag(exact)) + exact**2) / streams)
    assert (np.abs(measured - exact) <= 7 * deviation).all()
