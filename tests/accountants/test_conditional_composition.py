"""Conditional composition: its tests, its bad event and its product, each against an independent oracle.

Every sentence of the bound has a mutant here that fails the same check.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from types import ModuleType
from typing import Literal

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import expit, logsumexp, ndtr

from evertally.accountants import account, calibrate_noise_multiplier, random_allocation
from evertally.accountants import conditional_composition as cc
from evertally.accountants.cc_hazards import TEMPERATURES, HazardTests, _softmin, dense_tests, identity_tests
from evertally.accountants.cc_product import product_pld, row_mixtures
from evertally.accountants.participation import BallsInBins
from evertally.accountants.strategies import Identity

Array = NDArray[np.float64]
DIRECTIONS = ("remove", "add")


def means_of(kind: str, b: int, k: int) -> Array:
    rows = b * k
    taps = {"identity": np.ones(1), "bsr": np.array([1.0, 0.5]), "dense": 0.6 ** np.arange(rows)}[kind]
    matrix = sum(tap * np.eye(rows, k=-lag) for lag, tap in enumerate(taps.tolist()))
    return np.asarray(matrix).reshape(rows, k, b).sum(axis=1)


def hazard_tests_of(means: Array) -> HazardTests:
    found = dense_tests(means)
    assert found is not None
    return found


CASES = [("identity", 5, 2), ("bsr", 6, 2), ("dense", 4, 2), ("identity", 8, 3)]


def _oracle_tail(
    means: Array, sigma: float, test: tuple[int, int], temperature: float, tau: float, direction: str
) -> float:
    """P(the Gaussian bound on L_i < tau), written down anew from the means, one true bin at a time."""
    n, i = test
    past = means[:n]
    before = means[n] < means[n, i]
    distance = ((past - past[:, [i]]) ** 2).sum(axis=0)
    psi = np.where(before, np.exp(-(distance - distance[before].min()) / temperature), 0.0)
    psi /= psi.sum()
    kl = sum(p * math.log(p * before.sum()) for p in psi if p > 0)
    direction_vector = past @ psi - past[:, i]
    constant = -(psi @ (past**2).sum(axis=0) - (past[:, i] ** 2).sum()) / (2 * sigma**2) - kl
    spread = math.sqrt(float(direction_vector @ direction_vector)) / sigma
    if direction == "add":
        return float(ndtr((tau - constant) / spread))
    return float(
        np.mean(
            [
                ndtr((tau - constant - direction_vector @ past[:, k] / sigma**2) / spread)
                for k in range(means.shape[1])
            ]
        )
    )


def _tested_bins(means: Array) -> list[tuple[int, int]]:
    return [
        (n, int(i))
        for n in range(len(means))
        for i in sorted(np.flatnonzero(means[n] > 0), key=lambda j: -means[n, j])
    ]


def worst_tail(tests: HazardTests, means: Array, sigma: float, direction: str, target: float) -> float:
    """Largest P(the bound on L_i < tau) over target, of all tests that say anything; computed by hand."""
    thresholds = tests.thresholds(sigma, target, direction)
    shares = [
        _oracle_tail(means, sigma, test, temperature, float(thresholds[at, column]), direction) / target
        for at, test in enumerate(_tested_bins(means))
        if tests.informed[at]
        for column, temperature in enumerate(TEMPERATURES)
        if abs(tests.spread[at, column]) >= 1e-3
    ]
    assert len(shares) > 10
    return max(shares)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_each_threshold_meets_its_target(case: tuple[str, int, int], direction: str) -> None:
    """At target 1e-9 and G_ii/sigma^2 >= 4, against the tail computed by hand."""
    means = means_of(*case)
    sigma = math.sqrt((means**2).sum(axis=0).min()) / 2.0
    assert worst_tail(hazard_tests_of(means), means, sigma, direction, 1e-9) <= 1 + 1e-6


MUTANTS: dict[str, Callable[[HazardTests], HazardTests]] = {
    "no divergence of psi": lambda t: dataclasses.replace(t, divergence=np.zeros_like(t.divergence)),
    "no squared norms": lambda t: dataclasses.replace(
        t, mean_remove=t.mean_remove - t.mean_add[:, :, None], mean_add=np.zeros_like(t.mean_add)
    ),
    "no spread": lambda t: dataclasses.replace(t, spread=np.zeros_like(t.spread) + 1e-3),
    "spread without the tested mean": lambda t: dataclasses.replace(t, spread=0.7 * t.spread),
    "the upper tail": lambda t: dataclasses.replace(t, spread=-t.spread),
    "a root from the far side": lambda t: dataclasses.replace(
        t, mean_remove=t.mean_remove + 1e-4, mean_add=t.mean_add + 1e-4
    ),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_mutants_of_a_threshold_fail(mutant: str) -> None:
    means = means_of("identity", 8, 3)
    broken = MUTANTS[mutant](hazard_tests_of(means))
    assert worst_tail(broken, means, 0.8, "add", 1e-9) > 1 + 1e-6


def test_mutants_of_the_mixture_fail() -> None:
    """remove: the tail is that of the average over true bins, not of the likeliest or of the tested one."""
    means = means_of("identity", 8, 3)
    whole = hazard_tests_of(means)
    best_bin = dataclasses.replace(
        whole, mean_remove=np.broadcast_to(whole.mean_remove.max(axis=2)[:, :, None], whole.mean_remove.shape)
    )
    unweighted = dataclasses.replace(whole, weight=whole.weight / 8.0)
    for broken in (best_bin, unweighted):
        assert worst_tail(broken, means, 0.8, "remove", 1e-9) > 1 + 1e-6


def test_mutant_measuring_the_event_under_the_noise_fails() -> None:
    """The thresholds of "add" used for "remove" understate a test's failure at least thirtyfold."""
    means = means_of("identity", 8, 4)
    sigma = 1.0
    tests = hazard_tests_of(means)
    thresholds = tests.thresholds(sigma, 1e-9, "add")
    test = _tested_bins(means)[-1]
    assert _oracle_tail(means, sigma, test, math.inf, float(thresholds[-1, 0]), "remove") > 30e-9


def test_mutant_with_the_present_row_in_the_statistics_differs() -> None:
    """Gram statistics end before the row: the first row carries none at all."""
    tests = hazard_tests_of(means_of("dense", 4, 2))
    first = tests.row == 0
    assert not tests.informed[first].any()
    assert float(np.abs(tests.mean_add[first]).max()) == 0.0
    assert tests.informed[(tests.row == 1) & (tests.before > 0)].all()


def _log_odds(means: Array, y: Array, sigma: float, test: tuple[int, int]) -> Array:
    n, i = test
    past = means[:n]
    logs = (y[:, :n] @ past - 0.5 * (past**2).sum(axis=0)) / sigma**2
    order = sorted(np.flatnonzero(means[n] > 0), key=lambda j: -means[n, j])
    before = [j for j in range(means.shape[1]) if j not in order[: order.index(i) + 1]]
    return np.asarray(logsumexp(logs[:, before], axis=1) - math.log(len(before)) - logs[:, i])


def _jensen_excess(means: Array, sigma: float, outside: bool) -> float:
    """The most by which Jensen's bound exceeds L_i over simulated pasts, psi on J or `outside` too."""
    y = np.random.default_rng(9).normal(0.0, sigma, (500, len(means)))
    worst = -math.inf
    for test in _tested_bins(means):
        n, i = test
        order = sorted(np.flatnonzero(means[n] > 0), key=lambda j: -means[n, j])
        before = np.ones(means.shape[1], dtype=bool)
        before[order[: order.index(i) + 1]] = False
        if n == 0 or not before.any():
            continue
        past = means[:n]
        support = before | (np.arange(means.shape[1]) != i) if outside else before
        psi, kl = _softmin(((past - past[:, [i]]) ** 2).sum(axis=0), support, TEMPERATURES)
        logs = (y[:, :n] @ past - 0.5 * (past**2).sum(axis=0)) / sigma**2
        bound = logs @ psi.T - logs[:, [i]] - kl
        worst = max(worst, float((bound - _log_odds(means, y, sigma, test)[:, None]).max()))
    return worst


def test_psi_lives_on_the_bins_before_and_nowhere_else() -> None:
    means = means_of("dense", 4, 2)
    assert _jensen_excess(means, 0.7, outside=False) <= 1e-9
    assert _jensen_excess(means, 0.7, outside=True) > 0.1


def bad_rate(
    hazards: Array, tests: HazardTests, means: Array, sigma: float, direction: str, samples: int = 40_000
) -> float:
    """How often some row's true hazard is above its bound, simulated under the first argument."""
    rng = np.random.default_rng(5)
    y = rng.normal(0.0, sigma, (samples, len(means)))
    if direction == "remove":
        y += means[:, rng.integers(means.shape[1], size=samples)].T
    bad = np.zeros(samples, dtype=bool)
    for at, test in enumerate(_tested_bins(means)):
        if tests.informed[at]:
            odds = np.log(tests.before[at]) + _log_odds(means, y, sigma, test)
            bad |= expit(-odds) > hazards[at] * (1 + 1e-9)
    return float(bad.mean())


@pytest.mark.slow
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("bad_event", [0.02, 0.2])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_bad_events_are_as_rare_as_promised(
    case: tuple[str, int, int], bad_event: float, direction: str
) -> None:
    """Simulated under the first argument; false-alarm rate below 1e-6 (5 standard errors)."""
    means, sigma = means_of(*case), 1.2
    tests = hazard_tests_of(means)
    rate = bad_rate(tests.hazards(sigma, bad_event, direction), tests, means, sigma, direction)
    assert rate <= bad_event + 5 * math.sqrt(bad_event / 40_000)


@pytest.mark.slow
def test_mutants_of_the_event_fail() -> None:
    """The whole probability spent on each test, and four times the bins before the tested one."""
    means, sigma, event = means_of("dense", 4, 2), 2.5, 0.2
    tests = hazard_tests_of(means)
    limit = event + 5 * math.sqrt(event / 40_000)
    unshared = tests.hazards(sigma, min(0.99, event * tests.count), "remove")
    crowded = dataclasses.replace(tests, before=4 * tests.before).hazards(sigma, event, "remove")
    assert bad_rate(unshared, tests, means, sigma, "remove") > limit
    assert bad_rate(crowded, tests, means, sigma, "remove") > limit


def test_a_certain_statistic_needs_no_quantile() -> None:
    """xi = 0: tau is nu itself, the least over true bins, in both directions."""
    tests = identity_tests(6, 2)
    still = dataclasses.replace(tests, spread=np.zeros_like(tests.spread))
    for direction, means in (("add", tests.mean_add), ("remove", tests.mean_remove.min(axis=2))):
        expected = means / 1.3**2 - tests.divergence
        found = still.thresholds(1.3, 1e-9, direction)
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)
        assert np.all(found <= expected)


def test_mutant_that_rounds_weights_breaks_their_sum() -> None:
    """Hazards are rounded and weights follow; weights rounded one by one are no law any more."""
    tests = hazard_tests_of(means_of("dense", 4, 2))
    hazards = tests.hazards(1.0, 1e-3, "remove")
    rows = row_mixtures(tests, hazards, 1.3)
    for _, rounded in rows:
        h = np.array(rounded)
        weights = h * np.concatenate([[1.0], np.cumprod(1.0 - h)[:-1]])
        assert weights.sum() + np.prod(1.0 - h) == pytest.approx(1.0, abs=1e-12)
    h = hazards[tests.row == 7]
    weights = h * np.concatenate([[1.0], np.cumprod(1.0 - h)[:-1]])
    one_by_one = np.minimum(1.0, 1.3 ** np.ceil(np.log(weights) / math.log(1.3)))
    assert one_by_one.sum() > 1.0


MONTE_CARLO = [("identity", 3, 1), ("identity", 5, 2), ("identity", 8, 3), ("bsr", 6, 2), ("dense", 4, 2)]


@pytest.mark.slow
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("case", MONTE_CARLO, ids=str)
def test_the_bound_covers_monte_carlo(
    case: tuple[str, int, int], direction: str, monte_carlo: ModuleType
) -> None:
    means = means_of(*case)
    sigma = 0.6 * math.sqrt(float((means**2).sum(axis=0).max()))
    bound = cc.ConditionalComposition(hazard_tests_of(means))
    loss = monte_carlo.losses(means, sigma, direction, 100_000, np.random.default_rng(1))
    for epsilon in (0.3, 1.0):
        estimate, error = monte_carlo.delta(loss, epsilon)
        for event in (1e-4, 1e-2):
            assert bound.delta(sigma, epsilon, direction, event) >= estimate - 5 * error


def test_mutant_without_the_event_or_with_prior_hazards_falls_short(monte_carlo: ModuleType) -> None:
    """Hazards that never learn (1/b for ever) give less than the truth: the tests above can fail."""
    means = means_of("identity", 8, 3)
    tests = dataclasses.replace(hazard_tests_of(means), informed=np.zeros(24, dtype=bool))
    value = cc.ConditionalComposition(tests).delta(0.9, 1.0, "remove", 1e-3)
    loss = monte_carlo.losses(means, 0.9, "remove", 200_000, np.random.default_rng(1))
    estimate, error = monte_carlo.delta(loss, 1.0)
    assert value < estimate - 5 * error


def test_the_event_is_paid_for() -> None:
    """With so much noise that the product loses nothing, what is left is the probability of the event."""
    value = cc.ConditionalComposition(identity_tests(8, 2)).delta(100.0, 5.0, "remove", 1e-3)
    assert 1e-3 <= value <= 1.001e-3


def test_tests_are_counted() -> None:
    assert identity_tests(100, 3).count == 299
    assert hazard_tests_of(means_of("bsr", 6, 2)).count == 6 * 2 * 2 - 1 - 1
    dense = hazard_tests_of(means_of("dense", 4, 1))
    assert dense.count == np.count_nonzero((dense.row > 0) & (dense.before > 0))


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_closed_form_for_identity(direction: str) -> None:
    for b, k in ((6, 3), (9, 1), (1, 4)):
        closed, general = identity_tests(b, k), hazard_tests_of(np.tile(np.eye(b), (k, 1)))
        assert closed.count == general.count
        for sigma in (0.3, 1.0, 5.0):
            exact, grouped = closed.hazards(sigma, 1e-4, direction), general.hazards(sigma, 1e-4, direction)
            # the general form rounds true bins down in groups
            assert np.all(grouped >= exact * (1 - 1e-6))
            assert np.all(grouped <= exact * 1.02)


def test_first_hazard_is_exact_and_weights_follow_from_rounded_hazards() -> None:
    tests = hazard_tests_of(means_of("bsr", 6, 2))
    hazards = tests.hazards(1.0, 1e-3, "remove")
    assert hazards[0] == pytest.approx(1 / 6)
    assert float(hazards.max()) <= 1.0
    rows = row_mixtures(tests, hazards, 1.05)
    assert sum(rows.values()) == 12
    floor = {tuple(hazards[tests.row == n]) for n in range(12)}
    for _, rounded in rows:
        assert any(all(r >= h for r, h in zip(rounded, low, strict=False)) for low in floor)
        assert max(rounded) <= 1.0


@pytest.mark.slow
def test_coarser_hazards_only_add_to_delta() -> None:
    tests = identity_tests(50, 2)
    hazards = tests.hazards(1.0, 1e-5, "remove")
    exact = product_pld(tests, hazards, 1.0, 0.5, "remove").delta(0.5)
    raised = product_pld(tests, np.minimum(1.0, hazards * 1.1), 1.0, 0.5, "remove").delta(0.5)
    assert raised > exact


# sigma at which the bound alone must hold (N = b = 1000, one epoch, delta 1e-5); true: .7192, .5569, .3636
ROWS = [(0.5, 0.832, 0.7192), (2.0, 0.650, 0.5569), (8.0, 0.481, 0.3636)]
THOUSAND = BallsInBins(batches=1000, epochs=1)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(("epsilon", "sigma", "true"), ROWS)
def test_bars_for_a_thousand_rows(
    epsilon: float, sigma: float, true: float, direction: Literal["remove", "add"]
) -> None:
    """By the public entry, one direction at a time, and never below the exact value."""
    bound = account(Identity(), THOUSAND, sigma, {"cc"}, direction).epsilon(delta=1e-5)
    exact = account(Identity(), THOUSAND, sigma, {"random-allocation"}, direction).epsilon(delta=1e-5)
    assert bound.source == "cc"
    assert exact.lower <= bound.value <= epsilon
    if direction == "remove":
        gram, events = Identity().gram(THOUSAND), tuple(share * 1e-5 for share in cc.SHARES)
        assert cc.delta(gram, true * 0.99, epsilon, direction, events) > 1e-5


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("epsilon", "sigma", "true"), ROWS)
def test_noise_for_a_thousand_rows(epsilon: float, sigma: float, true: float) -> None:
    """The whole of it: calibration by this bound alone, both directions."""
    found = calibrate_noise_multiplier(Identity(), THOUSAND, epsilon=epsilon, delta=1e-5, bounds={"cc"})
    assert found.source == "cc"
    assert true * 0.999 <= found.value <= sigma
    assert found.lower <= true * 1.001


def test_the_mean_maximising_temperature_maximises_the_mean() -> None:
    rng = np.random.default_rng(3)
    squares, sigma = rng.uniform(0.0, 5.0, 7), 1.3

    def mean(psi: Array) -> float:
        return float(-(psi @ squares) / (2 * sigma**2) - np.sum(psi * np.log(psi * 7)))

    best = np.exp(-squares / cc.mean_maximising_temperature(sigma))
    others = rng.dirichlet(np.ones(7), 200)
    assert all(mean(best / best.sum()) >= mean(psi) for psi in others)


@pytest.mark.slow
def test_temperatures_help() -> None:
    """b = 50, sigma 0.9, epsilon 1: 8.5e-3 with, 1.6e-2 without (prototype); the truth is 7.0e-5."""
    gram = Identity().gram(BallsInBins(batches=50, epochs=1))
    events = (1e-5, 1e-4)
    with_ = cc.delta(gram, 0.9, 1.0, "remove", events)
    without = cc.delta(gram, 0.9, 1.0, "remove", events, temperatures=(math.inf,))
    assert random_allocation.delta(50, 0.9, 1.0, "remove", upper=False) <= with_ < without


@pytest.mark.slow
@pytest.mark.parametrize("sigma", [1e-3, 0.05, 1.0, 100.0, 1e4])
def test_extremes_stay_bounds(sigma: float) -> None:
    gram = Identity().gram(BallsInBins(batches=8, epochs=2))
    for direction in DIRECTIONS:
        value = cc.delta(gram, sigma, 0.5, direction, (1e-6,))
        assert random_allocation.delta(8, sigma, 0.5, direction, upper=False, epochs=2) <= value <= 1.0
        epsilon = cc.epsilon(gram, sigma, 1e-5, direction, shares=(0.1,))
        assert epsilon is None or epsilon >= 0.0


def test_over_the_budget_it_says_so() -> None:
    means = np.abs(np.random.default_rng(0).normal(size=(40, 20)))
    assert dense_tests(means, deadline=0.0) is None
