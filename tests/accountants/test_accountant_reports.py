"""Failures that other accountants were reported for; none may happen here."""

from __future__ import annotations

import math
from typing import get_args

import pytest

from evertally.accountants import (
    BLT,
    BallsInBins,
    BandedInverseSquareRoot,
    EachEpochOnce,
    Identity,
    account,
    calibrate_noise_multiplier,
    gaussian_epsilon,
    renyi_divergence,
)
from evertally.accountants.bound import Source
from evertally.errors import InvalidParameter


@pytest.mark.parametrize("sigma", [0.05, 0.3, 1.0, 7.0, 100.0])
def test_no_order_near_one_undercuts_the_gaussian(sigma: float) -> None:
    """tensorflow/privacy#166: order 1 + 1e-8 gave epsilon 0."""
    one_bin = BallsInBins(1, 1)
    for order in (1.0 + 1e-8, 1.0 + 1e-3, 1.5, 2.0, 2.25, 40.0):
        exact = order / (2.0 * sigma**2)
        assert renyi_divergence(Identity(), one_bin, sigma, order) >= exact * (1.0 - 1e-12)
    for scheme in (one_bin, EachEpochOnce(1, 1)):
        for delta in (1e-2, 1e-6, 1e-12):
            found = account(Identity(), scheme, sigma).epsilon(delta=delta)
            assert found.value >= gaussian_epsilon(delta, 1.0 / sigma) * (1.0 - 1e-9)
    alone = account(Identity(), one_bin, sigma, bounds={"renyi"}).epsilon(delta=1e-6)
    assert alone.value >= gaussian_epsilon(1e-6, 1.0 / sigma) * (1.0 - 1e-9)


@pytest.mark.parametrize("order", [1, 1.0, 0.5, 0, -2.0, math.nan, math.inf])
def test_orders_up_to_one_are_refused(order: float) -> None:
    """opacus#49: order 1 divided by zero."""
    with pytest.raises(InvalidParameter, match="order"):
        renyi_divergence(Identity(), BallsInBins(10, 1), 1.0, order)


def test_no_limit_theorem_is_offered() -> None:
    """opacus#643 and PR#400: the central limit under-estimates; it is not among the bounds."""
    assert not {"clt", "gdp", "monte-carlo"} & set(get_args(Source))
    for name in ("clt", "gdp"):
        with pytest.raises(InvalidParameter, match="bounds"):
            account(Identity(), BallsInBins(10, 1), 1.0, bounds={name})  # type: ignore[arg-type]  # the point


@pytest.mark.slow
@pytest.mark.parametrize("sigma", [0.05, 1.0, 1e3])
@pytest.mark.parametrize("batches", [1, 997, 100_000])
def test_ordinary_parameters_never_abort(batches: int, sigma: float) -> None:
    """prv_accountant#36, #42: where a grid will not do, a coarser one widens the bound."""
    found = account(Identity(), BallsInBins(batches, 100), sigma, time_budget_s=0.003)
    for delta in (1e-2, 1e-12):
        epsilon = found.epsilon(delta=delta)
        assert 0.0 <= epsilon.lower <= epsilon.value < math.inf


SETTINGS = [
    (BLT((0.3, 0.15), (0.95, 0.5)), BallsInBins(24, 3), 0.5, 1e-5),
    (BLT((0.3, 0.15), (0.95, 0.5)), BallsInBins(15, 2), 6.0, 1e-8),
    (BLT((0.9,), (0.6,), True), BallsInBins(20, 1), 2.0, 1e-3),
    (BandedInverseSquareRoot(3), BallsInBins(20, 3), 1.0, 1e-6),
    (BandedInverseSquareRoot(4), BallsInBins(16, 2), 8.0, 1e-4),
    (BandedInverseSquareRoot(2, normalize_columns=True), BallsInBins(30, 2), 0.2, 1e-7),
]


@pytest.mark.slow
@pytest.mark.parametrize(("strategy", "scheme", "epsilon", "delta"), SETTINGS)
def test_the_answer_is_on_the_admitted_side_and_settled(
    strategy: BLT | BandedInverseSquareRoot, scheme: BallsInBins, epsilon: float, delta: float
) -> None:
    """opacus#346: the search ended on the wrong side. Also where several lines or colours compete."""
    found = calibrate_noise_multiplier(strategy, scheme, epsilon=epsilon, delta=delta)
    assert account(strategy, scheme, found.value).delta(epsilon=epsilon).value <= delta
    assert account(strategy, scheme, found.value * (1 - 1e-4)).delta(epsilon=epsilon).value > delta
    names: tuple[Source, ...] = ("gaussian", "colour", "renyi")
    alone = {
        name: calibrate_noise_multiplier(strategy, scheme, epsilon=epsilon, delta=delta, bounds={name}).value
        for name in names
    }
    assert found.value == pytest.approx(min(alone.values()), rel=3e-6)
    assert found.value <= alone[found.source] * (1 + 3e-6)
