"""Privacy loss distributions: discretised outward, composed with a certified error."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy.special import ndtr

from evertally.accountants.gaussian import gaussian_delta
from evertally.accountants.pld import PLD, compose, mixture_pld
from evertally.errors import InvalidParameter


def poisson(q: float, sigma: float, step: float, direction: str) -> PLD:
    return mixture_pld(np.array([1.0 - q, q]), np.array([0.0, 1.0]), sigma, step, direction)


def exact_poisson_delta(q: float, sigma: float, epsilon: float, direction: str) -> float:
    """One sampled Gaussian: the ratio is monotone, so the optimal event is a half line."""
    floor = math.log1p(-q)
    if direction == "remove":
        z = (math.log((math.exp(epsilon) - math.exp(floor)) / q) * sigma**2 + 0.5) / sigma
        p = (1 - q) * ndtr(-z) + q * ndtr(1 / sigma - z)
        return float(p - math.exp(epsilon) * ndtr(-z))
    if -epsilon <= floor:
        return 0.0
    z = (math.log((math.exp(-epsilon) - math.exp(floor)) / q) * sigma**2 + 0.5) / sigma
    p = (1 - q) * ndtr(z) + q * ndtr(z - 1 / sigma)
    return float(ndtr(z) - math.exp(epsilon) * p)


@pytest.mark.parametrize("direction", ["remove", "add"])
@pytest.mark.parametrize("sigma", [0.3, 1.0, 5.0])
@pytest.mark.parametrize("q", [0.01, 0.5, 0.99])
@pytest.mark.parametrize("epsilon", [0.05, 0.3, 1.0, 4.0])
def test_one_step_is_just_above_the_exact_value(
    direction: str, sigma: float, q: float, epsilon: float
) -> None:
    exact = exact_poisson_delta(q, sigma, epsilon, direction)
    ours = poisson(q, sigma, 1e-3, direction).delta(epsilon)
    assert ours >= exact * (1 - 1e-9) - 1e-18
    assert ours <= exact * 1.02 + 1e-15


# q = 0.02, sigma = 1, 50 steps, at step 2e-3, and what dp_accounting's connect-the-dots gives (finer)
@pytest.mark.parametrize(
    ("epsilon", "ours", "theirs"), [(0.5, 1.55758e-3, 1.55610e-3), (1.0, 2.8830e-5, 2.8807e-5)]
)
def test_fifty_poisson_steps(epsilon: float, ours: float, theirs: float) -> None:
    found = compose([(poisson(0.02, 1.0, 2e-3, "remove"), 50)], epsilon).delta(epsilon)
    assert found == pytest.approx(ours, rel=2e-5)
    assert theirs <= found <= theirs * 1.002


@pytest.mark.slow
def test_against_dp_accounting_deep_in_the_tail() -> None:
    from dp_accounting.pld import privacy_loss_distribution

    theirs = privacy_loss_distribution.from_gaussian_mechanism(
        0.3844, sampling_prob=0.001, value_discretization_interval=1e-3, use_connect_dots=True
    ).self_compose(1000)
    part = poisson(0.001, 0.3844, 1e-3, "remove")
    for epsilon in (4.0, 8.0, 12.0):
        ours = compose([(part, 1000)], epsilon).delta(epsilon)
        assert ours == pytest.approx(theirs.get_delta_for_epsilon(epsilon), rel=1e-4)


def test_gaussian_steps_compose_to_one_gaussian() -> None:
    step = 1e-3
    for direction in ("remove", "add"):
        part = mixture_pld(np.array([1.0]), np.array([1.0]), 6.0, step, direction)
        for epsilon in (0.5, 2.0, 5.0, 8.0):
            exact = gaussian_delta(epsilon, math.sqrt(24) / 6.0)
            found = compose([(part, 20), (part, 4)], epsilon).delta(epsilon)
            assert exact * (1 - 1e-9) <= found <= exact * 1.01 + 1e-18


def test_a_composition_is_valid_far_from_where_it_is_sharp() -> None:
    part = mixture_pld(np.array([1.0]), np.array([1.0]), 6.0, 1e-3, "remove")
    for sharp in (0.1, 1.0, 6.0):
        composed = compose([(part, 24)], sharp)
        for epsilon in (0.2, 2.0, 7.0):
            assert composed.delta(epsilon) >= gaussian_delta(epsilon, math.sqrt(24) / 6.0) * (1 - 1e-9)


def test_what_lies_beyond_the_window_is_counted() -> None:
    part = mixture_pld(np.array([1.0]), np.array([1.0]), 6.0, 1e-3, "remove")
    composed = compose([(part, 24)], 0.5)
    beyond = float(composed.losses[-1]) + 0.1
    assert composed.infinity - 24 * part.infinity >= gaussian_delta(beyond, math.sqrt(24) / 6.0)
    assert composed.delta(beyond) >= gaussian_delta(beyond, math.sqrt(24) / 6.0)


def test_convolution_is_bounded_from_above_entry_by_entry() -> None:
    """Against a direct convolution: the certified error makes every tail at least the exact one."""
    rng = np.random.default_rng(3)
    masses = rng.random(40)
    part = PLD(0.1, -10, masses / masses.sum(), 1e-9, 0.0)
    direct = np.array([1.0])
    for _ in range(5):
        direct = np.convolve(direct, part.masses)
    losses = (np.arange(len(direct)) - 50) * 0.1
    composed = compose([(part, 5)], 2.0)
    for epsilon in (0.0, 1.0, 2.0, 5.0, 9.0, 13.0):
        exact = float(
            np.sum(direct * np.where(losses > epsilon, -np.expm1(np.minimum(epsilon - losses, 0)), 0))
        )
        assert exact * (1 - 1e-12) + 4.9e-9 <= composed.delta(epsilon) <= exact * (1 + 1e-9) + 5.1e-9


def test_the_certified_error_is_not_empty() -> None:
    """Without it a tail below the noise floor of the transform would come out low or zero."""
    part = PLD(0.5, 0, np.array([0.5, 0.5]), 0.0, 0.0)
    composed = compose([(part, 60)], 0.0)
    exact = 2.0**-60 * -math.expm1(-0.1)
    assert composed.delta(29.9) >= exact


@pytest.mark.slow
def test_delta_falls_and_epsilon_answers_it() -> None:
    composed = compose([(poisson(0.1, 1.0, 1e-3, "remove"), 30)], 1.0)
    values = [composed.delta(e) for e in np.linspace(0, 20, 200)]
    assert all(a >= b >= 0 for a, b in itertools.pairwise(values))
    for delta in (1e-2, 1e-5, 1e-8):
        assert composed.delta(composed.epsilon(delta)) <= delta
        assert composed.delta(composed.epsilon(delta) * (1 - 1e-6)) > delta


def test_mixed_grids_and_lost_targets_are_refused() -> None:
    with pytest.raises(InvalidParameter):
        compose([(poisson(0.1, 1.0, 1e-3, "add"), 1), (poisson(0.1, 1.0, 2e-3, "add"), 1)], 1.0)
    with pytest.raises(InvalidParameter):
        PLD(0.1, 0, np.array([1.0]), 1e-3, 0.0).epsilon(1e-4)
