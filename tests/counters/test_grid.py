"""The grid's price: golden figures of the snapping slack, directed rounding, refusals."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import pytest

from evertally.accountants.gaussian import gaussian_epsilon
from evertally.counters import Grid, Rational
from evertally.errors import InvalidParameter, UnsupportedMechanism

W32 = Rational.preset("W32")


@dataclass(frozen=True)
class Described:
    """A factorization's accounting alone: what the grid asks for."""

    kappa: float
    eta: float
    state_rounding: float
    horizon: int | None = None


def test_mu_is_never_above_the_target_and_close_to_it() -> None:
    for mu in (0.01, 0.2367, 1.0, 3.7, 100.0):
        grid = Grid.for_mu(W32, mu, 2.0863532690280104)
        exact = (Fraction(grid.sensitivity) * grid.q + Fraction(grid.slack)) / 2**30
        assert exact <= Fraction(grid.mu)
        assert grid.mu <= mu
        assert grid.mu >= mu - 2.1 * grid.sensitivity / 2**30
        assert grid.sigma == 2**30 / grid.q


def test_for_sigma_never_gives_less_noise() -> None:
    for sigma in (0.3, 1.0, 17.0, 2.0**20):
        grid = Grid.for_sigma(W32, sigma, 1.0)
        assert grid.sigma >= sigma
        assert grid.mu >= 1.0 / grid.sigma


@pytest.mark.parametrize(("power", "extra"), [(20, 1.81e-5), (24, 7.23e-5), (30, 5.79e-4)])
def test_slack_costs_what_was_computed_for_it(power: int, extra: float) -> None:
    """At mu = 1, delta = 1e-6, eta = g/2, kappa = 1.7049 (extended-precision prototype)."""
    mechanism = Described(kappa=1.7049, eta=0.5, state_rounding=0.0)
    # the price of noise sigma = 1 at sensitivity 1, next to the ideal mu = 1
    grid = Grid.for_sigma(mechanism, 1.0, 1.0, slack_horizon=2**power)  # type: ignore[arg-type]  # the accounting alone
    assert grid.q == 2**30
    cost = gaussian_epsilon(1e-6, grid.mu) - gaussian_epsilon(1e-6, 1.0)
    assert cost == pytest.approx(extra, rel=0.01)


def test_slack_counts_every_counter_that_one_unit_can_touch() -> None:
    one, many = Grid.for_mu(W32, 1.0, 1.0), Grid.for_mu(W32, 1.0, 1.0, touched_counters=16)
    assert many.slack == pytest.approx(4 * one.slack, rel=1e-12)
    assert many.q < one.q


def test_w32_slack_by_hand() -> None:
    grid = Grid.for_mu(W32, 1.0, 1.0, slack_horizon=2**30)
    assert grid.slack == pytest.approx(2**15 * (W32.kappa + 2 * 11 / 256), rel=1e-12)


def test_a_mechanisms_own_horizon_shortens_the_slack() -> None:
    mechanism = Described(kappa=1.0, eta=0.0, state_rounding=0.0, horizon=100)
    assert Grid.for_mu(mechanism, 1.0, 1.0).slack_horizon == 100  # type: ignore[arg-type]  # the accounting alone


def test_computational_delta() -> None:
    grid = Grid.for_mu(W32, 1.0, 1.0, slack_horizon=2**30)
    assert grid.computational_delta(16) == 2.0**34 * 2.0**-92 + 2.0**68 * 2.0**-129


@pytest.mark.parametrize("mu", [0.0, -0.0, -1.0, 5e-324, math.inf, math.nan, 2.0**21, True, "1"])
def test_unusable_mu_is_refused_at_once(mu: float) -> None:
    with pytest.raises(InvalidParameter, match="mu"):
        Grid.for_mu(W32, mu, 1.0)


def test_noise_beyond_the_grid_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedMechanism, match="mu"):
        Grid.for_mu(W32, 1e-6, 1.0)
    with pytest.raises(UnsupportedMechanism, match="sigma"):
        Grid.for_sigma(W32, 2.0**31, 1.0)
    for horizon in (0, -1, 2**51):
        with pytest.raises(InvalidParameter, match="slack_horizon"):
            Grid.for_mu(W32, 1.0, 1.0, slack_horizon=horizon)
