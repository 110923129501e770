"""The yardstick against exact sums and 40-digit arithmetic."""

from fractions import Fraction

import mpmath
import numpy as np
import pytest

from evertally.counters.power_series import extended_power_coefficients, power_coefficients, power_noise_power
from evertally.counters.yardstick import yardstick, yardstick_variance
from evertally.errors import InvalidParameter

# arXiv 2506.15018 compares with the square root at T = t; values recomputed at 30 digits.
GOLDEN = {
    2**12: 3.7138836274412848587,
    2**16: 4.5964442413974174362,
    2**20: 5.4789877803709629835,
    2**24: 6.3615302521293657017,
}


def exact(t: int) -> float:
    with mpmath.workdps(40):
        total, c = mpmath.mpf(0), mpmath.mpf(1)
        for k in range(t):
            total += c * c
            c = c * (2 * k + 1) / (2 * k + 2)
        return float(total)


@pytest.mark.parametrize("t", [1, 2, 3, 63, 64, 65, 66, 100, 1000, 4096])
def test_equals_the_exact_sum(t: int) -> None:
    assert yardstick(t) == pytest.approx(exact(t), rel=1e-14)


@pytest.mark.parametrize(("t", "value"), GOLDEN.items())
def test_golden(t: int, value: float) -> None:
    assert yardstick(t) == pytest.approx(value, rel=2e-14)
    assert yardstick_variance(t) == pytest.approx(value**2, rel=4e-14)


def test_small_values_are_the_rational_sums() -> None:
    total, c = Fraction(0), Fraction(1)
    for k in range(64):
        total += c * c
        c *= Fraction(2 * k + 1, 2 * k + 2)
        assert yardstick(k + 1) == pytest.approx(float(total), rel=1e-15)


@pytest.mark.slow
@pytest.mark.parametrize("power", [0.3, 0.5, 0.7, 1.0])
def test_power_coefficients_against_the_gamma_function(power: float) -> None:
    c = extended_power_coefficients(power, 10**5)
    for k in (0, 1, 17, 255, 256, 257, 400, 2999, 99999):
        with mpmath.workdps(40):
            want = mpmath.gammaprod([mpmath.mpf(power) + k], [mpmath.mpf(power), k + 1])
            error = mpmath.mpf(np.format_float_scientific(c[k], precision=25)) / want - 1
        # 2^-61, the bound that the FFT engine relies on; 2^-50 in double precision.
        assert abs(float(error)) < 2.0**-61
        assert power_coefficients(power, 10**5)[k] == pytest.approx(float(want), rel=2.0**-52)


@pytest.mark.parametrize("power", [0.3, 0.5, 0.55, 0.75, 1.0])
@pytest.mark.parametrize("t", [1, 2, 255, 256, 257, 5000, 2**16])
def test_power_sums_against_the_coefficients(power: float, t: int) -> None:
    want = float((extended_power_coefficients(power, t)[::-1] ** 2).sum())
    assert power_noise_power(power, t) == pytest.approx(want, rel=1e-14)


def test_power_sums_of_the_square_root_are_the_yardstick() -> None:
    assert power_noise_power(0.5, 2**40) == pytest.approx(yardstick(2**40), rel=1e-14)


def test_the_square_of_the_square_root_is_the_counting_matrix() -> None:
    c = power_coefficients(0.5, 512)
    np.testing.assert_allclose(np.convolve(c, c)[:512], 1.0, rtol=1e-13)


@pytest.mark.parametrize("t", [0, -1, 1.0, True, float("nan")])
def test_bad_ticks_are_refused(t: object) -> None:
    with pytest.raises(InvalidParameter, match="t:"):
        yardstick(t)  # type: ignore[arg-type]  # the wrong type is the point
