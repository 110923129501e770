"""The FFT engine: the noise identity, restarts, forks, threads, precision, and mutants it must not hide."""

from __future__ import annotations

import gc
import hashlib
import os
import threading
import time
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from evertally.counters import fft_engine, fft_refill, series_fft
from evertally.counters.fft_engine import FftEngine
from evertally.counters.fft_refill import NoiseSeries, block_bounds, refill
from evertally.counters.log_perturbed import LogPerturbed
from evertally.counters.series import log_perturbed_series
from evertally.counters.series_fft import BACKENDS, real_transform
from evertally.errors import IntegrityError, UnsupportedMechanism

IntArray = NDArray[np.int64]
UNIT = 2.0**30


class FixedSource:
    """Draws that depend on the seed and the tick only, made in chunks of 512 ticks."""

    def __init__(self, keys: int = 1, seed: int = 7, scale: float = UNIT) -> None:
        self.keys = keys
        self.seed = seed
        self.scale = scale
        self.fail_from: int | None = None

    def block(self, first: int, count: int) -> IntArray:
        if self.fail_from is not None and first + count > self.fail_from:
            raise OSError("the entropy device is gone")
        low, high = (first - 1) // 512, (first + count - 2) // 512
        chunks = [
            np.random.default_rng((self.seed, c)).standard_normal((512, self.keys))
            for c in range(low, high + 1)
        ]
        start = first - 1 - 512 * low
        return np.rint(np.concatenate(chunks)[start : start + count] * self.scale).astype(np.int64)


def strategy_of_increments(mechanism: LogPerturbed, noise: NDArray[np.float64]) -> NDArray[np.float64]:
    """R (y_t - y_{t-1}) for y of shape (n,)."""
    n = len(noise)
    transform = real_transform(2 * n, np.longdouble)
    strategy = transform.forward(mechanism.strategy_coefficients(n).astype(np.longdouble))
    increments = np.diff(noise, prepend=0.0).astype(np.longdouble)
    return transform.filtered(increments, strategy)[:n].astype(np.float64)


def identity_error(mechanism: LogPerturbed, engine: FftEngine, n: int) -> NDArray[np.float64]:
    """|R (y_t - y_{t-1}) - z_t| in units of sigma, at every t."""
    z, h = engine.run(n)
    y = (z[:, 0] + h[:, 0]) / UNIT
    return np.abs(strategy_of_increments(mechanism, y) - z[:, 0] / UNIT)


@pytest.mark.slow
@pytest.mark.parametrize("ratio", [0.0, 1.2])
def test_noise_identity_across_every_power_of_two(ratio: float) -> None:
    mechanism = LogPerturbed(0.01, ratio)
    n = 2**16 + 2
    source = FixedSource()
    engine = mechanism.engine(source)
    z, h = engine.run(n)
    assert np.array_equal(z, source.block(1, n))
    y = (z[:, 0] + h[:, 0]) / UNIT
    error = np.abs(strategy_of_increments(mechanism, y) - z[:, 0] / UNIT)
    assert error.max() < 1e-9
    edges = [2**m + d for m in range(1, 17) for d in (-1, 0, 1)]
    assert error[edges].max() < 1e-9
    # R y = cumsum(z) is the same identity, summed.
    transform = real_transform(2 * n, np.longdouble)
    strategy = transform.forward(mechanism.strategy_coefficients(n).astype(np.longdouble))
    summed = transform.filtered(y.astype(np.longdouble), strategy)[:n].astype(float)
    assert np.max(np.abs(summed - np.cumsum(z[:, 0] / UNIT))) < 1e-6


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("alpha_ratio", [(0.01, 0.0), (1.0, 1.2)])
def test_exact_rounding_against_a_dense_oracle(backend: str, alpha_ratio: tuple[float, float]) -> None:
    n = 130
    mechanism = LogPerturbed(*alpha_ratio)
    series = NoiseSeries(mechanism.noise_coefficients, mechanism.noise_coefficients, 0.0)
    source = FixedSource(keys=2)
    engine = FftEngine(series, source, refill_block=lambda s, d, low: refill(s, d, low, backend))
    z, h = engine.run(n)
    noise = [Fraction(x) for x in mechanism.noise_coefficients(n).tolist()]
    for key in range(2):
        draws = z[:, key].tolist()
        for t in range(n):
            exact = sum((noise[t - i] * draws[i] for i in range(t)), Fraction(0))
            assert abs(h[t, key] - exact) <= Fraction(1, 2) + Fraction(1, 1000)
    assert h[0].tolist() == [0, 0]


def test_steps_equal_a_run_and_views_are_read_only() -> None:
    mechanism = LogPerturbed()
    z, h = mechanism.engine(FixedSource(3)).run(300)
    engine = mechanism.engine(FixedSource(3))
    for t in range(300):
        step_z, step_h = engine.step()
        assert np.array_equal(step_z, z[t])
        assert np.array_equal(step_h, h[t])
        assert engine.t == t + 1
    with pytest.raises(ValueError, match="read-only"):
        step_h[0] = 1


def test_a_key_does_not_depend_on_its_neighbours() -> None:
    class Column:
        keys = 1

        def block(self, first: int, count: int) -> IntArray:
            return FixedSource(5).block(first, count)[:, 3:4]

    mechanism = LogPerturbed(0.01, 0.0)
    z, h = mechanism.engine(FixedSource(5)).run(3000)
    z1, h1 = mechanism.engine(Column()).run(3000)
    assert np.array_equal(z[:, 3:4], z1)
    assert np.array_equal(h[:, 3:4], h1)


@pytest.mark.parametrize("t", [0, 1, 63, 64, 65, 127, 128, 129, 1500, 2047, 2048, 2049, 3000])
def test_restart_equals_uninterrupted(t: int) -> None:
    mechanism = LogPerturbed(0.01, 1.2)
    z, h = mechanism.engine(FixedSource(2)).run(4200)
    first = mechanism.engine(FixedSource(2))
    first.run(t)
    second = mechanism.engine(FixedSource(2))
    second.load(first.state(), t)
    assert second.t == t
    z2, h2 = second.run(4200 - t)
    assert np.array_equal(z2, z[t:])
    assert np.array_equal(h2, h[t:])


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(cuts=st.lists(st.integers(1, 1200), max_size=5))
def test_restarts_anywhere(cuts: list[int]) -> None:
    mechanism = LogPerturbed(1.0, 1.2)
    z, h = mechanism.engine(FixedSource()).run(1300)
    engine = mechanism.engine(FixedSource())
    for cut in sorted(set(cuts)):
        zs, hs = engine.run(cut - engine.t)
        assert np.array_equal(zs, z[cut - len(zs) : cut])
        assert np.array_equal(hs, h[cut - len(hs) : cut])
        fresh = mechanism.engine(FixedSource())
        fresh.load(engine.state(), cut)
        engine = fresh


def test_state_has_one_size_and_is_checked() -> None:
    mechanism = LogPerturbed()
    engine = mechanism.engine(FixedSource())
    empty = engine.state()
    engine.run(5000)
    assert len(engine.state()) == len(empty) == 17
    for bad in (engine.state()[:-1], b"", empty, b"\x02" + engine.state()[1:]):
        with pytest.raises(IntegrityError):
            engine.load(bad, 5000)
    with pytest.raises(IntegrityError):
        mechanism.engine(FixedSource(2)).load(engine.state(), 5000)


def test_horizon_is_refused_before_the_step() -> None:
    engine = LogPerturbed(0.01, 0.0, horizon=100).engine(FixedSource())
    engine.run(99)
    with pytest.raises(UnsupportedMechanism, match="horizon=100"):
        engine.run(2)
    assert engine.t == 99
    engine.step()
    with pytest.raises(UnsupportedMechanism, match="horizon=100"):
        engine.step()
    assert engine.t == 100
    exact = LogPerturbed(0.01, 0.0, horizon=128).engine(FixedSource())
    exact.run(128)
    with pytest.raises(UnsupportedMechanism, match="horizon=128"):
        exact.step()


def test_reach_of_the_engine_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fft_engine, "TICKS_MAX", 200)
    engine = LogPerturbed().engine(FixedSource())
    engine.run(200)
    with pytest.raises(UnsupportedMechanism, match="memory='constant'"):
        engine.step()


def test_covariance_of_short_streams() -> None:
    """20,000 streams of 12 ticks: all 78 entries within 7 standard errors (false alarms 2e-10)."""
    mechanism = LogPerturbed(0.01, 1.2, horizon=12)  # so that no second block is prepared
    streams, n = 20_000, 12

    class Table:
        keys = streams
        draws = np.rint(np.random.default_rng(11).standard_normal((64, streams)) * UNIT).astype(np.int64)

        def block(self, first: int, count: int) -> IntArray:
            return self.draws[first - 1 : first - 1 + count]

    z, h = mechanism.engine(Table()).run(n)
    y = (z + h) / UNIT
    noise = mechanism.noise_coefficients(n)
    rows = np.arange(n)
    L = np.where(rows[:, None] >= rows, noise[np.abs(rows[:, None] - rows)], 0.0)
    expected = L @ L.T
    found = y @ y.T / streams
    error = np.sqrt((np.outer(np.diag(expected), np.diag(expected)) + expected**2) / streams)
    assert np.max(np.abs(found - expected) / error) < 7.0


# ----- mutants: each of these bugs must show in the noise identity ---------------------------------


def test_identity_sees_an_fft_that_is_too_short() -> None:
    mechanism = LogPerturbed(0.01, 0.0)

    def too_short(series: NoiseSeries, draws: IntArray, low: int) -> IntArray:
        high = len(draws)
        length = 3 * low - low // 8 if low else 2 * high
        transform = real_transform(length)
        past = series.double(high).astype(np.float64)
        past[0] = 0.0
        z = draws[:, 0].astype(np.float64)
        folded_l, folded_z = np.zeros(length), np.zeros(length)
        folded_l[:high], folded_z[:high] = past, z
        product = transform.filtered(folded_z, transform.forward(folded_l))
        return np.floor(product[low:high] + 0.5).astype(np.int64)[:, None]

    series = NoiseSeries(mechanism.noise_coefficients, mechanism.noise_coefficients, 0.0)
    error = identity_error(mechanism, FftEngine(series, FixedSource(), refill_block=too_short), 1024)
    assert error.max() > 1e-3


def test_identity_sees_fresh_draws_at_a_refill() -> None:
    mechanism = LogPerturbed(0.01, 0.0)

    def forgetful(series: NoiseSeries, draws: IntArray, low: int) -> IntArray:
        draws = draws.copy()
        draws[:low] = FixedSource(seed=low + 1).block(1, max(low, 1))[:low]
        return refill(series, draws, low)

    series = NoiseSeries(mechanism.noise_coefficients, mechanism.noise_coefficients, 0.0)
    error = identity_error(mechanism, FftEngine(series, FixedSource(), refill_block=forgetful), 256)
    assert error[64:].max() > 1e-2


def test_identity_sees_left_and_right_swapped() -> None:
    mechanism = LogPerturbed(0.01, 0.0)
    swapped = NoiseSeries(mechanism.strategy_coefficients, mechanism.strategy_coefficients, 0.0)
    assert identity_error(mechanism, FftEngine(swapped, FixedSource()), 256).max() > 1e-2


def test_identity_sees_a_power_of_two_block_that_starts_late() -> None:
    mechanism = LogPerturbed(0.01, 0.0)
    series = NoiseSeries(mechanism.noise_coefficients, mechanism.noise_coefficients, 0.0)

    def shifted(s: NoiseSeries, draws: IntArray, low: int) -> IntArray:
        return np.roll(refill(s, draws, low), 1, axis=0)

    assert identity_error(mechanism, FftEngine(series, FixedSource(), refill_block=shifted), 130).max() > 1e-2


# ----- precision -----------------------------------------------------------------------------------


def test_large_draws_take_extended_precision() -> None:
    """Where the double bound exceeds g/2 the refill is recomputed; checked against exact integers."""
    mechanism = LogPerturbed(0.01, 0.0)
    n = 256
    source = FixedSource(keys=2, scale=2.0**46)
    z, h = mechanism.engine(source).run(n)
    extended = log_perturbed_series(0.51, 0.0, n, np.longdouble)
    mantissas = [Fraction(*x.as_integer_ratio()) for x in extended]
    for key in range(2):
        draws = z[:, key].tolist()
        for t in (1, 63, 64, 65, 128, 200, 255):
            exact = sum((mantissas[t - i] * draws[i] for i in range(t)), Fraction(0))
            assert abs(h[t, key] - exact) <= 1


def test_only_the_keys_that_need_it_take_extended_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[type] = []
    original = series_fft.real_transform

    def spy(n: int, dtype: type, backend: str) -> object:
        made.append(dtype)
        return original(n, dtype, backend)

    monkeypatch.setattr(fft_refill, "real_transform", spy)
    mechanism = LogPerturbed(0.01, 0.0)
    series = NoiseSeries(
        mechanism.noise_coefficients, lambda n: log_perturbed_series(0.51, 0.0, n, np.longdouble), 2.0**-46
    )
    draws = FixedSource(keys=2).block(1, 128)
    plain = refill(series, draws, 64)
    assert made == [np.float64]
    loud = draws.copy()
    loud[:, 1] *= 2**17
    mixed = refill(series, loud, 64)
    assert made == [np.float64, np.float64, np.longdouble]
    assert np.array_equal(mixed[:, 0], plain[:, 0])


def test_double_error_stays_far_below_its_bound() -> None:
    low = 2**12
    mechanism = LogPerturbed(0.01, 0.0)
    draws = FixedSource().block(1, 2 * low)
    double = fft_refill._Refiller(
        mechanism.noise_coefficients(2 * low), low, np.float64, 2.0**-46, BACKENDS[0]
    )
    extended = fft_refill._Refiller(
        log_perturbed_series(0.51, 0.0, 2 * low, np.longdouble), low, np.longdouble, 2.0**-57, BACKENDS[0]
    )
    z = draws[:, 0].astype(np.float64)
    bound = double.error_bound(z)
    assert bound < fft_refill.ETA
    found = fft_refill.convolve_block(double._spectrum, z, low, double._transform).copy()
    truth = fft_refill.convolve_block(extended._spectrum, z.astype(np.longdouble), low, extended._transform)
    assert 0.0 < float(np.max(np.abs(found - truth))) < bound / 20


# ----- the thread that prepares ahead ----------------------------------------------------------------


def worker_threads() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name == "evertally-prepare-ahead" and t.is_alive()]


def wait_until(condition: object) -> None:
    deadline = time.monotonic() + 20.0
    while not condition() and time.monotonic() < deadline:  # type: ignore[operator]  # a plain callable
        time.sleep(0.01)


@pytest.mark.slow
def test_one_thread_an_engine_and_close_ends_it() -> None:
    gc.collect()
    wait_until(lambda: not worker_threads())
    before = len(worker_threads())
    engine = LogPerturbed().engine(FixedSource())
    assert isinstance(engine, FftEngine)
    engine.run(3000)
    assert len(worker_threads()) == before + 1
    engine.close()
    wait_until(lambda: len(worker_threads()) == before)
    assert len(worker_threads()) == before
    z, h = engine.run(2000)  # goes on after close
    z2, h2 = LogPerturbed().engine(FixedSource()).run(5000)
    assert np.array_equal(z, z2[3000:])
    assert np.array_equal(h, h2[3000:])


@pytest.mark.slow
def test_a_forgotten_engine_takes_its_thread_along() -> None:
    gc.collect()
    before = len(worker_threads())
    engine = LogPerturbed().engine(FixedSource())
    engine.run(200)
    del engine
    gc.collect()
    wait_until(lambda: len(worker_threads()) <= before)
    assert len(worker_threads()) <= before


def test_errors_of_the_thread_surface_at_the_step_that_needs_it() -> None:
    source = FixedSource()
    source.fail_from = 513
    engine = LogPerturbed().engine(source)
    z, h = engine.run(512)
    with pytest.raises(OSError, match="entropy device"):
        engine.step()
    assert engine.t == 512
    with pytest.raises(OSError, match="entropy device"):
        engine.step()
    source.fail_from = None
    z2, h2 = engine.run(600)
    whole_z, whole_h = LogPerturbed().engine(FixedSource()).run(1112)
    assert np.array_equal(np.concatenate([z, z2]), whole_z)
    assert np.array_equal(np.concatenate([h, h2]), whole_h)


@pytest.mark.parametrize("t", [0, 100, 4095, 4096])
def test_a_forked_child_goes_on_alone(t: int) -> None:
    engine = LogPerturbed(0.01, 1.2).engine(FixedSource())
    engine.run(t)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        z, h = engine.run(9000)
        os.write(write, hashlib.sha256(z.tobytes() + h.tobytes()).digest())
        os._exit(0)
    os.close(write)
    z, h = engine.run(9000)
    with os.fdopen(read, "rb") as pipe:
        digest = pipe.read()
    assert os.waitpid(child, 0)[1] == 0
    assert digest == hashlib.sha256(z.tobytes() + h.tobytes()).digest()


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**40))
def test_blocks_partition_the_ticks(index: int) -> None:
    low, high = block_bounds(index)
    assert low <= index < high
    assert block_bounds(low) == block_bounds(high - 1) == (low, high)
    assert block_bounds(high)[0] == high
