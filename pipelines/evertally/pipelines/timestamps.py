"""Time stamps of events: RFC 3339 with an offset, or epoch milliseconds. Nothing else is guessed.

The form is checked by a regular expression before anything is computed: `datetime.fromisoformat`
alone takes week dates, commas and any separator.
"""

from __future__ import annotations

import datetime
import re
import zoneinfo
from enum import Enum
from typing import Final

from evertally.errors import InvalidParameter

__all__ = ["BadTimestamp", "TimestampFault", "load_timezone", "parse_timestamp"]

_RFC3339: Final = re.compile(
    r"(\d{4}-\d{2}-\d{2})[Tt ]([01]\d|2[0-3]):([0-5]\d)(?::([0-5]\d|60)(?:\.(\d{1,9}))?)?"
    r"(?:([Zz])|([+-])([01]\d|2[0-3]):([0-5]\d))?",
    re.ASCII,
)
_EPOCH_MS: Final = re.compile(r"-?\d{1,15}", re.ASCII)
_EPOCH_DAY: Final = datetime.date(1970, 1, 1).toordinal()
_DAY_MS: Final = 86_400_000


class TimestampFault(Enum):
    """Why a time stamp cannot be used; the value is the dead letter's code."""

    MALFORMED = "timestamp_malformed"
    NO_OFFSET = "timestamp_without_offset"


class BadTimestamp(ValueError):
    """Raised for one event's time stamp; it carries the reason and never the text."""

    def __init__(self, fault: TimestampFault) -> None:
        super().__init__(fault.value)
        self.fault: Final = fault


def parse_timestamp(text: str, zone: datetime.tzinfo | None) -> int:
    """Epoch milliseconds of a time stamp, rounded down.

    Args:
        text: RFC 3339 (seconds optional, "T" or a space before the time), or epoch milliseconds.
        zone: what a time stamp without an offset means; None refuses it. Of the two readings of
            a repeated hour the earlier is taken.

    Raises:
        BadTimestamp: the text has no accepted form, names a day that does not exist, or needs a zone.

    >>> parse_timestamp("2013-01-01T05:00Z", None), parse_timestamp("2013-01-01T00:00:00.5-05:00", None)
    (1357016400000, 1357016400500)
    """
    match = _RFC3339.fullmatch(text)
    if match is None:
        if _EPOCH_MS.fullmatch(text) is None:
            raise BadTimestamp(TimestampFault.MALFORMED)
        return int(text)
    day_text, hour, minute, second, fraction, utc, sign, offset_hour, offset_minute = match.groups()
    if second == "60" and minute != "59":
        raise BadTimestamp(TimestampFault.MALFORMED)  # a leap second ends an hour, whatever the offset
    try:
        day = datetime.date.fromisoformat(day_text)
    except ValueError:
        raise BadTimestamp(TimestampFault.MALFORMED) from None
    of_day_ms = (int(hour) * 60 + int(minute)) * 60_000
    if second is not None:
        of_day_ms += int(second) * 1000
    if fraction is not None:
        of_day_ms += int(fraction[:3].ljust(3, "0"))
    local_ms = (day.toordinal() - _EPOCH_DAY) * _DAY_MS + of_day_ms
    if utc is not None:
        return local_ms
    if sign is not None:
        offset_ms = (int(offset_hour) * 60 + int(offset_minute)) * 60_000
        return local_ms - offset_ms if sign == "+" else local_ms + offset_ms
    if zone is None:
        raise BadTimestamp(TimestampFault.NO_OFFSET)
    return local_ms - _zone_offset_ms(day, int(hour), int(minute), zone)


def load_timezone(name: str) -> datetime.tzinfo:
    """The IANA time zone of that name. Raises InvalidParameter where this machine knows none."""
    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        raise InvalidParameter(
            "source.timezone", name, "an IANA time zone such as America/New_York"
        ) from None


def _zone_offset_ms(day: datetime.date, hour: int, minute: int, zone: datetime.tzinfo) -> int:
    moment = datetime.datetime(day.year, day.month, day.day, hour, minute, tzinfo=zone)
    offset = moment.utcoffset()
    if offset is None:
        raise BadTimestamp(TimestampFault.NO_OFFSET)
    return offset // datetime.timedelta(milliseconds=1)
