"""Ticks: fixed lengths of UTC time, numbered from 1. A tick is public; which events fall into it is not."""

from __future__ import annotations

import datetime
import functools
from dataclasses import dataclass
from typing import Final

from evertally.errors import InvalidParameter
from evertally.validation import integer, positive_integer

__all__ = ["FIRST_MS", "LAST_MS", "TickGrid", "format_ms", "parse_ms"]

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
FIRST_MS: Final = -62_135_596_800_000
"""0001-01-01T00:00:00Z: releases can write no earlier time."""
LAST_MS: Final = 253_402_300_799_999
"""9999-12-31T23:59:59.999Z: nor a later one."""


@dataclass(frozen=True, slots=True)
class TickGrid:
    """Ticks of `tick_ms` milliseconds: tick t covers [start + (t-1) tick, start + t tick).

    Attributes:
        start_ms: start of tick 1, epoch milliseconds.
        tick_ms: length of a tick in milliseconds; daylight saving never changes it.
        ticks: number of ticks, which fixes the end.

    >>> grid = TickGrid.between(0, 7_200_000, 3_600_000)
    >>> grid.ticks, grid.end_ms(1)
    (2, 3600000)
    """

    start_ms: int
    tick_ms: int
    ticks: int

    def __post_init__(self) -> None:
        integer("start_ms", self.start_ms, low=FIRST_MS, high=LAST_MS)
        positive_integer("tick_ms", self.tick_ms)
        positive_integer("ticks", self.ticks)

    @classmethod
    def between(cls, start_ms: int, end_ms: int, tick_ms: int) -> TickGrid:
        """The ticks of [start, end). Raises InvalidParameter unless it is a whole number of ticks."""
        for field, time_ms in (("start", start_ms), ("end", end_ms)):
            if not FIRST_MS <= time_ms <= LAST_MS:
                raise InvalidParameter(
                    field, f"{time_ms} ms since 1970", "a time of the years 1 to 9999 in UTC"
                )
        length = end_ms - start_ms
        if length <= 0 or length % tick_ms:
            raise InvalidParameter(
                "end", format_ms(end_ms), f"start plus a whole number (> 0) of ticks of {tick_ms / 1000:g} s"
            )
        return cls(start_ms, tick_ms, length // tick_ms)

    def end_ms(self, t: int) -> int:
        """End of tick t, epoch milliseconds."""
        return self.start_ms + t * self.tick_ms

    @property
    def last_ms(self) -> int:
        """End of the last tick, epoch milliseconds; no event at or after it is counted."""
        return self.end_ms(self.ticks)


@functools.lru_cache(maxsize=1024)
def format_ms(ms: int) -> str:
    """Epoch milliseconds as RFC 3339 in UTC, with a fraction only where there is one.

    >>> format_ms(1357016400000)
    '2013-01-01T05:00:00Z'
    """
    moment = _EPOCH + datetime.timedelta(milliseconds=ms)
    text = moment.replace(tzinfo=None, microsecond=0).isoformat()
    return f"{text}.{ms % 1000:03d}Z" if ms % 1000 else f"{text}Z"


@functools.lru_cache(maxsize=1024)
def parse_ms(text: str) -> int:
    """The inverse of `format_ms`. Raises ValueError for any other form."""
    moment = datetime.datetime.fromisoformat(text)
    ms = (moment - _EPOCH) // datetime.timedelta(milliseconds=1)
    if not FIRST_MS <= ms <= LAST_MS or format_ms(ms) != text:
        raise ValueError("not a time written by format_ms")
    return ms
