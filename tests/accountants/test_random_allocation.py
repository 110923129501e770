"""Random allocation with C = I: enclosed from both sides, at every scale."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evertally.accountants.gaussian import gaussian_delta
from evertally.accountants.lognormal_grid import MASS_MARGIN, Law
from evertally.accountants.lognormal_sum import sum_above
from evertally.accountants.lognormal_sum_below import sum_below
from evertally.accountants.random_allocation import RandomAllocationPLD, delta
from evertally.errors import InvalidParameter

# (b, sigma, epsilon, remove, add, relative uncertainty of the two): FFT on a linear grid of 2^20..2^22 points
# against Monte Carlo, quadrature for b = 2, the analytic Gaussian for b = 1
TRUE = [
    (10, 1.0, 1.0, 0.002782869, 0.00048619, 1e-4, 1e-4),
    (100, 0.6, 1.0, 0.0048682, 4.46e-6, 1e-4, 2e-3),
    (1000, 0.6, 0.5, 4.18147e-4, 4.84e-10, 1e-3, 0.02),
    (50, 0.9, 1.0, 7.0234e-5, 3.48e-9, 1e-3, 0.01),
    (2, 1.5, 1.0, 0.00720955505, 0.0056793729, 1e-8, 1e-8),
    (1, 2.0, 1.0, 0.00682959498, 0.00682959498, 1e-8, 1e-8),
]


@pytest.mark.parametrize("case", TRUE, ids=str)
def test_true_values_are_enclosed(case: tuple[int, float, float, float, float, float, float]) -> None:
    b, sigma, epsilon, remove, add, remove_error, add_error = case
    for direction, value, error in (("remove", remove, remove_error), ("add", add, add_error)):
        low = delta(b, sigma, epsilon, direction, upper=False)
        high = delta(b, sigma, epsilon, direction)
        assert low <= value * (1 + error)
        assert high >= value * (1 - error)
        if direction == "remove":
            assert high / low < 1.01


# noise multipliers at delta 1e-5, N = b = 1000, one epoch; the interval of epsilon from PLD_accounting at it
SIGMAS = [(0.5, 0.7192), (2.0, 0.5569), (8.0, 0.3636)]


@pytest.mark.parametrize(("epsilon", "sigma"), SIGMAS)
def test_noise_for_a_thousand_rows_is_within_a_percent(epsilon: float, sigma: float) -> None:
    assert (
        delta(1000, sigma * 1.01, epsilon, "remove")
        < 1e-5
        < delta(1000, sigma * 0.99, epsilon, "remove", upper=False)
    )


def test_epochs_are_a_scale_of_the_noise() -> None:
    assert delta(100, 3.0, 1.0, "remove", epochs=9) == pytest.approx(delta(100, 1.0, 1.0, "remove"), rel=1e-9)


@pytest.mark.slow
def test_against_pld_accounting() -> None:
    """An independent geometric-grid implementation gives an interval; ours must meet it."""
    from PLD_accounting import gaussian_allocation_epsilon_range

    theirs = gaussian_allocation_epsilon_range(delta=1e-5, sigma=0.9, num_steps=50)
    low = RandomAllocationPLD(50, 0.9, "remove", upper=False).epsilon(1e-5)
    high = RandomAllocationPLD(50, 0.9, "remove").epsilon(1e-5)
    assert low <= max(theirs) * (1 + 1e-9)
    assert high >= min(theirs) * (1 - 1e-9)


def test_precision_at_small_delta() -> None:
    for direction in ("remove", "add"):
        high = RandomAllocationPLD(100, 2.0, direction, cells=2048)
        low = RandomAllocationPLD(100, 2.0, direction, upper=False, cells=2048)
        assert high.epsilon(1e-12) / low.epsilon(1e-12) < 1.005


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    log_b=st.floats(0, 5),
    log_sigma=st.floats(math.log10(0.05), 2),
    epsilon=st.floats(0, 30),
    direction=st.sampled_from(["remove", "add"]),
    epochs=st.sampled_from([1, 3, 100]),
)
def test_order_and_range_on_a_grid(
    log_b: float, log_sigma: float, epsilon: float, direction: str, epochs: int
) -> None:
    b, sigma = int(10**log_b), 10**log_sigma
    high = RandomAllocationPLD(b, sigma, direction, epochs=epochs, cells=256)
    low = RandomAllocationPLD(b, sigma, direction, epochs=epochs, upper=False, cells=256)
    values = [high.delta(e) for e in (epsilon, epsilon + 0.01, epsilon + 1.0)]
    assert 0.0 <= low.delta(epsilon) <= values[0] <= 1.0
    assert values[0] >= values[1] >= values[2] > 0.0
    assert values[0] <= gaussian_delta(epsilon, math.sqrt(epochs) / sigma) * (1 + 1e-9)


@pytest.mark.slow
def test_extremes_neither_fail_nor_stop() -> None:
    for b in (1, 2, 1023, 1025, 99_991, 100_000):
        for sigma in (1e-3, 0.05, 1.0, 100.0, 1e6, 1e12):
            for direction in ("remove", "add"):
                high = RandomAllocationPLD(b, sigma, direction, cells=128)
                low = RandomAllocationPLD(b, sigma, direction, upper=False, cells=128)
                assert 0.0 <= low.epsilon(1e-6) <= high.epsilon(1e-6)
                assert 0.0 <= low.delta(1.0) <= high.delta(1.0) <= 1.0


def _moments(law: Law) -> tuple[float, float]:
    mass = float(law.masses.sum()) + law.zero
    return mass, float(np.sum(law.masses * np.exp(law.log_values))) + law.excess


@pytest.mark.parametrize("copies", [1, 2, 3, 7, 100, 1000, 1025])
@pytest.mark.parametrize("variance", [1e-4, 0.5, 8.0, 400.0])
def test_masses_and_means_are_kept(copies: int, variance: float) -> None:
    for law in (sum_above(variance, copies, 256), sum_below(variance, copies, 256)):
        mass, mean = _moments(law)
        assert mass == pytest.approx(1.0, rel=copies * MASS_MARGIN)
        assert mean == pytest.approx(1.0, rel=copies * MASS_MARGIN + 1e-11)


def test_finer_grids_close_in() -> None:
    highs = [RandomAllocationPLD(64, 0.8, "remove", cells=c).delta(1.0) for c in (64, 128, 256, 512, 1024)]
    lows = [RandomAllocationPLD(64, 0.8, "remove", upper=False, cells=c).delta(1.0) for c in (64, 256, 1024)]
    assert highs == sorted(highs, reverse=True)
    assert lows == sorted(lows)
    assert highs[-1] / lows[-1] < 1.005


def test_what_lies_beyond_the_grid_is_counted() -> None:
    """Beyond 8.5 deviations of the loss the whole of delta is the mean that was cut off."""
    law = sum_above(1.0, 1, 64)
    assert law.log_values[-1] < 9.5
    assert law.excess >= gaussian_delta(9.5, 1.0)
    assert RandomAllocationPLD(1, 1.0, "remove", cells=64).delta(9.5) >= gaussian_delta(9.5, 1.0) * (1 - 1e-9)


def test_more_bins_lose_less() -> None:
    values = [delta(b, 0.7, 0.5, "remove") for b in (1, 2, 5, 20, 100, 1000)]
    assert values == sorted(values, reverse=True)


def test_gaussian_part_composes_exactly() -> None:
    """One bin with a Gaussian part is one Gaussian of the joint mu."""
    for direction in ("remove", "add"):
        value = RandomAllocationPLD(1, 2.0, direction, gaussian_mu=0.5).delta(1.0)
        assert value == pytest.approx(gaussian_delta(1.0, math.hypot(0.5, 0.5)), rel=1e-3)
        tiny = RandomAllocationPLD(20, 2.0, direction, gaussian_mu=1e-9).delta(0.3)
        assert tiny == pytest.approx(RandomAllocationPLD(20, 2.0, direction).delta(0.3), rel=1e-4)


@pytest.mark.parametrize("bad", [math.nan, math.inf, 0.0, -1.0, 5e-324])
def test_bad_noise_is_refused(bad: float) -> None:
    with pytest.raises(InvalidParameter):
        RandomAllocationPLD(10, bad, "remove")


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(InvalidParameter):
        RandomAllocationPLD(0, 1.0, "remove")
    with pytest.raises(InvalidParameter):
        RandomAllocationPLD(10, 1.0, "both")
    with pytest.raises(InvalidParameter):
        RandomAllocationPLD(10, 1.0, "remove").delta(-1.0)
    with pytest.raises(InvalidParameter):
        RandomAllocationPLD(10, 1.0, "remove").epsilon(0.0)
