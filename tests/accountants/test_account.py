"""The accountant's face: minimum, safe side, lower bound, and settings that broke other accountants."""

from __future__ import annotations

import inspect
import itertools
import math
import random

import mpmath
import numpy as np
import pytest
from scipy.special import ndtr

from evertally.accountants import (
    BLT,
    BallsInBins,
    BandedSquareRoot,
    BandMF,
    CyclicPoisson,
    EachEpochOnce,
    Identity,
    LowerTriangular,
    Poisson,
    account,
    calibrate_noise_multiplier,
    colour,
    gaussian_delta,
    gaussian_epsilon,
    gaussian_noise_multiplier,
    random_allocation,
)
from evertally.accountants.applicable import applicable
from evertally.accountants.bound import Source
from evertally.accountants.poisson_curve import PoissonRenyi
from evertally.accountants.solve import smallest_admitted
from evertally.errors import InvalidParameter, UnsupportedMechanism

SCHEME = BallsInBins(20, 5)


@pytest.mark.parametrize(
    ("strategy", "sigma", "ceiling"),
    [
        # known values: exact 1.33e-9; 7.0e-7; 1.09e-3 (unamplified 4.485e-3 each)
        (Identity(), 2.764, 1.40e-9),
        (BandedSquareRoot(4), 3.372, 7.0e-7),
        (BLT((0.3, 0.15), (0.95, 0.5)), 4.853, 1.10e-3),
    ],
)
def test_small_mechanisms_reach_the_known_bounds(strategy: Identity, sigma: float, ceiling: float) -> None:
    bound = account(strategy, SCHEME, sigma).delta(epsilon=2.0)
    assert 0.0 < bound.lower <= bound.value <= ceiling
    assert bound.gap == bound.value - bound.lower
    assert bound.lower_scope == "dominating pair"


def test_every_bound_is_above_the_lower_bound_and_can_be_called_alone() -> None:
    mechanism = account(BandedSquareRoot(3), SCHEME, 4.0)
    each = mechanism.each_delta(epsilon=1.0)
    assert set(each) == {"gaussian", "colour", "renyi"}
    least = mechanism.delta(epsilon=1.0)
    assert least.value == min(each.values())
    for name, value in each.items():
        alone = account(BandedSquareRoot(3), SCHEME, 4.0, bounds={name}).delta(epsilon=1.0)
        assert (alone.value, alone.source) == (value, name)
        assert alone.lower <= alone.value
    assert mechanism.each_epsilon(delta=1e-5)["gaussian"] == pytest.approx(
        gaussian_epsilon(1e-5, math.sqrt(BandedSquareRoot(3).gram(SCHEME).maximum) / 4.0), rel=1e-9
    )


def test_directions_alone_are_at_most_both() -> None:
    both = account(BandedSquareRoot(3), SCHEME, 4.0).delta(epsilon=0.5)
    one = [
        account(BandedSquareRoot(3), SCHEME, 4.0, direction=d).delta(epsilon=0.5) for d in ("remove", "add")
    ]
    assert max(bound.value for bound in one) <= both.value * (1 + 1e-12)
    assert all(bound.lower <= bound.value for bound in one)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", [Identity(), BandedSquareRoot(3)])
@pytest.mark.parametrize("epsilon", [0.5, 2.0, 8.0])
def test_calibration_meets_its_target(strategy: Identity, epsilon: float) -> None:
    choices: tuple[set[Source] | None, ...] = (None, {"renyi"}, {"gaussian"})
    for bounds in choices:
        found = calibrate_noise_multiplier(strategy, SCHEME, epsilon=epsilon, delta=1e-6, bounds=bounds)
        again = account(strategy, SCHEME, found.value, bounds=bounds)
        assert again.delta(epsilon=epsilon).value <= 1e-6
        assert 0.0 < found.lower <= found.value
        # and no more noise than needed: a thousandth less misses the target
        less = account(strategy, SCHEME, found.value * (1 - 1e-3), bounds=bounds)
        assert less.delta(epsilon=epsilon).value > 1e-6


def test_epsilon_and_delta_are_inverse() -> None:
    mechanism = account(BandedSquareRoot(3), SCHEME, 4.0)
    epsilon = mechanism.epsilon(delta=1e-6).value
    assert mechanism.delta(epsilon=epsilon).value == pytest.approx(1e-6, rel=1e-3)


@pytest.mark.slow
def test_reading_changes_nothing() -> None:
    mechanism = account(BandedSquareRoot(3), SCHEME, 4.0)
    assert len({mechanism.epsilon(delta=1e-6) for _ in range(100)}) == 1


def test_sixty_gaussians_compose_to_one() -> None:
    found = account(Identity(), EachEpochOnce(1, 60), 20.0).epsilon(delta=1e-6)
    assert found.value == pytest.approx(gaussian_epsilon(1e-6, math.sqrt(60) / 20), rel=1e-12)
    assert found.lower == pytest.approx(found.value, rel=1e-6)


def test_each_epoch_once_has_no_amplification() -> None:
    bound = account(BandedSquareRoot(4), EachEpochOnce(100, 10), 10.0).delta(epsilon=1.0)
    assert bound.source == "gaussian"
    assert bound.value == pytest.approx(gaussian_delta(1.0, math.sqrt(14.8828125) / 10), rel=1e-9)


def test_poisson_is_above_dp_accounting_and_near_it() -> None:
    pld = pytest.importorskip("dp_accounting.pld.privacy_loss_distribution")
    exact = pld.from_gaussian_mechanism(
        0.8, sampling_prob=0.01, value_discretization_interval=1e-3, use_connect_dots=True
    ).self_compose(100)
    found = account(Identity(), Poisson(0.01, 100), 0.8).epsilon(delta=1e-5)
    truth = exact.get_epsilon_for_delta(1e-5)
    assert truth * (1 - 1e-3) <= found.value <= 1.6 * truth
    assert found.source == "poisson-renyi"
    assert found.lower_scope == "none"


def test_poisson_moments_against_rdp_oracle() -> None:
    rdp = pytest.importorskip("dp_accounting.rdp.rdp_privacy_accountant")
    event = pytest.importorskip("dp_accounting").dp_event
    oracle = rdp.RdpAccountant(orders=[2, 5, 16])
    oracle.compose(event.PoissonSampledDpEvent(0.02, event.GaussianDpEvent(1.1)), 7)
    moments = PoissonRenyi(0.02, 7, 1.0)._moments(1.1)
    for order, value in zip((2, 5, 16), oracle._rdp, strict=True):
        assert moments[order] / (order - 1) == pytest.approx(value, rel=1e-9)


def test_cyclic_poisson_counts_its_rounds() -> None:
    strategy = BandedSquareRoot(4)
    cyclic = account(strategy, CyclicPoisson(0.1, 100, 4), 3.0).delta(epsilon=1.0)
    norm = math.sqrt(1.48828125)
    plain = account(Identity(), Poisson(0.1, 25), 3.0 / norm).delta(epsilon=1.0)
    assert cyclic.value == pytest.approx(plain.value, rel=1e-6)
    with pytest.raises(UnsupportedMechanism):
        account(strategy, CyclicPoisson(0.1, 100, 3), 3.0)
    with pytest.raises(UnsupportedMechanism):
        account(strategy, Poisson(0.1, 100), 3.0)


def test_cyclic_poisson_pays_for_the_largest_column() -> None:
    # a hundredth of the records meets a first row of ten times the norm: that row alone loses this much
    matrix = np.diag([10.0] + [1.0] * 19)
    scheme, mu, rate = CyclicPoisson(0.01, 20, 1), 10.0 / 3.0, 0.01
    cut = (math.log((math.e - (1.0 - rate)) / rate) + mu * mu / 2.0) / mu
    alone = (1.0 - rate) * ndtr(-cut) + rate * ndtr(mu - cut) - math.e * ndtr(-cut)
    assert account(LowerTriangular(matrix), scheme, 3.0).delta(epsilon=1.0).value >= alone
    assert account(LowerTriangular(matrix, True), scheme, 3.0).delta(epsilon=1.0).value <= 0.01 * alone
    # equal columns cost what the same matrix by its diagonals does
    banded = np.eye(20) + 0.5 * np.eye(20, k=-1)
    same = [
        account(strategy, CyclicPoisson(0.1, 20, 2), 3.0).delta(epsilon=1.0).value
        for strategy in (BandMF(2, False, (1.0, 0.5)), LowerTriangular(banded))
    ]
    assert same[1] == pytest.approx(same[0], rel=1e-9)


@pytest.mark.parametrize(("sigma", "epsilon"), [(1e6, 0.0), (1e9, 1e-9), (1e6, 3e-6), (2.0, 1.0)])
def test_a_known_bins_lower_bound_is_below_the_truth_where_rounding_is_most_of_it(
    sigma: float, epsilon: float
) -> None:
    """At much noise a rounding margin is more than a billionth of delta: a lower bound has its own."""
    mechanism = account(Identity(), EachEpochOnce(12, 1), sigma)
    with mpmath.workdps(50):
        mu, e = 1 / mpmath.mpf(sigma), mpmath.mpf(epsilon)
        truth = mpmath.ncdf(mu / 2 - e / mu) - mpmath.exp(e) * mpmath.ncdf(-mu / 2 - e / mu)
        delta = mechanism.delta(epsilon=epsilon)
        assert delta.lower <= truth <= delta.value
        assert delta.lower >= truth * 0.999
    found = mechanism.epsilon(delta=float(truth))
    assert found.lower <= epsilon * (1.0 + 1e-12)
    assert found.value >= epsilon * (1.0 - 1e-12)


def test_noise_beyond_doubles_is_refused_by_name() -> None:
    with pytest.raises(InvalidParameter, match="epsilon"):
        gaussian_noise_multiplier(2.3e-308, 1e-300)
    with pytest.raises(InvalidParameter, match="mu"):
        gaussian_epsilon(1e-6, 1e200)


def test_participation_is_required_and_has_no_defaults() -> None:
    for scheme in (BallsInBins, EachEpochOnce, Poisson, CyclicPoisson):
        parameters = inspect.signature(scheme).parameters.values()
        assert all(p.default is inspect.Parameter.empty for p in parameters)
        with pytest.raises(TypeError):
            scheme()  # type: ignore[call-arg]  # the missing arguments are the point
    for entry in (account, calibrate_noise_multiplier):
        assert inspect.signature(entry).parameters["participation"].default is inspect.Parameter.empty
    with pytest.raises(InvalidParameter):
        account(Identity(), None, 1.0)  # type: ignore[arg-type]  # the missing promise is the point


@pytest.mark.parametrize("bad", [0, -1.0, math.nan, math.inf, 5e-324, 1e-300, 1e300, "1", True])
def test_unusable_noise_is_refused(bad: float) -> None:
    with pytest.raises(InvalidParameter):
        account(Identity(), SCHEME, bad).delta(epsilon=1.0)


def test_unusable_targets_are_refused() -> None:
    mechanism = account(Identity(), SCHEME, 1.0)
    for bad in (0.0, 1.0, -1e-5, math.nan, math.inf, 5e-324):
        with pytest.raises(InvalidParameter):
            mechanism.epsilon(delta=bad)
        with pytest.raises(InvalidParameter):
            calibrate_noise_multiplier(Identity(), SCHEME, epsilon=1.0, delta=bad)
    for bad in (-1.0, math.nan, math.inf):
        with pytest.raises(InvalidParameter):
            mechanism.delta(epsilon=bad)
        with pytest.raises(InvalidParameter):
            calibrate_noise_multiplier(Identity(), SCHEME, epsilon=bad, delta=1e-5)
    for names in (set(), {"clt"}, {"colour"}, "renyi"):
        with pytest.raises(InvalidParameter):
            account(Identity(), SCHEME, 1.0, bounds=names)  # type: ignore[arg-type]  # as above


def test_an_optimum_on_the_edge_of_the_orders_is_reported() -> None:
    # huge noise and a tiny delta want orders beyond 256
    found = account(Identity(), BallsInBins(2, 1), 200.0, bounds={"renyi"}).epsilon(delta=1e-12)
    assert any("largest that was computed" in note for note in found.notes)
    plain = account(Identity(), SCHEME, 2.0, bounds={"renyi"}).epsilon(delta=1e-5)
    assert plain.notes == ()


def test_results_survive_a_delta_below_the_doubles() -> None:
    bound = account(Identity(), BallsInBins(1000, 1), 50.0).delta(epsilon=1000.0)
    assert 0.0 < bound.value < 1e-290


def test_conditional_composition_over_its_budget_is_left_out_with_a_note() -> None:
    mechanism = account(
        BandedSquareRoot(4), BallsInBins(500, 4), 4.0, bounds={"cc", "renyi"}, cc_time_budget_s=1e-6
    )
    bound = mechanism.delta(epsilon=1.0)
    assert bound.source == "renyi"
    assert any("conditional composition left out" in note for note in bound.notes)


@pytest.mark.slow
def test_the_default_says_that_conditional_composition_was_left_out() -> None:
    default = account(BandedSquareRoot(3), SCHEME, 4.0).delta(epsilon=1.0)
    found = calibrate_noise_multiplier(BandedSquareRoot(3), SCHEME, epsilon=1.0, delta=1e-5)
    for bound in (default, found):
        assert any("conditional composition left out" in note for note in bound.notes)
    named = account(BandedSquareRoot(3), SCHEME, 4.0, bounds={"renyi"}).delta(epsilon=1.0)
    unsampled = account(Identity(), EachEpochOnce(20, 5), 4.0).delta(epsilon=1.0)
    assert named.notes == unsampled.notes == ()


@pytest.mark.parametrize("direction", ["remove", "add"])
def test_no_upper_bound_on_delta_underflows_to_zero(direction: str) -> None:
    gram = BandedSquareRoot(3).gram(SCHEME)
    for sigma, epsilon in ((50.0, 1000.0), (1e4, 3.0), (1e8, 1.0)):
        assert random_allocation.delta(1000, sigma, epsilon, direction) > 0.0
        assert colour.delta(gram, sigma, epsilon, direction) > 0.0
        assert colour.delta(gram, sigma, epsilon, direction, 2) > 0.0


def test_smallest_admitted_brackets() -> None:
    refused, admitted = smallest_admitted(lambda s: 3.0 - s, 10.0, tolerance=1e-9, low=1e-3)
    assert refused < 3.0 <= admitted <= refused * (1 + 1e-9)
    assert smallest_admitted(lambda _: -1.0, 10.0, tolerance=1e-9, low=1.0) == (1.0, 1.0)


def settings(
    count: int, seed: int, strategies: bool
) -> list[tuple[object, BallsInBins, float, float, float]]:
    """Random mechanisms over the supported range."""
    draw = random.Random(seed)
    found: list[tuple[object, BallsInBins, float, float, float]] = []
    while len(found) < count:
        batches = int(10 ** draw.uniform(0, 5))
        epochs = int(10 ** draw.uniform(0, 2))
        strategy: object = Identity()
        if strategies:
            batches, epochs = min(batches, 200), min(epochs, 8)
            strategy = draw.choice(
                [BandedSquareRoot(3), BandedSquareRoot(2, normalize_columns=True), BLT((0.3,), (0.8,))]
            )
        sigma = 10 ** draw.uniform(math.log10(0.05), 2)
        epsilon = 10 ** draw.uniform(-3, 3)
        delta = 10 ** draw.uniform(-12, -2)
        found.append((strategy, BallsInBins(batches, epochs), sigma, epsilon, delta))
    return found


def check(strategy: object, scheme: BallsInBins, sigma: float, epsilon: float, delta: float) -> None:
    """Never worse than the unamplified Gaussian, finite, non-negative, monotone in noise and target."""
    budget = 0.003
    mechanism = account(strategy, scheme, sigma, time_budget_s=budget)  # type: ignore[arg-type]  # a strategy
    louder = account(strategy, scheme, sigma * 1.3, time_budget_s=budget)  # type: ignore[arg-type]  # a strategy
    mu = math.sqrt(strategy.gram(scheme).maximum) / sigma  # type: ignore[attr-defined]  # a strategy
    slack = 1 + 1e-9
    deltas = [
        m.delta(epsilon=e) for m, e in ((mechanism, epsilon), (mechanism, 1.2 * epsilon), (louder, epsilon))
    ]
    epsilons = [m.epsilon(delta=d) for m, d in ((mechanism, delta), (mechanism, 2 * delta), (louder, delta))]
    for found in (*deltas, *epsilons):
        assert math.isfinite(found.value)
        assert found.value >= found.lower >= 0.0
    assert all(bound.value > 0.0 for bound in deltas)
    assert deltas[0].value <= gaussian_delta(epsilon, mu) * slack
    assert epsilons[0].value <= gaussian_epsilon(delta, mu) * slack + 1e-12
    assert max(bound.value for bound in deltas[1:]) <= deltas[0].value * slack + 1e-300
    assert max(bound.value for bound in epsilons[1:]) <= epsilons[0].value * slack + 1e-12


@pytest.mark.slow
@pytest.mark.parametrize("strategies", [False, True])
def test_a_slice_of_random_settings(strategies: bool) -> None:
    for setting in settings(5 if strategies else 20, 1, strategies):
        check(*setting)


@pytest.mark.timeout(3000)
@pytest.mark.parametrize(
    "part",
    [
        pytest.param(0, marks=pytest.mark.slow),
        *(pytest.param(i, marks=pytest.mark.soak) for i in range(1, 8)),
    ],
)
def test_two_thousand_random_settings(part: int) -> None:
    """250 settings a part: one part in every run, all eight in the long ones."""
    for setting in settings(220, 100 + part, strategies=False) + settings(30, 200 + part, strategies=True):
        check(*setting)


@pytest.mark.slow
def test_noise_is_monotone_in_the_target() -> None:
    scheme = BallsInBins(12, 3)
    choices: tuple[set[Source] | None, ...] = ({"renyi"}, None)
    for bounds in choices:
        found = [
            calibrate_noise_multiplier(
                BandedSquareRoot(2), scheme, epsilon=e, delta=1e-5, bounds=bounds
            ).value
            for e in (0.25, 0.5, 1, 2, 4, 8, 16)
        ]
        assert found == sorted(found, reverse=True)
        assert all(np.isfinite(found))


@pytest.mark.slow
def test_less_noise_never_costs_less() -> None:
    draw = random.Random(5)
    for _ in range(1000):
        low, high = sorted(10 ** draw.uniform(-1, 2) for _ in range(2))
        scheme = EachEpochOnce(draw.randint(1, 50), draw.randint(1, 50))
        cheap, dear = (account(Identity(), scheme, sigma).epsilon(delta=1e-6).value for sigma in (high, low))
        assert cheap <= dear


@pytest.mark.slow
def test_the_unamplified_gaussian_is_always_in_the_minimum() -> None:
    curves, _ = applicable(BandedSquareRoot(3), SCHEME, None, "both", 0.1, 1.0)
    assert next(curve.source for curve in curves) == "gaussian"
    for epsilon, delta in itertools.product((0.1, 1, 10), (1e-3, 1e-9)):
        found = calibrate_noise_multiplier(Identity(), BallsInBins(3, 2), epsilon=epsilon, delta=delta)
        assert found.value <= math.sqrt(2) * gaussian_noise_multiplier(epsilon, delta) * (1 + 1e-9)
