"""Budget amounts as integers: no sum of spends can drift, overrun or lose a small charge.

mu^2, Renyi values and epsilons are counted in units of 1e-9 (nano), deltas in units of 1e-18 (atto).
A cost is rounded up, a cap is rounded down, and every amount fits a signed 64-bit column.
"""

from __future__ import annotations

import math
import re
import sys
from fractions import Fraction
from typing import Final

from evertally.errors import InvalidParameter

__all__ = [
    "ATTO",
    "NANO",
    "Amount",
    "decimal_text",
    "exact",
    "mu_of_units",
    "nearest_double",
    "root_up",
    "units_down",
    "units_up",
]

NANO: Final = 10**9
ATTO: Final = 10**18
Amount = int | float | str

_LARGEST: Final = 2**62
_DECIMAL: Final = re.compile(r"[0-9]{1,40}(\.[0-9]{1,40})?([eE][+-]?[0-9]{1,4})?", re.ASCII)
_EXPECTED: Final = "a finite number > 0, or its decimal text"


def exact(field: str, value: object) -> Fraction:
    """The exact value of a positive amount.

    Floats must be finite, positive and normal; text must be plain decimal notation. Raises
    InvalidParameter by name for NaN, infinities, zero, negatives, subnormals, booleans and other text.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | str | Fraction):
        raise InvalidParameter(field, value, _EXPECTED)
    if isinstance(value, float):
        if not (math.isfinite(value) and value >= sys.float_info.min):
            raise InvalidParameter(field, value, _EXPECTED)
        return Fraction(value)
    if isinstance(value, str) and not _DECIMAL.fullmatch(value):
        raise InvalidParameter(field, value[:64], _EXPECTED)
    amount = Fraction(value)
    if amount <= 0:
        raise InvalidParameter(field, str(value)[:64], _EXPECTED)
    return amount


def nearest_double(field: str, value: object) -> float:
    """The double nearest to a positive amount. Raises InvalidParameter below and beyond all doubles.

    >>> nearest_double("sigma", "2.50")
    2.5
    """
    amount = exact(field, value)
    if not sys.float_info.min <= amount <= sys.float_info.max:
        raise InvalidParameter(field, str(value)[:64], "a number that a double can hold")
    return float(amount)


def decimal_text(field: str, value: Amount) -> str:
    """The value as the text that is stored: what was written, or the shortest text of a float.

    >>> decimal_text("delta", 1e-6), decimal_text("delta", "0.000001")
    ('1e-06', '0.000001')
    """
    exact(field, value)
    return value if isinstance(value, str) else repr(value)


def units_up(field: str, value: Amount | Fraction, unit: int = NANO) -> int:
    """A cost in whole units, rounded up: never 0, however small.

    >>> units_up("epsilon", "1e-400"), units_up("epsilon", "0.1")
    (1, 100000000)
    """
    return _bounded(field, value, math.ceil(exact(field, value) * unit))


def units_down(field: str, value: Amount, unit: int = NANO) -> int:
    """A cap in whole units, rounded down. Raises InvalidParameter for a cap below one unit."""
    units = math.floor(exact(field, value) * unit)
    if units < 1:
        raise InvalidParameter(field, str(value)[:64], f"a cap of at least 1/{unit}")
    return _bounded(field, value, units)


def root_up(square: Fraction) -> Fraction:
    """A number whose square is at least `square` >= 0, relatively at most 2^-60 above the root.

    >>> root_up(Fraction(9, 4))
    Fraction(3, 2)
    """
    shift = 2 * max(64, 64 + square.denominator.bit_length())
    scaled = -((-square.numerator << shift) // square.denominator)
    root = math.isqrt(scaled)
    return Fraction(root + (root * root < scaled), 1 << (shift // 2))


def mu_of_units(units: int) -> float:
    """The largest double mu with mu^2 <= units * 1e-9: a Gaussian line of it fits into `units`.

    >>> mu_of_units(10**9)
    1.0
    """
    if units < 1:
        raise InvalidParameter("units", units, "at least 1 unit of mu^2")
    mu = math.sqrt(units / NANO)
    while Fraction(mu) ** 2 * NANO > units:
        mu = math.nextafter(mu, 0.0)
    return mu


def _bounded(field: str, value: object, units: int) -> int:
    if units > _LARGEST:
        raise InvalidParameter(field, str(value)[:64], f"an amount of at most {_LARGEST} units")
    return units
