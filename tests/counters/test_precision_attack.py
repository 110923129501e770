"""The low-order bits of a noisy number must not tell which count it hides.

Doubles are not evenly spaced: 0 + z keeps bits far below 2^-53 when |z| is small, 1 + z cannot. Whoever
sees such bits knows the count was 0 (Mironov, "On Significance of the Least Significant Bits for
Differential Privacy", CCS 2012). The attack below decides by that alone, and fires on a textbook
implementation; a release of ours is an integer computed from integers, and every value that one world
can publish the other publishes too.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import ndtri

from evertally.counters import CounterBank, KeyedNoise, NoiseKey, Rational

KEY = NoiseKey(bytes(range(32)), stream="precision", stream_id=bytes(16))
W32 = Rational.preset("W32")


def proves_zero(values: np.ndarray) -> np.ndarray:
    """Where a value in (-1/2, 1/2) is no multiple of 2^-53: 1 + z is one whenever it falls there."""
    scaled = values * 2.0**53
    return (np.abs(values) < 0.5) & (scaled != np.rint(scaled))


def textbook(count: float, draws: int) -> np.ndarray:
    """count + z with z a double of standard deviation 1."""
    uniform = np.random.default_rng(7).random(draws)
    return count + ndtri(uniform + 2.0**-54)


def test_the_attack_fires_on_a_textbook_implementation() -> None:
    assert proves_zero(textbook(0.0, 10**6)).mean() >= 0.25
    assert not proves_zero(textbook(1.0, 10**6)).any()


@pytest.mark.slow
@pytest.mark.parametrize("parts", [1, pytest.param(20, marks=pytest.mark.soak)])
def test_it_never_fires_on_a_release(parts: int) -> None:
    """Half a million releases a part at mu = 1, where noise is as small as one contribution; 10^7 in all."""
    chunk, worlds = 250_000, (0, 1)
    seen: list[dict[int, int]] = [{}, {}]
    for part in range(parts):
        for world in worlds:
            keys = range((2 * part + world) * chunk, (2 * part + world + 1) * chunk)
            bank = CounterBank.for_mu(W32, mu=1.0, source=KeyedNoise(KEY, keys))
            (release,) = bank.close_ticks([[world] * chunk])
            assert all(type(value) is int for value in release.values[:1000])
            values = np.array(release.values, dtype=np.int64)
            assert not proves_zero(values.astype(np.float64)).any()
            for value, count in zip(*np.unique(values, return_counts=True), strict=True):
                seen[world][int(value)] = seen[world].get(int(value), 0) + int(count)
    common = [{v for v, count in world.items() if count >= 500} for world in seen]
    assert common[0] <= set(seen[1])
    assert common[1] <= set(seen[0])
    assert len(common[0]) >= 5
