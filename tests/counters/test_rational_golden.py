"""Golden values of the rational presets, from an independent prototype in extended precision."""

from __future__ import annotations

import math
import threading
import time

import mpmath
import numpy as np
import pytest

from evertally.counters import Rational
from evertally.counters.rational_roots import decay_norm_squared
from evertally.counters.yardstick import yardstick_variance
from evertally.errors import InvalidParameter

NAMES = ("W32", "H24", "H40", "H48")

# ||R||^2: published decimal weights for H24, H40, H48 (60-bit weights move them below 1e-12 relative);
# the 32-bit dyadic weights of W32.
SENSITIVITY = {"W32": 4.352869963, "H24": 1.833312214044, "H40": 2.057621337635, "H48": 2.139904478980}


@pytest.mark.parametrize("name", NAMES)
def test_sensitivity(name: str) -> None:
    assert Rational.preset(name).sensitivity_squared() == pytest.approx(SENSITIVITY[name], rel=1e-10)


def test_kappa() -> None:
    assert Rational.preset("W32").kappa == pytest.approx(1.4060725, rel=1e-7)
    assert Rational.preset("H40").kappa == pytest.approx(1.6893, rel=1e-4)


def test_w32_variance_at_unit_privacy() -> None:
    m = Rational.preset("W32")
    expected = {8: 12.117, 12: 20.842, 16: 31.821, 20: 45.284, 24: 61.175, 32: 99.841}
    for power, variance in expected.items():
        assert m.sensitivity_squared() * m.noise_power(2**power) == pytest.approx(variance, abs=6e-4)


def test_h40_variance_at_unit_privacy() -> None:
    m = Rational.preset("H40")
    expected = {
        1: 2.05762134,
        2: 3.17280665,
        10: 6.5446133,
        100: 13.0711568,
        1000: 21.6497983,
        2**12: 27.9437157,
        2**16: 42.8340994,
        2**20: 60.6385445,
        2**24: 81.7615092,
        2**32: 133.039076,
        2**40: 200.44416,
    }
    for t, variance in expected.items():
        assert m.sensitivity_squared() * m.noise_power(t) == pytest.approx(variance, rel=5e-9)


def test_h40_coefficients() -> None:
    m = Rational.preset("H40")
    assert m.noise_coefficients(4) == pytest.approx(
        [1, 0.736191490028, 0.608345235242, 0.529390075315], abs=5e-12
    )
    assert m.strategy_coefficients(4) == pytest.approx(
        [1, 0.263808509970, 0.197441184720, 0.164768754655], abs=5e-12
    )


@pytest.mark.parametrize(
    ("k", "b", "expected"), [(2, 1, 6.681846), (4, 1, 22.982997), (4, 100, 17.337202), (10, 100, 84.719068)]
)
def test_h40_participations(k: int, b: int, expected: float) -> None:
    assert Rational.preset("H40").sensitivity_squared(k, b) == pytest.approx(expected, abs=6e-7)


@pytest.mark.parametrize("name", NAMES)
def test_closed_forms_equal_sums(name: str) -> None:
    m = Rational.preset(name)
    left, right = m.noise_coefficients(5000), m.strategy_coefficients(5000)
    for t in (1, 2, 3, 100, 5000):
        assert m.noise_power(t) == pytest.approx(float(np.sum(left[:t] ** 2)), rel=1e-12)
        assert m.sensitivity_squared(horizon=t) == pytest.approx(float(np.sum(right[:t] ** 2)), rel=1e-12)
    for t, w in ((5000, 24), (5000, 5000), (5000, 1), (5, 4), (1, 1)):
        change = left[:t].copy()
        change[w:] -= left[: t - w]
        assert m.window_power(t, w) == pytest.approx(float(np.sum(change**2)), rel=1e-10)


@pytest.mark.parametrize("name", NAMES)
def test_strategy_is_completely_monotone(name: str) -> None:
    m = Rational.preset(name)
    assert all(c > 0 for c in m.decay.amplitudes)
    assert all(s > 0 for s in m.decay.roots)
    assert list(m.decay.roots) == sorted(m.decay.roots)


@pytest.mark.parametrize(("k", "b"), [(1, 1), (2, 1), (3, 7), (5, 100)])
def test_no_admissible_pattern_exceeds_the_sensitivity(k: int, b: int) -> None:
    m = Rational.from_weights((1, 4), (0.3, 0.2, 0.1, 0.4))  # decays within a few hundred ticks
    n = 4000
    strategy = m.strategy_coefficients(n)
    bound = m.sensitivity_squared(k, b)
    rng = np.random.default_rng(7)
    tight = np.zeros(n)
    tight[: k * b : b] = 1
    patterns = [tight]
    for _ in range(20):
        pattern, at = np.zeros(n), int(rng.integers(0, 50))
        for _ in range(k):
            pattern[at] = rng.choice([-1.0, 1.0, 0.5])
            at += b + int(rng.integers(0, 20))
        patterns.append(pattern)
    norms = [float(np.sum(np.convolve(strategy, pattern)[:n] ** 2)) for pattern in patterns]
    assert max(norms) <= bound * (1 + 1e-12)
    assert norms[0] == pytest.approx(bound, rel=1e-12)


def test_ratio_to_the_mechanism_that_knows_its_end() -> None:
    """W32 from 2^8 to 2^32 stays within 1.512 V_t^2, H40 to 2^39 within 2.06."""
    for name, powers, bar in (("W32", range(8, 33), 1.512), ("H40", range(40), 2.06)):
        m = Rational.preset(name)
        for power in powers:
            t = 2**power
            assert m.sensitivity_squared() * m.noise_power(t) / yardstick_variance(t) <= bar, (name, power)


def test_huge_participations_stay_finite_and_rounded_up() -> None:
    m = Rational.preset("W32")
    many = m.sensitivity_squared(2**40, 2**20)
    assert math.isfinite(many)
    assert many > 2**40 * m.sensitivity_squared()


@pytest.mark.parametrize(
    "arguments", [(0, 1), (1, 0), (-1, 1), (2**63, 1), (1.5, 1), (True, 1), (1, 2**63), (float("nan"), 1)]
)
def test_bad_participations_are_refused(arguments: tuple[int, int]) -> None:
    with pytest.raises(InvalidParameter):
        Rational.preset("W32").sensitivity_squared(*arguments)


def test_unusable_weights_are_refused() -> None:
    for exponents, weights in (
        ((1,), (0.5, 0.0, 0.5)),  # no weight at theta = 1: infinite sensitivity
        ((1,), (0.5, 0.7, 0.5)),
        ((2, 1), (0.2, 0.2, 0.2, 0.4)),
        ((1,), (float("nan"), 0.5, 0.5)),
        ((0,), (0.2, 0.3, 0.5)),
        ((1,), (0.5, 0.5)),
    ):
        with pytest.raises(InvalidParameter):
            Rational.from_weights(exponents, weights)
    with pytest.raises(InvalidParameter):
        Rational.preset("W33")


def test_a_label_reads_back() -> None:
    m = Rational.from_weights((1, 4), (0.3, 0.2, 0.1, 0.4))
    assert Rational.from_label(m.label) == m
    assert Rational.from_label("H40") == Rational.preset("H40")


@pytest.mark.slow
def test_another_threads_precision_does_not_reach_the_sensitivity() -> None:
    """mpmath's own precision belongs to the process: two charges at once used to share it."""
    mechanism = Rational.preset("H48")
    expected = mechanism.sensitivity_squared(2, 1)  # at 53 bits it comes out 1.6e-5 away
    decay_norm_squared.cache_clear()
    done = threading.Event()
    before = mpmath.mp.prec

    def work_at_low_precision() -> None:
        while not done.is_set():
            mpmath.mp.prec = 53
            time.sleep(1e-4)

    other = threading.Thread(target=work_at_low_precision)
    other.start()
    try:
        assert mechanism.sensitivity_squared(2, 1) == expected
    finally:
        done.set()
        other.join()
        mpmath.mp.prec = before
