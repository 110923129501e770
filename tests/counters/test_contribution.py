"""Sensitivity of what a privacy unit may do, against brute force over neighbouring inputs."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from evertally.counters import Contribution, Grid, Rational
from evertally.errors import InvalidParameter, UnsupportedMechanism

FAST = Rational.from_weights((1, 4), (0.3, 0.2, 0.1, 0.4))  # R decays within a few dozen ticks
N = 600


def reach(differences: list[np.ndarray]) -> float:
    """Largest root of the summed squares of R applied to each counter's difference."""
    strategy = FAST.strategy_coefficients(N)
    return math.sqrt(sum(float(np.sum(np.convolve(strategy, x, "full")[:N] ** 2)) for x in differences))


def unit(*places: tuple[int, float]) -> np.ndarray:
    x = np.zeros(N)
    for t, value in places:
        x[t] += value
    return x


def test_one_event() -> None:
    assert Contribution(clip=3).sensitivity(FAST) == pytest.approx(reach([unit((0, 3))]), rel=1e-9)


@pytest.mark.parametrize("adjacency", ["add-remove", "replace-value", "replace"])
@pytest.mark.parametrize("lower", [0, -2])
def test_no_neighbouring_inputs_of_one_contribution_differ_by_more(adjacency: str, lower: int) -> None:
    bound = Contribution(clip=2, lower=lower, adjacency=adjacency).sensitivity(FAST)
    values = [v for v in (2.0, 1.0, 0.0, -1.0, -2.0) if v >= lower]
    worst = 0.0
    for a, b, shift, other_counter in itertools.product(values, values, (0, 1, 7, 300), (False, True)):
        if adjacency == "add-remove":
            differences = [unit((5, a))]
        elif adjacency == "replace-value":
            differences = [unit((5, a), (5, -b))]
        elif other_counter:
            differences = [unit((5, a)), unit((5 + shift, -b))]
        else:
            differences = [unit((5, a), (5 + shift, -b))]
        worst = max(worst, reach(differences))
    assert worst <= bound
    assert worst >= 0.99 * bound


def test_several_contributions_in_one_tick_scale_linearly() -> None:
    assert Contribution(per_tick=5).sensitivity(FAST) == pytest.approx(5 * Contribution().sensitivity(FAST))


def test_spreading_over_counters_never_exceeds_one_counter() -> None:
    bound = Contribution(participations=3, min_separation=4).sensitivity(FAST)
    apart = reach([unit((0, 1)), unit((4, 1)), unit((8, 1))])
    together = reach([unit((0, 1), (4, 1), (8, 1))])
    assert apart <= together <= bound * (1 + 1e-12)


class NotMonotone:
    """A factorization whose R has a negative coefficient: two participations are refused."""

    horizon = None
    mechanism_id = "test:not-monotone"

    def sensitivity_squared(self, k: int = 1, b: int = 1, horizon: int | None = None) -> float:  # noqa: ARG002
        if k > 1:
            raise UnsupportedMechanism("R is not positive")
        return 1.0


def test_replacement_costs_two_where_the_strategy_may_be_negative() -> None:
    contribution = Contribution(adjacency="replace")
    assert contribution.sensitivity(NotMonotone()) == pytest.approx(2.0)  # type: ignore[arg-type]  # the accounting alone
    assert contribution.sensitivity(FAST) == pytest.approx(math.sqrt(2 * FAST.sensitivity_squared()))
    with pytest.raises(UnsupportedMechanism):
        Contribution(participations=2).sensitivity(NotMonotone())  # type: ignore[arg-type]  # as above


def test_touched_counters() -> None:
    assert Contribution().touched_counters(16) == 1
    assert Contribution(adjacency="replace").touched_counters(16) == 2
    assert Contribution(participations=13).touched_counters(16) == 13
    assert Contribution(participations=13, per_tick=2).touched_counters(16) == 16


def test_values_are_clipped_into_the_range() -> None:
    assert [Contribution(clip=3).clip_value(v) for v in (-5, 0, 2, 9, 10**40)] == [0, 0, 2, 3, 3]
    assert [Contribution(clip=3, lower=-3).clip_value(v) for v in (-(10**40), -1, 4)] == [-3, -1, 3]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 2.5, True, np.int64(1), "1", None])
def test_a_value_that_is_no_exact_integer_is_not_clipped_into_the_range(value: object) -> None:
    with pytest.raises(InvalidParameter, match="value"):
        Contribution(clip=3, lower=-3).clip_value(value)  # type: ignore[arg-type]  # deliberately wrong


@pytest.mark.parametrize(
    "fields",
    [
        {"clip": 0},
        {"clip": -1},
        {"clip": 1.0},
        {"clip": math.inf},
        {"clip": math.nan},
        {"clip": 2**41},
        {"clip": True},
        {"clip": 2, "lower": -1},
        {"clip": 2, "lower": 1},
        {"participations": 0},
        {"participations": 1.5},
        {"min_separation": 0},
        {"per_tick": 0},
        {"adjacency": "swap"},
    ],
)
def test_unusable_bounds_are_refused_at_start(fields: dict[str, object]) -> None:
    with pytest.raises(InvalidParameter):
        Contribution(**fields)  # type: ignore[arg-type]  # deliberately wrong


def test_enormous_bounds_do_not_wrap() -> None:
    bounds = Contribution(clip=2**40, participations=2**40, per_tick=2**40, min_separation=1)
    with pytest.raises(InvalidParameter, match="sensitivity"):
        Grid.for_mu(FAST, 1.0, bounds.sensitivity(FAST))
    big = Contribution(clip=2**40, participations=2**40).sensitivity(FAST)
    assert big > 2.0**60
    assert math.isfinite(big)
