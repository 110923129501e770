"""Values: exact decimals in a declared unit, clipped, or refused by name."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evertally.errors import InvalidParameter
from evertally.pipelines.dead_letters import Reason
from evertally.pipelines.events import ValueRule

CENTS = ValueRule(Decimal("0.01"), 0, 10_000)
SIGNED = ValueRule(Decimal(1), -5, 5)


@pytest.mark.parametrize(
    ("rule", "text", "expected"),
    [
        (CENTS, "1.25", 125),
        (CENTS, "0.005", 0),  # half to even
        (CENTS, "0.015", 2),
        (CENTS, "1e2", 10_000),
        (CENTS, "1e9", 10_000),
        (CENTS, "+.5", 50),
        (CENTS, "-0", 0),
        (CENTS, "-0.001", Reason.VALUE_NEGATIVE),
        (CENTS, "-1e-400", Reason.VALUE_NEGATIVE),
        (CENTS, "1e-400", 0),
        (CENTS, "1e-999999999999999999999", Reason.VALUE_MALFORMED),
        (CENTS, "1e400", Reason.VALUE_TOO_LARGE),
        (CENTS, "1e999999999999999999999", Reason.VALUE_TOO_LARGE),
        (CENTS, "92233720368547758.08", Reason.VALUE_TOO_LARGE),  # 2^63 units
        (CENTS, "92233720368547758.07", 10_000),
        (CENTS, "NaN", Reason.VALUE_NOT_FINITE),
        (CENTS, "-Infinity", Reason.VALUE_NOT_FINITE),
        (CENTS, "12abc", Reason.VALUE_MALFORMED),
        (CENTS, "1_000", Reason.VALUE_MALFORMED),
        (CENTS, "0x10", Reason.VALUE_MALFORMED),
        (CENTS, "١", Reason.VALUE_MALFORMED),
        (SIGNED, "-9", -5),
        (SIGNED, "3", 3),
        (SIGNED, "-1e400", Reason.VALUE_TOO_LARGE),
    ],
)
def test_values(rule: ValueRule, text: str, expected: int | Reason) -> None:
    assert rule.contribution(text) == expected


@given(st.fractions(-10, 10_000, max_denominator=10**6), st.sampled_from(["1", "0.25", "0.01", "3"]))
def test_rounding_is_exact(value: Fraction, unit: str) -> None:
    rule = ValueRule(Decimal(unit), -(2**40), 2**40)
    text = str(Decimal(value.numerator) / Decimal(value.denominator))
    assert rule.contribution(text) == round(Fraction(text) / Fraction(unit))


@pytest.mark.parametrize("unit", ["0", "-1", "NaN", "Infinity", "1e30"])
def test_unusable_units_are_refused(unit: str) -> None:
    with pytest.raises(InvalidParameter):
        ValueRule(Decimal(unit), 0, 1)


def test_the_lower_end_is_zero_or_minus_clip() -> None:
    with pytest.raises(InvalidParameter):
        ValueRule(Decimal(1), -1, 5)
