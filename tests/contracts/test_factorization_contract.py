"""One suite for every factorization: L R = 1, the noise identity, restart, a dense oracle."""

from __future__ import annotations

import hashlib
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evertally.counters import (
    Contribution,
    CounterBank,
    Factorization,
    LogPerturbed,
    NoiseEngine,
    Rational,
    parse_mechanism,
    window_power,
)
from evertally.counters.noise_power import noise_power_track
from evertally.errors import EvertallyError

FACTORIZATIONS: dict[str, Factorization] = {
    "W32": Rational.preset("W32"),
    "H24": Rational.preset("H24"),
    "H40": Rational.preset("H40"),
    "H48": Rational.preset("H48"),
    "weights": Rational.from_weights((1, 4), (0.3, 0.2, 0.1, 0.4)),
    "log-perturbed": LogPerturbed(alpha=1.0, loglog_ratio=1.2),
    "log-perturbed-flat": LogPerturbed(alpha=0.2, loglog_ratio=0.0),
    "log-perturbed-horizon": LogPerturbed(alpha=0.01, loglog_ratio=0.0, horizon=2**14),
    "log-perturbed-constant": LogPerturbed(alpha=0.01, loglog_ratio=1.0, memory="constant"),
}


@pytest.fixture(params=sorted(FACTORIZATIONS))
def m(request: pytest.FixtureRequest) -> Factorization:
    return FACTORIZATIONS[request.param]


class HashedSource:
    """Deterministic draws of deviation about 2^30 from SHA-256: twelve uniforms a draw."""

    def __init__(self, keys: int = 1, label: str = "") -> None:
        self.keys = keys
        self._label = label

    def block(self, first: int, count: int) -> np.ndarray:
        rows = []
        for t in range(first, first + count):
            words = b"".join(
                hashlib.sha256(f"{self._label}/{t}/{key}/{part}".encode()).digest()
                for key in range(self.keys)
                for part in range(2)
            )
            uniforms = np.frombuffer(words, dtype=">u4").reshape(self.keys, 16)[:, :12] / 2.0**32
            rows.append(np.rint((uniforms.sum(axis=1) - 6.0) * 2**30).astype(np.int64))
        return np.array(rows, dtype=np.int64).reshape(count, self.keys)


def close(engine: NoiseEngine) -> None:
    """End an engine's worker thread where it has one."""
    stop = getattr(engine, "close", None)
    if stop is not None:
        stop()


def lower_triangular(coefficients: np.ndarray) -> np.ndarray:
    n = len(coefficients)
    return np.array([[coefficients[i - j] if i >= j else 0.0 for j in range(n)] for i in range(n)])


@pytest.mark.slow
def test_the_pair_multiplies_to_counting(m: Factorization) -> None:
    n = 2048
    product = np.convolve(m.noise_coefficients(n), m.strategy_coefficients(n))[:n]
    assert np.abs(product - 1.0).max() < 1e-11


def test_first_coefficients_are_one(m: Factorization) -> None:
    assert m.noise_coefficients(1).tolist() == [1.0]
    assert m.strategy_coefficients(1).tolist() == [1.0]
    assert m.noise_power(1) == pytest.approx(1.0, abs=1e-14)


def test_sensitivity_is_at_least_every_partial_sum(m: Factorization) -> None:
    partial = float(np.sum(m.strategy_coefficients(2**14) ** 2))
    assert m.sensitivity_squared() >= partial * (1 - 1e-12)


def test_noise_power_is_the_sum_of_squares(m: Factorization) -> None:
    squares = np.cumsum(m.noise_coefficients(4096) ** 2)
    for t in (1, 2, 7, 1000, 4096):
        assert m.noise_power(t) == pytest.approx(float(squares[t - 1]), rel=1e-11)


def test_power_track_and_window_errors_agree_with_the_coefficients(m: Factorization) -> None:
    coefficients = m.noise_coefficients(300)
    track = noise_power_track(m)
    assert [track.step() for _ in range(300)] == pytest.approx(np.cumsum(coefficients**2), rel=1e-11)
    change = coefficients.copy()
    change[24:] -= coefficients[:276]
    assert window_power(m, 300, 24) == pytest.approx(float(change @ change), rel=1e-9)


def test_kappa_bounds_the_inverse(m: Factorization) -> None:
    """kappa >= ||L^-1||_2 of every finite section."""
    L = lower_triangular(m.noise_coefficients(256))
    assert np.linalg.norm(np.linalg.inv(L), 2) <= m.kappa * (1 + 1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("n", [1, 2, 3, 17, 64])
def test_engine_equals_the_dense_oracle(m: Factorization, n: int) -> None:
    engine = m.engine(HashedSource(2))
    z, h = engine.run(n)
    close(engine)
    dense = lower_triangular(m.noise_coefficients(n)) @ z.astype(float)
    allowed = 0.5 + m.eta + m.state_rounding * math.sqrt(n) * 4 + 1e-4
    assert np.abs(dense - (z + h)).max() <= allowed
    assert z.dtype == h.dtype == np.int64


@pytest.mark.slow
def test_noise_identity(m: Factorization) -> None:
    """R applied to the steps of the noise gives back the draws, across powers of two."""
    n = 1100
    engine = m.engine(HashedSource())
    z, h = engine.run(n)
    close(engine)
    noise = (z + h)[:, 0].astype(float)
    recovered = np.convolve(m.strategy_coefficients(n), np.diff(noise, prepend=0.0))[:n]
    assert np.abs(recovered - z[:, 0]).max() < 16 + 4 * m.state_rounding * math.sqrt(n)


@pytest.mark.slow
def test_steps_and_runs_give_the_same_integers(m: Factorization) -> None:
    one, other = m.engine(HashedSource(3)), m.engine(HashedSource(3))
    z, h = one.run(70)
    for t in range(70):
        step_z, step_h = other.step()
        assert step_z.tolist() == z[t].tolist()
        assert step_h.tolist() == h[t].tolist()
    assert one.t == other.t == 70
    close(one)
    close(other)


@pytest.mark.slow
@pytest.mark.parametrize("at", [0, 1, 7, 8, 9, 63, 64, 65, 100])
def test_restart_at_any_tick(m: Factorization, at: int) -> None:
    whole, again = m.engine(HashedSource(2)), m.engine(HashedSource(2))
    whole.run(at)
    again.load(whole.state(), at)
    expected, got = whole.run(140 - at), again.run(140 - at)
    close(whole)
    close(again)
    assert (expected[0] == got[0]).all()
    assert (expected[1] == got[1]).all()


def test_a_canonical_id_reads_back(m: Factorization) -> None:
    again = parse_mechanism(m.mechanism_id)
    assert again.mechanism_id == m.mechanism_id
    assert again.noise_coefficients(50).tolist() == m.noise_coefficients(50).tolist()
    assert again.sensitivity_squared() == m.sensitivity_squared()


@pytest.mark.slow
def test_bank_snapshots_at_any_tick(m: Factorization) -> None:
    def bank() -> CounterBank:
        return CounterBank.for_mu(m, mu=0.5, source=HashedSource(2), contribution=Contribution())

    amounts = [[t % 3, 1] for t in range(90)]
    whole = bank()
    expected = whole.close_ticks(amounts)
    for at in (0, 1, 31, 32, 33, 64, 89):
        first = bank()
        first.close_ticks(amounts[:at])
        second = bank()
        second.load(first.snapshot())
        assert second.close_ticks(amounts[at:]) == expected[at:]
        assert len(first.snapshot()) < 8192
        for used in (first, second):
            close(used._engine)
    close(whole._engine)


@pytest.mark.parametrize("n", [0, -1, 1.5, True, float("nan")])
def test_unusable_lengths_are_refused(m: Factorization, n: float) -> None:
    for call in (m.noise_coefficients, m.strategy_coefficients, m.noise_power):
        with pytest.raises(EvertallyError):
            call(n)  # type: ignore[arg-type]  # deliberately wrong


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(
    weights=st.lists(st.floats(0.01, 1.0), min_size=3, max_size=6),
    gaps=st.lists(st.integers(1, 4), min_size=4, max_size=4),
)
def test_any_rational_weights_make_a_valid_factorization(weights: list[float], gaps: list[int]) -> None:
    exponents = tuple(int(k) for k in np.cumsum(gaps[: len(weights) - 2]))
    if len(exponents) != len(weights) - 2:
        exponents = tuple(range(1, len(weights) - 1))
    total = sum(weights) * 1.05
    m = Rational.from_weights(exponents, tuple(w / total for w in weights))
    n = 1500
    left, right = m.noise_coefficients(n), m.strategy_coefficients(n)
    assert np.abs(np.convolve(left, right)[:n] - 1).max() < 1e-11
    assert (np.diff(right) < 1e-15).all()
    assert (right[:200] > 0).all()
    assert m.sensitivity_squared() >= float(np.sum(right**2)) * (1 - 1e-12)
    assert m.kappa <= 2.0
