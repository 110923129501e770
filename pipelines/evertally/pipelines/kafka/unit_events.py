"""Events on their way to the partition of their privacy unit: numbers, routing, bytes. Sensitive.

A unit's number is 62 bits of HMAC-SHA256 under a key of its own. Units whose numbers collide are
bounded together: fewer of their events count, and the bound of each still holds.

Every body has room for the same number of events: the length of a record says nothing of how many it holds.
"""

from __future__ import annotations

import hmac
import struct
from collections.abc import Callable
from typing import Final, NoReturn

import numpy as np
from numpy.typing import NDArray

from evertally.errors import IntegrityError
from evertally.pipelines.events import EventColumns

__all__ = ["UnitEvents", "decode_events", "unit_numbers"]

IntArray = NDArray[np.int64]
_ROW_BYTES: Final = 24
_ROWS_A_BODY: Final = 256


def unit_numbers(key: bytes) -> Callable[[str], int]:
    """A function from a unit's text to its number in [0, 2^62)."""

    def number(unit: str) -> int:
        digest = hmac.digest(key, unit.encode("utf-8", "surrogatepass"), "sha256")
        return int.from_bytes(digest[:8], "big") >> 2

    return number


class UnitEvents:
    """Events of each tick, going to the partition of their unit; an `Accumulator`."""

    def __init__(self, partitions: int) -> None:
        self.destinations: Final = partitions
        self._events: dict[int, list[IntArray]] = {}

    def add(self, t: int, events: EventColumns) -> None:
        """See `Accumulator`."""
        assert events.units is not None
        values = np.ones_like(events.keys) if events.values is None else events.values
        self._events.setdefault(t, []).append(np.stack((events.units, events.keys, values)))

    def ticks(self) -> set[int]:
        """See `Accumulator`."""
        return set(self._events)

    def take(self, t: int, destination: int) -> list[bytes]:
        """See `Accumulator`."""
        parts = [part[:, part[0] % self.destinations == destination] for part in self._events.get(t, [])]
        rows = np.concatenate(parts, axis=1) if parts else np.empty((3, 0), np.int64)
        starts = range(0, max(1, rows.shape[1]), _ROWS_A_BODY)
        return [_encode_events(rows[:, start : start + _ROWS_A_BODY]) for start in starts]

    def clear(self) -> None:
        """See `Accumulator`."""
        self._events = {}

    def __repr__(self) -> str:
        return "UnitEvents(<redacted>)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("events are not pickled")


def _encode_events(rows: IntArray) -> bytes:
    padded = np.zeros((3, _ROWS_A_BODY), ">i8")
    padded[:, : rows.shape[1]] = rows
    return struct.pack(">I", rows.shape[1]) + padded.tobytes()


def decode_events(body: bytes) -> IntArray:
    """Rows unit, key, value of a body, shape (3, events). Raises IntegrityError for other bytes."""
    try:
        (count,) = struct.unpack_from(">I", body)
    except struct.error:
        raise IntegrityError("events on a topic of the stream are cut short") from None
    if len(body) != 4 + _ROWS_A_BODY * _ROW_BYTES or count > _ROWS_A_BODY:
        raise IntegrityError("events on a topic of the stream are cut short")
    rows = np.frombuffer(body, ">i8", offset=4).astype(np.int64).reshape(3, _ROWS_A_BODY)
    return rows[:, :count]
