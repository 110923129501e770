from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import pytest

from evertally.accountants.budget import STATEMENT, Scope
from evertally.accountants.budget.filters import gaussian_cap
from evertally.errors import InvalidParameter

BASE: dict[str, Any] = {
    "name": "s",
    "unit": "event",
    "adjacency": "add-remove",
    "epsilon_cap": "1",
    "delta_cap": "1e-6",
}


def test_delta_is_split_between_conversion_and_lines() -> None:
    scope = Scope(**BASE)
    assert scope.delta_lines == "1E-9"
    assert scope.caps().delta == 10**9  # atto
    assert scope.caps().main == gaussian_cap(1.0, 9.99e-7) < gaussian_cap(1.0, 1e-6)


def test_epsilon_lines_are_subtracted_in_advance() -> None:
    scope = Scope(**BASE, epsilon_lines="0.25")
    assert scope.caps().epsilon == 250_000_000
    assert scope.caps().main == Scope(**{**BASE, "epsilon_cap": "0.75"}).caps().main


def test_the_same_numbers_in_any_form_make_the_same_caps() -> None:
    as_floats = Scope(**{**BASE, "epsilon_cap": 1.0, "delta_cap": 1e-6})
    assert as_floats.caps().main == pytest.approx(Scope(**BASE).caps().main, rel=1e-9)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[("epsilon_cap", x) for x in (0, -1, math.nan, math.inf, 5e-324, "1e-400", "x", None, "1e400")],
        *[("delta_cap", x) for x in (0, 1, 2.0, math.nan, 5e-324, "1e-400", None)],
        *[("delta_lines", x) for x in ("1e-6", "2e-6", 0, "1e-19")],
        *[("epsilon_lines", x) for x in ("1", "2", math.nan, -1)],
        ("adjacency", "swap"),
        ("unit", ""),
        ("unit", "a b"),
        ("name", "../x"),
        ("filter", "best-order"),
        ("order", 16),
    ],
)
def test_bad_scopes_are_refused(field: str, value: object) -> None:
    with pytest.raises(InvalidParameter):
        Scope(**{**BASE, field: value})


def test_groups_only_where_the_parallel_rule_is_a_theorem() -> None:
    Scope(**BASE, disjoint=("carriers",))
    for change in ({"unit": "aircraft"}, {"adjacency": "replace"}, {"filter": "renyi", "order": "32"}):
        with pytest.raises(InvalidParameter):
            Scope(**{**BASE, "epsilon_cap": "8", **change}, disjoint=("carriers",))


def test_renewing_scopes_say_so_in_their_name() -> None:
    with pytest.raises(InvalidParameter, match="without bound"):
        Scope(**BASE, renews="day")
    Scope(**{**BASE, "name": "renewing-daily-2013-01-01"}, renews="day")


def test_scope_definition_reads_back() -> None:
    scope = Scope(**{**BASE, "filter": "renyi", "order": 32, "epsilon_cap": 3.5})
    assert scope.renyi_order == 32.0
    assert Fraction(str(scope.epsilon_cap)) == Fraction(7, 2)
    assert '"order":"32"' in scope.definition()


def test_statement_says_that_spent_is_no_guarantee() -> None:
    assert "The guarantee is the cap" in STATEMENT
