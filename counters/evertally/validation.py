"""Checks on parameters: NaN, infinities, subnormals and wrong types are refused by name.

Each function returns the checked value in its plain Python type, or raises `InvalidParameter`.
`x < 0` is False for NaN, so every check here states what is accepted instead of what is not.
"""

from __future__ import annotations

import ipaddress
import math
import numbers
import sys

from evertally.errors import InvalidParameter

__all__ = ["integer", "is_loopback", "one_of", "positive_integer", "positive_real", "probability", "real"]

_SMALLEST_NORMAL = sys.float_info.min


def real(field: str, value: object, *, low: float = -math.inf, high: float = math.inf) -> float:
    """Return `value` as a finite float in [low, high]."""
    expected = "a finite number"
    if low != -math.inf or high != math.inf:
        expected += f" in [{low:g}, {high:g}]"
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise InvalidParameter(field, value, expected)
    try:
        x = float(value)
    except OverflowError:
        raise InvalidParameter(field, "an integer beyond the double range", expected) from None
    if not (math.isfinite(x) and low <= x <= high):
        raise InvalidParameter(field, value, expected)
    return x


def positive_real(field: str, value: object, *, high: float = math.inf) -> float:
    """Return `value` as a finite, positive, normal (not subnormal) float that is at most `high`."""
    expected = "a finite number > 0" + (f" and <= {high:g}" if high != math.inf else "")
    x = _as_real(field, value, expected)
    if not _SMALLEST_NORMAL <= x <= high:
        raise InvalidParameter(field, value, expected)
    return x


def probability(field: str, value: object) -> float:
    """Return `value` as a float strictly between 0 and 1, not subnormal."""
    expected = "a number strictly between 0 and 1"
    x = _as_real(field, value, expected)
    if not _SMALLEST_NORMAL <= x < 1.0:
        raise InvalidParameter(field, value, expected)
    return x


def integer(field: str, value: object, *, low: int | None = None, high: int | None = None) -> int:
    """Return `value` as an int in [low, high]; floats and booleans are refused, even integral ones."""
    expected = "an integer"
    if low is not None and high is not None:
        expected += f" in [{low}, {high}]"
    elif low is not None:
        expected += f" >= {low}"
    elif high is not None:
        expected += f" <= {high}"
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise InvalidParameter(field, value, expected)
    n = int(value)
    if (low is not None and n < low) or (high is not None and n > high):
        raise InvalidParameter(field, value, expected)
    return n


def positive_integer(field: str, value: object, *, high: int | None = None) -> int:
    """Return `value` as an int >= 1 (and <= high, where given)."""
    return integer(field, value, low=1, high=high)


def one_of(field: str, value: object, choices: tuple[str, ...]) -> str:
    """Return `value` when it is one of `choices`."""
    if not isinstance(value, str) or value not in choices:
        raise InvalidParameter(field, value, "one of " + ", ".join(choices))
    return value


def is_loopback(host: str) -> bool:
    """True for localhost and for addresses of the loopback networks.

    >>> is_loopback("127.0.0.1"), is_loopback("::1"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _as_real(field: str, value: object, expected: str) -> float:
    x = real(field, value) if not isinstance(value, float) else value
    if not math.isfinite(x):
        raise InvalidParameter(field, value, expected)
    return x
