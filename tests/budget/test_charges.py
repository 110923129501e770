"""Every cost is recomputed from public parameters, and every composition rule is one of the theorems."""

from __future__ import annotations

import inspect
import itertools
import json
import math
import random
from dataclasses import fields, replace
from fractions import Fraction
from typing import Any

import pytest
from scipy.stats import norm

from evertally import accountants
from evertally.accountants.budget import (
    ChargeRequest,
    CounterLine,
    CounterParameters,
    GaussianLine,
    KeySelectionLine,
    Scope,
    TrainingLine,
    WindowsLine,
    cost,
    counter_grid,
    fit_counter,
)
from evertally.accountants.budget.charges import request_from_json
from evertally.accountants.budget.counter_loss import computational_delta, counter_mu2, output_sd
from evertally.accountants.budget.loss import Line
from evertally.accountants.gaussian import gaussian_delta
from evertally.counters import parse_mechanism
from evertally.counters.contribution import Contribution
from evertally.counters.grid import Grid
from evertally.errors import InvalidParameter, UnsupportedMechanism

EVENT = Scope("e", "event", "add-remove", "4", "1e-6")
USER = Scope("u", "aircraft", "add-remove", "4", "1e-6")
BINS = {"kind": "BallsInBins", "batches": 10, "epochs": 1}
COUNTER = CounterParameters("rational:W32", 10**8, 16)


def charged(line: Line, scope: Scope = EVENT, **more: Any) -> int:
    return cost(scope, ChargeRequest(scope.name, scope.unit, scope.adjacency, line, **more)).main


def scope_for(adjacency: str, unit: str = "event") -> Scope:
    return Scope("x", unit, adjacency, "4", "1e-6")


# counters


def test_counter_costs_what_its_grid_says() -> None:
    mechanism = parse_mechanism("rational:W32")
    sensitivity = Contribution().sensitivity(mechanism)
    grid = Grid.for_mu(mechanism, 0.5, sensitivity)
    line = CounterLine(CounterParameters("rational:W32", grid.q, 16))
    assert charged(line) == math.ceil(Fraction(grid.mu) ** 2 * 10**9)
    # ||R||^2 of W32 with 32-bit weights is 4.352869963
    assert counter_grid(line.parameters, EVENT).sensitivity ** 2 == pytest.approx(4.352869963, rel=1e-9)
    ideal = math.sqrt(4.352869963) * grid.q / 2**30
    assert ideal < grid.mu < ideal + 0.002


def test_counter_is_charged_once_for_ever_and_slack_is_in_the_price() -> None:
    short = replace(COUNTER, slack_horizon=2**20)
    assert charged(CounterLine(short)) < charged(CounterLine(COUNTER)) < charged(CounterLine(short)) * 1.05
    assert charged(CounterLine(replace(COUNTER, slack_horizon=2**34))) > charged(CounterLine(COUNTER))


def test_fitted_counter_fills_the_budget_and_not_one_unit_more() -> None:
    for units in (10**6, 56_023_518, 10**9):
        fitted = fit_counter(COUNTER, EVENT, units)
        spent = charged(CounterLine(fitted))
        assert units * (1 - 1e-5) - 2 <= spent <= units
        assert charged(CounterLine(replace(fitted, q=fitted.q + 2))) > spent
    with pytest.raises(InvalidParameter):
        fit_counter(COUNTER, EVENT, 1)


def test_user_level_costs_the_k_participation_sensitivity() -> None:
    user = replace(COUNTER, participations=13, min_separation=672)
    mechanism = parse_mechanism("rational:W32")
    want = 16 * mechanism.sensitivity_squared(13, 672)
    per_tick = replace(user, per_tick=4)
    assert counter_grid(per_tick, USER).sensitivity ** 2 == pytest.approx(want, rel=1e-12)
    assert charged(CounterLine(user), USER) > 13 * charged(CounterLine(COUNTER)) * 0.99
    with pytest.raises(InvalidParameter, match="participations"):
        charged(CounterLine(user), EVENT)


def test_contributions_charged_as_one_would_be_noticed() -> None:
    costs = [charged(CounterLine(replace(COUNTER, participations=k)), USER) for k in (1, 2, 4, 10)]
    assert costs == sorted(costs)
    assert costs[3] > 10 * costs[0]


@pytest.mark.parametrize(
    ("adjacency", "lower", "factor"),
    [
        ("replace-value", 0, 1.0),
        ("replace", 0, math.sqrt(2)),
        ("replace-value", -1, 2.0),
        ("replace", -1, 2.0),
    ],
)
def test_replacement_factors(adjacency: str, lower: int, factor: float) -> None:
    p = replace(COUNTER, lower=lower, slack_horizon=1)
    mu = math.sqrt(counter_mu2(p, scope_for(adjacency)) / counter_mu2(p, EVENT))
    assert mu == pytest.approx(factor, rel=1e-6)


def test_moved_signed_values_are_not_charged_as_two_counters() -> None:
    # sqrt(mu1^2 + mu2^2) instead of 2 mu_max would state a delta 55 times too small at mu = .2, epsilon = 1
    p = replace(COUNTER, lower=-1, slack_horizon=1)
    p = replace(p, q=math.floor(0.2 * 2**30 / counter_grid(p, EVENT).sensitivity))
    mu = math.sqrt(counter_mu2(p, scope_for("replace")))
    assert mu == pytest.approx(0.4, rel=1e-6)
    assert gaussian_delta(1.0, mu) / gaussian_delta(1.0, 0.2 * math.sqrt(2)) == pytest.approx(55, rel=0.02)


def test_counters_own_delta_is_added() -> None:
    one = cost(EVENT, ChargeRequest("e", "event", "add-remove", CounterLine(COUNTER)))
    n = 16 * 2**30
    assert one.delta == math.ceil(10**18 * (n / 2**92 + n * n / 2**129 + 16 / 2**100))
    wide = replace(COUNTER, keys=10_000)
    assert cost(EVENT, ChargeRequest("e", "event", "add-remove", CounterLine(wide))).delta > 10**5


# composition


def test_sixty_rounds_of_sigma_twenty() -> None:
    # autodp#15: composing Gaussians gave inf; mu = sqrt(60)/20
    assert charged(GaussianLine(1, 20, releases=60)) == 150_000_000 == 60 * charged(GaussianLine(1, 20))


def test_less_noise_never_costs_less() -> None:
    # PySyft#6914
    rng = random.Random(20260)
    for _ in range(1000):
        low, high = sorted(10 ** rng.uniform(-3, 4) for _ in range(2))
        assert charged(GaussianLine(1, low)) >= charged(GaussianLine(1, high))
    qs = sorted(rng.randrange(1, 2**40) for _ in range(1000))
    costs = [charged(CounterLine(replace(COUNTER, q=q))) for q in qs[:100]]
    assert costs == sorted(costs)


def test_windows() -> None:
    day, hour = 86_400_000, 3_600_000
    one = charged(GaussianLine(1, 10))
    tumbling = WindowsLine(1, 10, "tumbling", day, day)
    assert charged(tumbling) == one
    assert charged(tumbling, scope_for("replace")) == 2 * one
    assert charged(WindowsLine(1, 10, "sliding", day, hour)) == 24 * one
    assert charged(WindowsLine(1, 10, "sliding", day, 5 * hour)) == 5 * one
    assert charged(replace(tumbling, firings=3)) == 3 * one
    assert charged(replace(tumbling, windows_per_unit=30), USER) == 30 * one
    with pytest.raises(UnsupportedMechanism, match="unbounded"):
        charged(tumbling, USER)
    with pytest.raises(UnsupportedMechanism, match="session"):
        WindowsLine(1, 10, "session", day, day)
    with pytest.raises(InvalidParameter):
        WindowsLine(1, 10, "tumbling", day, hour)


def test_windows_of_a_unit_and_of_the_one_in_its_place_need_not_be_the_same() -> None:
    """One user's records in windows 1 to k against another's in k+1 to 2k, clip 1, values from 0."""
    k, sigma, day = 30, 10, 86_400_000
    before, after = [1] * k + [0] * k, [0] * k + [1] * k
    mu2 = sum((x - y) ** 2 for x, y in zip(before, after, strict=True)) / sigma**2
    line = WindowsLine(1, sigma, "tumbling", day, day, windows_per_unit=k)
    assert charged(line, replace(USER, adjacency="replace")) == math.ceil(mu2 * 1e9)
    assert charged(line, replace(USER, adjacency="replace-value")) == charged(line, USER)


@pytest.mark.parametrize(("length", "stride"), [(10, 10), (10, 3), (7, 1), (24, 5)])
@pytest.mark.parametrize("adjacency", ["add-remove", "replace-value", "replace"])
def test_an_events_windows_are_those_that_a_change_of_it_can_reach(
    length: int, stride: int, adjacency: str
) -> None:
    """Every pair of neighbours of one event in [0, 1], counted window by window."""

    def counts(time: int, value: int) -> dict[int, int]:
        return {start: value for start in range(-60, 120, stride) if start <= time < start + length}

    before = [counts(time, 1) for time in range(length)]
    after: dict[str, list[dict[int, int]]] = {
        "add-remove": [{}],
        "replace-value": [],  # the same time, value 0: as far as values in [0, 1] go
        "replace": [counts(time, 1) for time in range(-30, 60)],
    }
    worst = max(
        sum((one.get(w, 0) - other.get(w, 0)) ** 2 for w in one.keys() | other.keys())
        for one in before
        for other in (after[adjacency] or [dict.fromkeys(one, 0)])
    )
    line = WindowsLine(1, 10, "tumbling" if length == stride else "sliding", length, stride)
    assert charged(line, scope_for(adjacency)) == worst * charged(GaussianLine(1, 10))


def test_renyi_scope_counts_a_gaussian_at_its_one_order() -> None:
    mixed = Scope("m", "event", "add-remove", "8", "1e-6", filter="renyi", order=16)
    assert charged(GaussianLine(1, 10), mixed) == math.ceil(16 * 0.01 / 2 * 1e9)


def test_parallel_rule_is_for_declared_groups_of_gaussian_lines() -> None:
    grouped = replace(EVENT, disjoint=("g",))
    assert charged(GaussianLine(1, 10), grouped, group="g", members=("a",)) == 10_000_000
    with pytest.raises(InvalidParameter, match="group"):
        charged(GaussianLine(1, 10), grouped, group="h", members=("a",))
    training = TrainingLine({"kind": "Identity"}, BINS, "2")
    with pytest.raises(UnsupportedMechanism):
        charged(training, grouped, group="g", members=("a",))


def test_lines_of_another_unit_or_adjacency_are_refused() -> None:
    line = GaussianLine(1, 10)
    for unit, adjacency in (("aircraft", "add-remove"), ("event", "replace")):
        with pytest.raises(InvalidParameter, match="unit"):
            cost(EVENT, ChargeRequest("e", unit, adjacency, line))


def test_key_selection_pays_for_its_counter_and_its_threshold() -> None:
    low, high = (KeySelectionLine(replace(COUNTER, keys=1), threshold=t, horizon=10**4) for t in (150, 200))
    request = [ChargeRequest("e", "event", "add-remove", line) for line in (low, high)]
    prices = [cost(EVENT, r) for r in request]
    assert prices[0].main == prices[1].main == charged(CounterLine(replace(COUNTER, keys=1)))
    assert prices[0].delta > prices[1].delta >= 1
    with pytest.raises(InvalidParameter, match="threshold"):
        cost(EVENT, ChargeRequest("e", "event", "add-remove", replace(low, threshold=20)))
    with pytest.raises(InvalidParameter, match="threshold"):
        replace(low, threshold=10**400)  # no double holds it


@pytest.mark.parametrize("adjacency", ["add-remove", "replace-value", "replace"])
@pytest.mark.parametrize("lower", [0, -3])
def test_a_key_that_one_input_lacks_is_reached_by_one_unit(adjacency: str, lower: int) -> None:
    """Every pair of neighbours on one key, with others' values: the most at ticks where it is 0 or less."""
    own = range(lower, 4)
    pairs = [(x, 0) for x in own] if adjacency == "add-remove" else list(itertools.product(own, own))
    others = range(lower, 4)
    reach = max(o + x for o in others for x, y in pairs if o + y <= 0)
    counter = replace(COUNTER, keys=1, clip=3, lower=lower, q=2**22)
    line = KeySelectionLine(counter, threshold=10**5, horizon=10**4)
    sd = output_sd(counter, line.horizon)
    shown = line.loss(scope_for(adjacency)).delta - computational_delta(counter)
    expected = line.horizon * norm.sf((line.threshold - reach - 1) / sd)
    assert float(shown) == pytest.approx(expected, rel=1e-9)


def test_a_coarse_grid_drifts_towards_the_threshold() -> None:
    """Where a count is a few cells, rounding of the history moves the mean by more than half a count."""
    coarse = replace(COUNTER, keys=1, q=16, slack_horizon=2**40)
    line = KeySelectionLine(coarse, threshold=10**9, horizon=10**4)
    sd, drift = output_sd(coarse, line.horizon), counter_grid(coarse, EVENT).slack / 2.0**30
    assert drift > 2.0 / sd
    tail = [line.horizon * norm.sf((line.threshold - 2) / sd - shift) for shift in (0.0, drift - 0.5 / sd)]
    shown = float(line.loss(EVENT).delta - computational_delta(coarse))
    assert shown == pytest.approx(tail[1], rel=1e-9)
    assert shown > tail[0] * (1.0 + 1e-6)


# nothing from the client


def test_no_line_and_no_request_has_a_field_for_its_cost() -> None:
    kinds = (ChargeRequest, CounterParameters, GaussianLine, WindowsLine, KeySelectionLine, TrainingLine)
    names = {f.name for kind in kinds for f in fields(kind)}
    assert not names & {"mu", "mu2", "rho", "renyi", "epsilon", "cost", "amount", "main", "price"}
    assert "mu" not in inspect.signature(cost).parameters


@pytest.mark.parametrize(
    "line",
    [
        CounterLine(COUNTER),
        GaussianLine("1.5", 20, 3),
        WindowsLine(1, "0.1", "sliding", 10, 3, 2, 5),
        KeySelectionLine(COUNTER, 500, 1000),
        TrainingLine(
            {"kind": "BandedSquareRoot", "bands": 4}, {"kind": "BallsInBins", "batches": 9, "epochs": 2}, 1.5
        ),
    ],
    ids=lambda line: line.kind,
)
def test_requests_read_back_from_their_body(line: Line) -> None:
    request = ChargeRequest("s", "event", "add-remove", line, "g", ("a", "b"))
    assert request_from_json(json.loads(request.body())) == request
    assert request_from_json(json.loads(request.body())).body() == request.body()


@pytest.mark.parametrize(
    "change",
    [
        {"mu": "0.001"},
        {"kind": "mystery"},
        {"q": 0},
        {"q": 1.5},
        {"q": True},
        {"clip": 2**200},
        {"participations": -1},
        {"slack_horizon": 10**30},
        {"mechanism": "rational:NOPE"},
        {"mechanism": "../../etc"},
        {"lower": -5},
    ],
    ids=str,
)
def test_unknown_or_impossible_fields_are_refused(change: dict[str, object]) -> None:
    body = json.loads(ChargeRequest("e", "event", "add-remove", CounterLine(COUNTER)).body())
    body["line"] |= change
    with pytest.raises((InvalidParameter, UnsupportedMechanism)):
        cost(EVENT, request_from_json(body))


def test_training_line_needs_a_mixed_scope_and_takes_the_larger_direction() -> None:
    line = TrainingLine({"kind": "Identity"}, BINS, "2")
    mixed = Scope("m", "event", "add-remove", "8", "1e-6", filter="renyi", order=8)
    bins = accountants.BallsInBins(batches=10, epochs=1)
    values = [
        accountants.renyi_divergence(accountants.Identity(), bins, 2.0, 8.0, direction=direction)
        for direction in ("remove", "add")
    ]
    assert charged(line, mixed) >= math.ceil(max(values) * 1e9)
    assert charged(line, mixed) == pytest.approx(max(values) * 1e9, rel=1e-6)
    with pytest.raises(UnsupportedMechanism, match="renyi"):
        charged(line)
