from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evertally.accountants.budget.amounts import (
    ATTO,
    decimal_text,
    exact,
    mu_of_units,
    nearest_double,
    root_up,
    units_down,
    units_up,
)
from evertally.errors import InvalidParameter

REFUSED: list[object] = [
    math.nan,
    math.inf,
    -math.inf,
    0,
    0.0,
    -0.0,
    -1,
    -1e-9,
    5e-324,
    2.2e-308,
    True,
    None,
    "nan",
    "inf",
]
REFUSED += ["", " 1", "1 ", "-1", "+1", "0", "0.0", "1_0", "0x1", "1/3", "١", "1e99999", b"1", 1j, "1" * 60]


@pytest.mark.parametrize("value", REFUSED, ids=repr)
def test_useless_amounts_are_refused_by_name(value: object) -> None:
    with pytest.raises(InvalidParameter) as refused:
        exact("epsilon_cap", value)
    assert refused.value.field == "epsilon_cap"


def test_tiny_costs_are_rounded_up_and_tiny_caps_refused() -> None:
    assert units_up("x", "1e-400") == 1
    assert units_up("x", 2.3e-308) == 1
    for tiny in ("1e-400", 2.3e-308, "9.9e-10"):
        with pytest.raises(InvalidParameter):
            units_down("x", tiny)


def test_amounts_beyond_a_column_are_refused_not_wrapped() -> None:
    for huge in ("1e400", 1.7e308, 2**63):
        with pytest.raises(InvalidParameter):
            units_up("x", huge)
        with pytest.raises(InvalidParameter):
            units_down("x", huge)


@given(st.fractions(min_value=Fraction(1, 10**9), max_value=10**6))
def test_costs_are_never_below_and_caps_never_above(value: Fraction) -> None:
    assert units_up("x", value) >= value * 10**9
    text = f"{float(value)!r}"
    assert units_down("x", text) <= Fraction(text) * 10**9
    if value < 4:
        assert 0 <= units_up("x", text, ATTO) - Fraction(text) * ATTO < 1


@given(st.floats(min_value=1e-300, max_value=1e300))
def test_text_of_a_float_is_the_float(value: float) -> None:
    assert float(decimal_text("x", value)) == value


@given(st.fractions(min_value=0, max_value=10**9))
def test_root_is_above_and_close(square: Fraction) -> None:
    root = root_up(square)
    assert root**2 >= square
    assert root**2 <= square * (1 + Fraction(1, 2**59))


@given(st.integers(min_value=1, max_value=2**62))
def test_mu_of_units_is_the_largest_that_fits(units: int) -> None:
    mu = mu_of_units(units)
    assert Fraction(mu) ** 2 * 10**9 <= units
    assert Fraction(math.nextafter(math.nextafter(mu, 9e9), 9e9)) ** 2 * 10**9 > units


@pytest.mark.parametrize("text", ["1e309", "1.7976931348623158e308", "2.2e-308", "1e-400", "9" * 40 + "e999"])
def test_what_no_double_holds_is_refused_by_name(text: str) -> None:
    with pytest.raises(InvalidParameter, match="sigma"):
        nearest_double("sigma", text)


@given(st.floats(min_value=2.0**-1022, max_value=1.7976931348623157e308))
def test_the_nearest_double_of_a_doubles_text_is_itself(value: float) -> None:
    assert nearest_double("sigma", repr(value) if "e" not in repr(value) else value) == value
