"""Many RFC 3339 time stamps at once. Only a faster way to what `parse_timestamp` says, row by row.

A column whose texts have one length and one of the usual forms is read as a matrix of characters.
Every row that does not fit the form exactly is left to `parse_timestamp`.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

__all__ = ["parse_uniform"]

IntArray = NDArray[np.int64]

_MINUTE_FORM: Final = "0000-00-00T00:00"
# what may follow the minute; 0 stands for a digit, "." and ":" for themselves
_SECONDS: Final = ("", ":00", ":00.000", ":00.000000", ":00.000000000")
_OFFSETS: Final = ("Z", "+00:00")
_FORMS: Final = {
    len(_MINUTE_FORM + seconds + offset): (_MINUTE_FORM + seconds, offset)
    for seconds in _SECONDS
    for offset in _OFFSETS
}
_DAYS_IN_MONTH: Final = np.array([0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31], np.int64)
_DAY_MS: Final = 86_400_000


def parse_uniform(characters: NDArray[np.uint8]) -> tuple[IntArray, NDArray[np.bool_]] | None:
    """Epoch milliseconds of each row, and which rows are valid; None where the length fits no form.

    Args:
        characters: ASCII characters, one time stamp a row, uint8, shape (rows, length).

    >>> from evertally.pipelines.text_columns import character_matrix
    >>> times, valid = parse_uniform(character_matrix(["2013-01-01T05:00Z", "2013-02-30T05:00Z"]))
    >>> times[0], valid.tolist()
    (np.int64(1357016400000), [True, False])
    """
    form, offset = _FORMS.get(characters.shape[1], ("", ""))
    if not form:
        return None
    columns = np.ascontiguousarray(characters.T)
    digits = columns - np.uint8(48)  # unsigned: what is below "0" wraps to a large number
    template = np.frombuffer(form.encode("ascii"), np.uint8)
    is_digit = template == ord("0")
    fixed = np.nonzero(~is_digit)[0]
    valid = (digits[np.nonzero(is_digit)[0]] <= 9).all(axis=0)
    valid &= (columns[fixed] == template[fixed, None]).all(axis=0)
    year = _number(digits[0:4])
    month, day, hour, minute = (_number(digits[place : place + 2]) for place in (5, 8, 11, 14))
    second = _number(digits[17:19]) if len(form) > 16 else np.zeros_like(year)
    milli = _number(digits[20:23]) if len(form) > 19 else np.zeros_like(year)
    valid &= (year >= 1) & (month >= 1) & (month <= 12) & (day >= 1) & (hour <= 23) & (minute <= 59)
    valid &= second <= 59  # a leap second is left to the row's own parser
    month = np.where(valid, month, 1)
    leap = (year % 4 == 0) & ((year % 100 != 0) | (year % 400 == 0))
    valid &= day <= _DAYS_IN_MONTH[month] + (leap & (month == 2))
    of_day_ms = ((hour * 60 + minute) * 60 + second) * 1000 + milli
    time_ms = _epoch_day(year, month, day) * _DAY_MS + of_day_ms
    if offset == "Z":
        valid &= columns[len(form)] == ord("Z")
        return time_ms, valid
    sign = columns[len(form)]
    valid &= (sign == ord("+")) | (sign == ord("-"))
    valid &= columns[len(form) + 3] == ord(":")
    places = digits[[len(form) + 1, len(form) + 2, len(form) + 4, len(form) + 5]]
    valid &= (places <= 9).all(axis=0)
    hours, minutes = _number(places[:2]), _number(places[2:])
    valid &= (hours <= 23) & (minutes <= 59)
    shift_ms = (hours * 60 + minutes) * 60_000
    return np.where(sign == ord("+"), time_ms - shift_ms, time_ms + shift_ms), valid


def _number(digits: NDArray[np.uint8]) -> IntArray:
    value = digits[0].astype(np.int64)
    for digit in digits[1:]:
        value = value * 10 + digit
    number: IntArray = value
    return number


def _epoch_day(year: IntArray, month: IntArray, day: IntArray) -> IntArray:
    """Days since 1970-01-01 in the Gregorian calendar, counted in years that begin in March."""
    shifted = year - (month <= 2)
    era_year = shifted % 400
    month_from_march = (month + 9) % 12
    day_of_year = (153 * month_from_march + 2) // 5 + day - 1
    day_of_era = era_year * 365 + era_year // 4 - era_year // 100 + day_of_year
    epoch_day: IntArray = (shifted // 400) * 146_097 + day_of_era - 719_468
    return epoch_day
