"""The descriptor: identities, ranges, horizons, several participations, coefficient cache."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evertally.counters import log_perturbed
from evertally.counters.asymptotic_tail import AsymptoticTail
from evertally.counters.coefficient_cache import cache_directory, cached_coefficients
from evertally.counters.factorization import Factorization
from evertally.counters.log_perturbed import LogPerturbed
from evertally.counters.log_perturbed_nodes import exact_noise_power
from evertally.counters.log_perturbed_shape import strategy_is_decreasing
from evertally.counters.participation_norm import finite_pattern_norm, infinite_pattern_norm
from evertally.counters.series import log_perturbed_series
from evertally.counters.yardstick import yardstick
from evertally.errors import InvalidParameter, UnsupportedMechanism

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("mechanism", "text"),
    [
        (LogPerturbed(), "log-perturbed:alpha=1.0,loglog_ratio=1.2"),
        (LogPerturbed(0.01, 0.0, 2**20), "log-perturbed:alpha=0.01,loglog_ratio=0.0,horizon=1048576"),
        (
            LogPerturbed(0.1, 1.0, memory="constant"),
            "log-perturbed:alpha=0.1,loglog_ratio=1.0,memory=constant",
        ),
        (
            LogPerturbed(0.1, 1, 7, "constant"),
            "log-perturbed:alpha=0.1,loglog_ratio=1.0,horizon=7,memory=constant",
        ),
    ],
)
def test_mechanism_id_round_trip(mechanism: LogPerturbed, text: str) -> None:
    assert mechanism.mechanism_id == text
    assert LogPerturbed.from_id(text) == mechanism
    assert pickle.loads(pickle.dumps(mechanism)) == mechanism
    assert isinstance(mechanism, Factorization)


@settings(max_examples=60, deadline=None)
@given(st.floats(0.001, 1.0), st.one_of(st.just(0.0), st.floats(1e-6, 2.0)), st.integers(1, 2**26))
def test_every_id_reads_back(alpha: float, ratio: float, horizon: int) -> None:
    mechanism = LogPerturbed(alpha, ratio, horizon)
    assert LogPerturbed.from_id(mechanism.mechanism_id) == mechanism


@pytest.mark.parametrize(
    "text",
    [
        "log-perturbed:",
        "log-perturbed:alpha=1,loglog_ratio=1.2",
        "log-perturbed:alpha=1.0,loglog_ratio=1.20",
        "log-perturbed:loglog_ratio=1.2,alpha=1.0",
        "log-perturbed:alpha=nan,loglog_ratio=1.2",
        "log-perturbed:alpha=1.0.0,loglog_ratio=1.2",
        "log-perturbed:alpha=1.0,loglog_ratio=1.2,horizon=0",
        "log-perturbed:alpha=1.0,loglog_ratio=1.2,horizon=007",
        "log-perturbed:alpha=1.0,loglog_ratio=1.2,memory=fft",
        "log-perturbed:alpha=1.0,loglog_ratio=1.2 ",
        "log-perturbed:alpha=1.0,loglog_ratio=-0.0",
    ],
)
def test_other_spellings_are_refused(text: str) -> None:
    with pytest.raises(InvalidParameter):
        LogPerturbed.from_id(text)


@pytest.mark.parametrize("alpha", [NAN, INF, -INF, 0.0, -0.01, 5e-324, 1e-300, 9.99e-4, 1.0000001, 1e300])
def test_alpha_out_of_range(alpha: float) -> None:
    with pytest.raises(InvalidParameter, match="alpha"):
        LogPerturbed(alpha, 0.0)


@pytest.mark.parametrize("ratio", [NAN, INF, -INF, -1e-9, -1.0, 5e-324, 1e-310, 1e-7, 2.0000001, 1e300])
def test_ratio_out_of_range(ratio: float) -> None:
    with pytest.raises(InvalidParameter, match="loglog_ratio"):
        LogPerturbed(0.5, ratio)


@pytest.mark.parametrize("horizon", [0, -1, 2**26 + 1, 10**30, 1.0, True, NAN])
def test_horizon_out_of_range(horizon: object) -> None:
    with pytest.raises(InvalidParameter, match="horizon"):
        LogPerturbed(0.5, 1.0, horizon)  # type: ignore[arg-type]  # that is the test


def test_other_parameters_are_refused_by_name() -> None:
    with pytest.raises(InvalidParameter, match="memory"):
        LogPerturbed(0.5, 1.0, None, "disk")  # type: ignore[arg-type]  # that is the test
    with pytest.raises(InvalidParameter, match="alpha"):
        LogPerturbed("0.5", 1.0)  # type: ignore[arg-type]  # that is the test
    mechanism = LogPerturbed()
    for call, name in (
        (lambda: mechanism.noise_power(0), "t"),
        (lambda: mechanism.noise_coefficients(0), "n"),
        (lambda: mechanism.strategy_coefficients(-1), "n"),
        (lambda: mechanism.sensitivity_squared(0), "participations"),
        (lambda: mechanism.sensitivity_squared(2, 0), "min_separation"),
        (lambda: mechanism.sensitivity_squared(horizon=0), "horizon"),
    ):
        with pytest.raises(InvalidParameter, match=name):
            call()


def test_declared_accounting() -> None:
    mechanism = LogPerturbed()
    assert mechanism.eta == 0.5
    assert mechanism.state_rounding == 0.0
    assert mechanism.horizon is None


@pytest.mark.slow
def test_default_is_within_two_of_the_yardstick() -> None:
    """alpha=1, loglog_ratio=1.2: variance <= 2.0 V_t^2 for t in [2^4, 2^20], with an infinite guarantee."""
    mechanism = LogPerturbed()
    norm = mechanism.sensitivity_squared()
    powers = np.cumsum(mechanism.noise_coefficients(2**20) ** 2)
    for t in (2 ** np.linspace(4, 20, 65)).astype(int).tolist():
        assert norm * powers[t - 1] <= 2.0 * yardstick(t) ** 2


@pytest.mark.slow
def test_noise_power_continues_in_closed_form() -> None:
    for alpha, ratio in ((0.01, 0.0), (1.0, 1.2), (1.0, 2.0), (1.0, 0.0)):
        gamma, delta = 0.5 + alpha, -ratio * (0.5 + alpha)
        noise = log_perturbed_series(gamma, delta, 2**17)
        for t in (1, 2, 64, 65, 5000, 2**17):
            assert exact_noise_power(gamma, delta, t) == pytest.approx(
                np.dot(noise[:t], noise[:t]), rel=2e-13
            )
    assert LogPerturbed(0.01, 0.0).noise_power(2**20) == pytest.approx(42.9069475846510, rel=1e-12)
    assert LogPerturbed(0.01, 1.2).noise_power(2**20) == pytest.approx(7.80165352577438, rel=1e-12)


# ----- several participations ------------------------------------------------------------------------


def dense_norm(strategy: np.ndarray, starts: tuple[int, ...]) -> float:
    total = np.zeros(len(strategy))
    for start in starts:
        total[start:] += strategy[: len(strategy) - start]
    return float(total @ total)


@pytest.mark.parametrize("memory", ["fft", "constant"])
def test_no_admissible_pattern_exceeds_the_bound(memory: str) -> None:
    rng = np.random.default_rng(2)
    mechanism = LogPerturbed(0.05, 1.2, horizon=60, memory=memory)  # type: ignore[arg-type]  # parametrised
    strategy = mechanism.strategy_coefficients(60)
    for k, b in ((2, 1), (3, 7), (5, 11), (60, 1), (9, 20)):
        bound = mechanism.sensitivity_squared(k, b)
        tight = tuple(i * b for i in range(k) if i * b < 60)
        assert bound == pytest.approx(dense_norm(strategy, tight), rel=1e-9)
        for _ in range(200):
            starts: list[int] = []
            at = int(rng.integers(0, 60))
            while at < 60 and len(starts) < k:
                starts.append(at)
                at += b + int(rng.integers(0, 4))
            assert dense_norm(strategy, tuple(starts)) <= bound


@pytest.mark.slow
@pytest.mark.parametrize("memory", ["fft", "constant"])
def test_infinite_bound_contains_every_horizon(memory: str) -> None:
    mechanism = LogPerturbed(1.0, 1.2, memory=memory)  # type: ignore[arg-type]  # parametrised
    for k, b in ((2, 1), (4, 1), (4, 100), (10, 100)):
        forever = mechanism.sensitivity_squared(k, b)
        assert forever > mechanism.sensitivity_squared(k, b, horizon=2**18)
        assert (
            k * mechanism.sensitivity_squared()
            <= forever
            <= k * k * mechanism.sensitivity_squared() * (1 + 1e-9)
        )
    assert mechanism.sensitivity_squared(1, 5) == mechanism.sensitivity_squared()


def test_infinite_bound_is_tight_where_the_norm_is_known() -> None:
    # r_n = 2^-n: r(j) = 2^-j 4/3.
    strategy = 0.5 ** np.arange(400)
    exact = 3 * 4 / 3 + 2 * (2 * 2.0**-4 + 2.0**-8) * 4 / 3
    assert infinite_pattern_norm(strategy, 4 / 3, 3, 4) == pytest.approx(exact, rel=1e-9)
    assert infinite_pattern_norm(strategy, 4 / 3, 3, 4) >= exact
    assert infinite_pattern_norm(strategy, 4 / 3, 3, 10**6) == pytest.approx(9 * 4 / 3)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 40), st.integers(1, 12), st.integers(1, 12))
def test_pattern_norm_equals_the_dense_sum(n: int, k: int, b: int) -> None:
    strategy = np.sort(np.random.default_rng(n).random(n))[::-1].copy()
    starts = tuple(i * b for i in range(k) if i * b < n)
    assert finite_pattern_norm(strategy, k, b) == pytest.approx(dense_norm(strategy, starts), rel=1e-10)


def test_a_strategy_that_is_not_decreasing_is_refused() -> None:
    for alpha in (0.5, 0.7, 1.0):  # r_1 = 1/4 - alpha/2 <= 0
        mechanism = LogPerturbed(alpha, 0.0)
        assert mechanism.sensitivity_squared() > 1.0
        with pytest.raises(UnsupportedMechanism, match="non-increasing"):
            mechanism.sensitivity_squared(2, 10)
        with pytest.raises(UnsupportedMechanism, match="non-increasing"):
            mechanism.sensitivity_squared(2, 10, horizon=100)
        # One tick fits, so the separation makes it one participation.
        assert mechanism.sensitivity_squared(2, 100, horizon=100) == mechanism.sensitivity_squared(
            horizon=100
        )


@pytest.mark.slow
@settings(max_examples=12, deadline=None)
@given(st.floats(0.001, 1.0), st.one_of(st.just(0.0), st.floats(1e-6, 2.0)))
def test_the_shape_certificate_never_errs(alpha: float, ratio: float) -> None:
    gamma, delta = -(0.5 + alpha), ratio * (0.5 + alpha)
    if strategy_is_decreasing(gamma, delta):
        strategy = log_perturbed_series(gamma, delta, 2**13)
        assert np.all(np.diff(strategy) < 0)
        assert strategy[-1] > 0


@pytest.mark.slow
def test_the_shape_certificate_covers_the_published_choices() -> None:
    for alpha in (0.001, 0.01, 0.05, 0.2):
        assert strategy_is_decreasing(-(0.5 + alpha), 0.0)
    for alpha in (0.01, 0.2, 0.5, 1.0):
        for ratio in (1.0, 1.2):
            assert strategy_is_decreasing(-(0.5 + alpha), ratio * (0.5 + alpha))


# ----- the cache ---------------------------------------------------------------------------------------


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EVERTALLY_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


class Series:
    def __init__(self) -> None:
        self.calls: list[int] = []

    def __call__(self, n: int) -> np.ndarray:
        self.calls.append(n)
        return 1.0 / np.arange(1.0, n + 1)


def test_cache_reads_what_it_wrote(cache: Path) -> None:
    series = Series()
    first = cached_coefficients("harmonic", 20_000, series)
    again = cached_coefficients("harmonic", 30_000, series)
    assert series.calls == [32768]
    assert np.array_equal(again[:20_000], first)
    assert len(again) == 30_000
    longer = cached_coefficients("harmonic", 40_000, series)
    assert series.calls == [32768, 65536]
    assert np.array_equal(longer[:30_000], again)
    assert [path.suffix for path in cache.iterdir()] == [".coefficients"] * 2
    assert oct(cache.stat().st_mode & 0o777) == "0o700"
    with pytest.raises(ValueError, match="read-only"):
        longer[0] = 2.0


@pytest.mark.parametrize("damage", ["flip", "cut", "header", "empty", "other", "version"])
def test_damaged_cache_is_recomputed(cache: Path, damage: str) -> None:
    series = Series()
    truth = cached_coefficients("harmonic", 20_000, series).copy()
    (path,) = cache.iterdir()
    blob = bytearray(path.read_bytes())
    if damage == "flip":
        blob[-5] ^= 1
    elif damage == "cut":
        blob = blob[:-8]
    elif damage == "header":
        blob = blob[:20]
    elif damage == "empty":
        blob = bytearray()
    elif damage == "version":
        blob[8] ^= 1
    else:
        cached_coefficients("squares", 20_000, lambda n: 1.0 / np.arange(1.0, n + 1) ** 2)
        (other,) = (p for p in cache.iterdir() if p != path)
        blob = bytearray(other.read_bytes())
    path.write_bytes(bytes(blob))
    assert np.array_equal(cached_coefficients("harmonic", 20_000, series), truth)
    assert series.calls == [32768, 32768]
    assert np.array_equal(cached_coefficients("harmonic", 20_000, series), truth)
    assert series.calls == [32768, 32768]


def test_cache_of_another_owner_is_not_read(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    series = Series()
    cached_coefficients("harmonic", 20_000, series)
    owner = os.getuid()
    for path in cache.iterdir():
        if owner == 0:
            os.chown(path, 12345, -1)
    if owner != 0:
        monkeypatch.setattr(os, "getuid", lambda: owner + 1)
    cached_coefficients("harmonic", 20_000, series)
    assert series.calls == [32768, 32768]


def test_a_cache_that_cannot_be_written_costs_only_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a directory")
    monkeypatch.setenv("EVERTALLY_CACHE", str(blocked))
    series = Series()
    assert len(cached_coefficients("harmonic", 20_000, series)) == 20_000
    assert blocked.read_text() == "not a directory"


def test_cache_directory_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("EVERTALLY_CACHE", str(tmp_path))
    assert cache_directory() == tmp_path
    monkeypatch.delenv("EVERTALLY_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_directory() == tmp_path / "evertally"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_directory() == tmp_path / ".cache" / "evertally"


def test_who_has_no_home_computes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user that the system does not know, without HOME: Python finds no home for it and raises."""
    for name in ("EVERTALLY_CACHE", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 2**31 - 2)
    assert cache_directory() is None
    assert cached_coefficients("n", 1 << 14, lambda n: np.arange(n, dtype=np.float64))[-1] == (1 << 14) - 1


def test_cached_coefficients_equal_computed_ones(cache: Path) -> None:
    mechanism = LogPerturbed(0.02, 0.9)
    cold = mechanism.noise_coefficients(2**15).copy()
    log_perturbed._IN_MEMORY.clear()
    (path,) = cache.iterdir()
    assert path.name.endswith("-32768.coefficients")
    warm = mechanism.noise_coefficients(2**15)
    assert np.shares_memory(warm, mechanism.noise_coefficients(5))
    assert np.array_equal(cold, warm)
    assert np.array_equal(warm, log_perturbed_series(0.52, -0.9 * 0.52, 2**15))


# ----- Algorithm 2 ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("alpha", "ratio"), [(0.01, 0.0), (0.01, 1.2), (1.0, 1.2)])
def test_asymptotic_tail_accounts_for_what_it_uses(alpha: float, ratio: float) -> None:
    exact = LogPerturbed(alpha, ratio)
    tail = AsymptoticTail(exact, 8192)
    assert isinstance(tail, Factorization)
    noise, strategy = tail.noise_coefficients(8192), tail.strategy_coefficients(8192)
    assert np.array_equal(noise[:2048], exact.noise_coefficients(2048))
    assert np.max(np.abs(noise[2048:] / exact.noise_coefficients(8192)[2048:] - 1)) < 2e-3
    assert not np.array_equal(noise[2048:], exact.noise_coefficients(8192)[2048:])
    transform_size = 1 << 14
    product = np.fft.irfft(np.fft.rfft(noise, transform_size) * np.fft.rfft(strategy, transform_size))[:8192]
    assert np.max(np.abs(product - 1.0)) < 1e-11
    own = tail.sensitivity_squared()
    assert own >= np.dot(strategy, strategy)
    assert own != pytest.approx(exact.sensitivity_squared(horizon=8192), rel=1e-7)
    assert exact.kappa < tail.kappa < 2.0
    with pytest.raises(UnsupportedMechanism, match="non-increasing"):  # the coefficients jump at the switch
        tail.sensitivity_squared(2, 10)
    with pytest.raises(UnsupportedMechanism):
        AsymptoticTail(LogPerturbed(alpha, 1.2, memory="constant"), 8192)
