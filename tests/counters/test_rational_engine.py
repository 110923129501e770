"""The integer engine: one definition for one key and many, exact, restartable anywhere."""

from __future__ import annotations

import numpy as np
import pytest

from evertally.counters import KeyedNoise, NoiseKey, Rational
from evertally.counters.noise_power import noise_power_track
from evertally.counters.rational_engine import FRACTION_BITS, ManyKeyEngine
from evertally.errors import IntegrityError

KEY = NoiseKey(bytes(range(32)), stream="engine", stream_id=bytes(16))
NAMES = ("W32", "H40")


class Extreme:
    """A source that pushes always the same way: the largest draws there are."""

    def __init__(self, keys: int, draw: int) -> None:
        self.keys = keys
        self._draw = draw

    def block(self, first: int, count: int) -> np.ndarray:  # noqa: ARG002
        return np.full((count, self.keys), self._draw, dtype=np.int64)


def exact_history(m: Rational, draws: list[int]) -> list[int]:
    """round(h/g) by the definition, in Python integers of any size, one division a tick."""
    states = [0] * (len(m.weights) - 1)
    out = []
    shift = m.weight_bits + FRACTION_BITS
    for z in draws:
        kept = [s - (s >> k) for s, k in zip(states, m.exponents, strict=False)] + [states[-1]]
        total = sum(w * d for w, d in zip(m.weights, kept, strict=False))
        out.append((total + (1 << (shift - 1))) // (1 << shift))
        states = [d + (z << FRACTION_BITS) for d in kept]
    return out


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_all_paths_give_the_same_integers(name: str) -> None:
    m, ticks = Rational.preset(name), 6000
    draws = KeyedNoise(KEY, (5,)).block(1, ticks)[:, 0].tolist()
    expected = exact_history(m, draws)
    stepped = m.engine(KeyedNoise(KEY, (5,)))
    assert [int(stepped.step()[1][0]) for _ in range(ticks)] == expected
    assert m.engine(KeyedNoise(KEY, (5,))).run(ticks)[1][:, 0].tolist() == expected
    many = m.engine(KeyedNoise(KEY, (4, 5, 6)))
    assert many.run(ticks)[1][:, 1].tolist() == expected


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_large_banks_take_the_compiled_path_with_the_same_integers(name: str) -> None:
    m, keys = Rational.preset(name), 5000
    wide = m.engine(KeyedNoise(KEY, range(keys)))
    z, h = wide.run(40)
    for position in (0, 2500, keys - 1):
        assert h[:, position].tolist() == exact_history(m, z[:, position].tolist())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("draw", [2**34, -(2**34)])
def test_states_that_outgrow_int64_go_on_in_wide_integers(name: str, draw: int) -> None:
    m, ticks = Rational.preset(name), 400
    engine = m.engine(Extreme(2, draw))
    assert isinstance(engine, ManyKeyEngine)
    # put the states where a real stream would be after about 2^50 ticks
    start = [2**59 if draw > 0 else -(2**59)] * (len(m.weights) - 1)
    engine._states = np.array([start, start], dtype=np.int64).T.copy()
    engine._states[-1] = 2**61 if draw > 0 else -(2**61)
    engine._unchecked = 0
    reference = [int(x) for x in engine._states[:, 0]]
    _, h = engine.run(ticks)
    shift = m.weight_bits + FRACTION_BITS
    for t in range(ticks):
        kept = [s - (s >> k) for s, k in zip(reference, m.exponents, strict=False)] + [reference[-1]]
        total = sum(w * d for w, d in zip(m.weights, kept, strict=False))
        assert int(h[t, 0]) == (total + (1 << (shift - 1))) >> shift
        reference = [d + (draw << FRACTION_BITS) for d in kept]
    assert engine._states.dtype == object
    other = m.engine(Extreme(2, draw))
    other.load(engine.state(), ticks)
    assert (other.run(5)[1] == engine.run(5)[1]).all()


@pytest.mark.parametrize("name", NAMES)
def test_history_is_within_half_a_unit_and_the_state_slack_of_the_convolution(name: str) -> None:
    m, ticks = Rational.preset(name), 2048
    engine = m.engine(KeyedNoise(KEY, (1, 2)))
    z, h = engine.run(ticks)
    coefficients = m.noise_coefficients(ticks)
    coefficients[0] = 0.0
    exact = np.convolve(z[:, 0].astype(np.longdouble), coefficients.astype(np.longdouble))[:ticks]
    # each state's floor is amplified by at most |W_i/f_L| <= 1 in l2; a few units bound the path seen here
    assert float(np.abs(exact - h[:, 0]).max()) < 2.0


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_noise_identity(name: str) -> None:
    """R (y_t - y_{t-1}) = z with y the noise of the releases: L, R and the draws belong together."""
    m, ticks = Rational.preset(name), 5000
    z, h = m.engine(KeyedNoise(KEY, (3,))).run(ticks)
    noise = (z + h)[:, 0].astype(float)
    steps = np.diff(noise, prepend=0.0)
    recovered = np.convolve(m.strategy_coefficients(ticks), steps)[:ticks]
    assert np.abs(recovered - z[:, 0]).max() < 4.0  # grid units, of a deviation of 2^30


@pytest.mark.parametrize("keys", [1, 3])
@pytest.mark.parametrize("at", [0, 1, 777, 1023, 1024, 1025])
def test_restart_at_any_tick_goes_on_bit_for_bit(keys: int, at: int) -> None:
    m = Rational.preset("W32")
    whole = m.engine(KeyedNoise(KEY, range(keys)))
    first, _ = whole.run(at)
    state = whole.state()
    rest = whole.run(300)
    again = m.engine(KeyedNoise(KEY, range(keys)))
    again.load(state, at)
    for _ in range(3):
        z, h = again.step()
        assert z.shape == h.shape == (keys,)
    assert (again.run(297)[1] == rest[1][3:]).all()
    assert again.t == whole.t == at + 300
    assert len(first) == at


def test_states_that_do_not_fit_are_refused() -> None:
    m = Rational.preset("W32")
    one, three = m.engine(KeyedNoise(KEY)), m.engine(KeyedNoise(KEY, (1, 2, 3)))
    with pytest.raises(IntegrityError):
        three.load(one.state(), 0)
    with pytest.raises(IntegrityError):
        one.load(b"", 0)
    with pytest.raises(IntegrityError):
        three.load(three.state()[:-1], 0)


def test_state_size_does_not_grow_with_t() -> None:
    """Below 1 KiB a key at t = 10^6."""
    m = Rational.preset("W32")
    engine = m.engine(KeyedNoise(KEY))
    engine.run(1_000_000)
    assert len(engine.state()) < 256


@pytest.mark.parametrize("name", NAMES)
def test_noise_power_track_equals_the_closed_form(name: str) -> None:
    m = Rational.preset(name)
    track = noise_power_track(m)
    powers = [track.step() for _ in range(3000)]
    for t in (1, 2, 10, 3000):
        assert powers[t - 1] == pytest.approx(m.noise_power(t), rel=1e-13)
    again = noise_power_track(m)
    again.load(track.state(), 3000)
    assert again.step() == track.step()


def test_covariance_of_short_streams() -> None:
    """20,000 streams of 16 ticks against sigma^2 L L^T within 7 standard errors an entry.

    136 entries at 7 standard errors: false alarm below 4e-10 with fresh keys.
    """
    m, ticks, streams = Rational.preset("W32"), 16, 20_000
    z, h = m.engine(KeyedNoise(KEY, range(streams))).run(ticks)
    noise = (z + h).astype(float) / 2**30
    measured = noise @ noise.T / streams
    coefficients = m.noise_coefficients(ticks)
    L = np.array([[coefficients[i - j] if i >= j else 0.0 for j in range(ticks)] for i in range(ticks)])
    exact = L @ L.T
    deviation = np.sqrt((np.outer(np.diag(exact), np.diag(exact)) + exact**2) / streams)
    assert (np.abs(measured - exact) <= 7 * deviation).all()
