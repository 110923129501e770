"""Coefficients of the log-perturbed family against published decimals, ball arithmetic and integrals."""

from __future__ import annotations

import math

import flint
import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evertally.counters.series import log_perturbed_series, reciprocal_series
from evertally.counters.series_fft import BACKENDS, convolution_error_bound, real_transform

# (alpha, loglog_ratio): first coefficients of R and of L, made with 256-bit arithmetic.
GOLDEN = {
    (0.01, 0.0): (
        "1 0.245 0.1737625 0.1405864375 0.1205631198177083 0.1068635224023177 0.09676153621352484 "
        "0.08893048967935459",
        "1 0.755 0.6412625 0.5711135625 0.5219439219010417 0.4848441304883073 0.4554719828918485 "
        "0.4314151474923891",
    ),
    (0.01, 1.0): (
        "1 0.4575 0.3316322916666667 0.2707875240162037 0.2335736277287688 0.2079313345037660 "
        "0.1889349059794610 0.1741583460860434",
        "1 0.5425 0.4201739583333333 0.3570723718171296 0.3168202776853660 0.2882151006225843 "
        "0.2665038025981190 0.2492765437394841",
    ),
    (0.01, 1.2): (
        "1 0.5 0.368625 0.3032444444444444 0.2627132890625 0.2345622223999669 0.2135958831688293 "
        "0.1972239326328305",
        "1 0.5 0.381375 0.3217555555555556 0.2842023515625 0.2577229656208664 0.2377345656684585 "
        "0.2219393026952394",
    ),
    (1.0, 1.2): (
        "1 0.5 0.35625 0.2852777777777778 0.24201171875 0.2124563595403439 0.1907727763683357 "
        "0.1740658362297224",
        "1 0.5 0.39375 0.3397222222222222 0.30521484375 0.2805761925429894 0.2617708446289637 "
        "0.2467646218418164",
    ),
}

# sum_{k<t} l_k^2 at alpha = 0.01 for loglog_ratio 0, 1, 1.2.
POWERS = {
    1: (1.0, 1.0, 1.0),
    2: (1.570025, 1.29430625, 1.25),
    10: (3.53273479677265, 2.02013029149569, 1.83493796636),
    1000: (13.8752430472084, 4.62715416742685, 3.80887645831009),
    2**16: (29.3736718673648, 7.74116149902512, 6.06702026992323),
    2**20: (42.9069475846510, 10.1844996870740, 7.80165352577438),
}


def exponents(alpha: float, ratio: float) -> tuple[float, float]:
    """(gamma, delta) of R."""
    return -(0.5 + alpha), ratio * (0.5 + alpha)


def ball_series(gamma: float, delta: float, n: int) -> list[float]:
    """The series by logarithm and exponential of 256-bit balls: no Newton iteration of ours."""
    flint.ctx.prec, saved, flint.ctx.cap = 256, (flint.ctx.prec, flint.ctx.cap), n + 2
    try:
        a = flint.arb_series([flint.arb(1) / (k + 1) for k in range(n + 2)], prec=n + 2)
        log_a = a.log()
        b = flint.arb_series([2 * log_a[k + 1] for k in range(n + 1)], prec=n + 1)
        half_log = flint.arb_series([flint.arb(0)] + [flint.arb(1) / (2 * k) for k in range(1, n)], prec=n)
        f = (half_log + flint.arb(gamma) * log_a + flint.arb(delta) * b.log()).exp()
        return [float(f[k].mid()) for k in range(n)]
    finally:
        flint.ctx.prec, flint.ctx.cap = saved


@pytest.mark.parametrize("key", GOLDEN)
def test_golden_coefficients(key: tuple[float, float]) -> None:
    gamma, delta = exponents(*key)
    strategy, noise = ([float(x) for x in text.split()] for text in GOLDEN[key])
    np.testing.assert_allclose(log_perturbed_series(gamma, delta, 8), strategy, rtol=2e-15)
    np.testing.assert_allclose(log_perturbed_series(-gamma, -delta, 8), noise, rtol=2e-15)


@pytest.mark.slow
@pytest.mark.parametrize(("column", "ratio"), [(0, 0.0), (1, 1.0), (2, 1.2)])
def test_golden_powers(column: int, ratio: float) -> None:
    gamma, delta = exponents(0.01, ratio)
    noise = log_perturbed_series(-gamma, -delta, 2**20)
    for t, row in POWERS.items():
        assert math.fsum(noise[:t] ** 2) == pytest.approx(row[column], rel=5e-12)


@pytest.mark.slow
@pytest.mark.parametrize("key", [(0.01, 0.0), (0.01, 1.0), (0.01, 1.2), (1.0, 1.2), (0.3, 0.7)])
@pytest.mark.parametrize("backend", BACKENDS)
def test_relative_error_against_balls(key: tuple[float, float], backend: str) -> None:
    gamma, delta = exponents(*key)
    for sign in (1.0, -1.0):
        truth = np.array(ball_series(sign * gamma, sign * delta, 4096))
        found = log_perturbed_series(sign * gamma, sign * delta, 4096, backend=backend)
        assert np.max(np.abs(found / truth - 1.0)) < 3e-15


@pytest.mark.parametrize("key", [(0.001, 0.0), (1.0, 0.0), (1.0, 2.0), (0.001, 2.0)])
def test_corners_of_the_range_against_balls(key: tuple[float, float]) -> None:
    gamma, delta = exponents(*key)
    for sign in (1.0, -1.0):
        truth = np.array(ball_series(sign * gamma, sign * delta, 1024))
        found = log_perturbed_series(sign * gamma, sign * delta, 1024)
        assert np.linalg.norm(found - truth) < 5e-15 * np.linalg.norm(truth)
        assert np.max(np.abs(found - truth)) < 5e-14


def test_corner_coefficients_that_vanish_are_tiny() -> None:
    # At alpha = 1, loglog_ratio = 2: l_1 = 1/2 + 3/4 - 5/12 * 3 = 0.
    assert abs(log_perturbed_series(1.5, -3.0, 2)[1]) < 1e-16


@pytest.mark.parametrize(
    ("n", "bound"), [(2**12, 2.4e-15), pytest.param(2**20, 1.3e-14, marks=pytest.mark.slow)]
)
def test_product_is_all_ones(n: int, bound: float) -> None:
    for key in ((0.01, 0.0), (0.01, 1.2), (1.0, 1.2)):
        gamma, delta = exponents(*key)
        transform = real_transform(2 * n)
        strategy = transform.forward(log_perturbed_series(gamma, delta, n))
        noise = log_perturbed_series(-gamma, -delta, n)
        assert np.max(np.abs(transform.filtered(noise, strategy)[:n] - 1.0)) < bound


def test_double_agrees_with_extended_precision() -> None:
    for key in ((0.01, 0.0), (1.0, 1.2)):
        gamma, delta = exponents(*key)
        double = log_perturbed_series(-gamma, -delta, 2**14)
        extended = log_perturbed_series(-gamma, -delta, 2**14, np.longdouble)
        assert float(np.max(np.abs(double / extended - 1))) < 2e-15


@pytest.mark.slow
def test_long_series_agree_with_extended_precision() -> None:
    # The error the engine's bound assumes for double precision is 2^-46 = 1.4e-14.
    gamma, delta = exponents(0.01, 0.0)
    double = log_perturbed_series(-gamma, -delta, 2**18)
    extended = log_perturbed_series(-gamma, -delta, 2**18, np.longdouble)
    assert float(np.linalg.norm((double - extended).astype(float)) / np.linalg.norm(double)) < 1.4e-15


@pytest.mark.slow
@pytest.mark.parametrize("key", [(0.01, 0.0), (0.01, 1.2), (1.0, 1.2)])
def test_far_coefficients_equal_the_cut_integral(key: tuple[float, float]) -> None:
    """l_n = int_0^inf e^{-ns} Im f(e^s + i0)/pi ds by tanh-sinh in mpmath, n up to 2^18."""
    gamma, delta = exponents(*key)
    noise = log_perturbed_series(-gamma, -delta, 2**18)
    context = mpmath.MPContext()
    context.dps = 20

    def density(s: mpmath.mpf) -> mpmath.mpf:
        v = -context.log(context.expm1(s))
        log_zeta = context.mpc(v, context.pi)
        log_a = context.log(log_zeta) - s
        log_f = log_zeta / 2 - gamma * log_a - delta * (context.log(2 * log_a) - s)
        return context.im(context.exp(log_f)) / context.pi

    for n in (1, 2**18 - 1):
        scaled = context.quad(
            lambda u, n=n: context.exp(u - context.exp(u)) / n * density(context.exp(u) / n),
            [-110, -40, -20, -8, -3, 0, 2, 5],
        )
        assert noise[n] == pytest.approx(float(scaled), rel=1e-13)


@settings(max_examples=30, deadline=None)
@given(
    alpha=st.floats(0.001, 1.0),
    ratio=st.floats(0.0, 2.0),
    n=st.integers(1, 700),
    more=st.integers(0, 1500),
)
def test_a_prefix_is_a_prefix(alpha: float, ratio: float, n: int, more: int) -> None:
    gamma, delta = exponents(alpha, ratio)
    long = log_perturbed_series(gamma, delta, n + more)
    assert np.array_equal(log_perturbed_series(gamma, delta, n), long[:n])


@settings(max_examples=20, deadline=None)
@given(st.lists(st.floats(-0.4, 0.4), min_size=1, max_size=200))
def test_reciprocal_times_series_is_one(tail: list[float]) -> None:
    scale = 2.0 ** -np.arange(len(tail) + 1)
    series = np.array([1.0, *tail]) * scale
    product = np.convolve(series, reciprocal_series(series))[: len(series)]
    np.testing.assert_allclose(product, [1.0] + [0.0] * len(tail), atol=1e-12)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("n", [3, 128, 384, 3 * 2**12])
def test_convolution_error_is_within_its_bound(backend: str, n: int) -> None:
    rng = np.random.default_rng(5)
    x, y = rng.standard_normal((2, n)) * np.exp(3 * rng.standard_normal((2, n)))
    transform = real_transform(n, backend=backend)
    found = transform.filtered(x, transform.forward(y)).copy()
    exact = real_transform(n, np.longdouble)
    truth = exact.filtered(x.astype(np.longdouble), exact.forward(y.astype(np.longdouble)))
    allowed = convolution_error_bound(n) * np.linalg.norm(x) * np.linalg.norm(y)
    assert float(np.max(np.abs(found - truth))) < allowed
