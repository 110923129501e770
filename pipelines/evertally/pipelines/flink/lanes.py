"""A lane: one of a fixed number of places in which ticks close, by its own clock.

A lane keeps what is open, closes every tick once and in order, and says with a sequence number that it
does; the releaser refuses a lane that repeats itself. Lanes move between workers as the job is scaled;
their number never changes.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from evertally.counters.encoding import pack_integers, unpack_integers
from evertally.errors import IntegrityError
from evertally.pipelines.closings import TickSums
from evertally.pipelines.flink.keyed_state import ByteValue
from evertally.pipelines.flink.messages import ARRIVAL
from evertally.pipelines.kafka.aggregation import TickRule
from evertally.pipelines.kafka.sealed_records import Piece, Place
from evertally.pipelines.kafka.sums import encode_sums
from evertally.pipelines.sealing import Sealer

__all__ = ["HEAD", "Contributions", "LaneHead", "OpenSums", "assign_ticks", "cut_pieces"]

IntArray = NDArray[np.int64]
TickTotals = Mapping[int, Mapping[int, int]]
"""Exact sums by tick and declared position. Sensitive."""

HEAD: Final = 0
"""Place of the head among a lane's sealed states."""
_SUMS: Final = 1
_VERSION: Final = 1
_HEAD: Final = struct.Struct(">BQQ")
_TICK: Final = struct.Struct(">QBI")


class LaneHead(NamedTuple):
    """Where a lane stands. Public: functions of the clock.

    Attributes:
        open_tick: first tick that is not closed.
        sequence: how often the lane has closed ticks.
    """

    open_tick: int
    sequence: int

    def encode(self) -> bytes:
        """Bytes of one size at any tick.

        >>> LaneHead.decode(LaneHead(10**6, 7).encode())
        LaneHead(open_tick=1000000, sequence=7)
        """
        return _HEAD.pack(_VERSION, *self)

    @classmethod
    def decode(cls, data: bytes) -> LaneHead:
        """The inverse of `encode`. Raises IntegrityError for bytes of another version or size."""
        if len(data) != _HEAD.size or data[0] != _VERSION:
            raise IntegrityError("a lane's state is cut short, or of a version this program does not know")
        return cls(*_HEAD.unpack(data)[1:])


class Contributions(Protocol):
    """What is open in a lane."""

    def add(self, lane: int, rows: IntArray) -> None:
        """Take in rows of messages; ticks are assigned."""
        ...

    def close(self, lane: int, through: int) -> TickTotals:
        """Sums of the ticks up to `through` that hold anything; they are forgotten here."""
        ...


def assign_ticks(rows: IntArray, rule: TickRule, head: LaneHead, now_ms: int) -> IntArray:
    """The rows with the ticks in which they will be counted: never one that is closed."""
    arrival = (now_ms - rule.start_ms) // rule.tick_ms + 1
    rows[0] = np.maximum(np.where(rows[0] == ARRIVAL, arrival, rows[0]), head.open_tick)
    return rows


def cut_pieces(
    life: str,
    incarnation: int,
    lane: int,
    head: LaneHead,
    through: int,
    totals: TickTotals,
    positions: Sequence[Sequence[int]],
) -> tuple[list[tuple[int, Piece]], LaneHead]:
    """(shard, piece) of everything up to tick `through`, each shard's end of it included; the next head.

    Args:
        life: of the stream.
        incarnation: of the stream.
        lane: which source this is.
        head: before.
        through: last tick that is over; at least the open one.
        totals: sums of ticks that hold anything.
        positions: declared positions of each shard's keys.
    """
    pieces = []
    for shard, here in enumerate(positions):
        start, own = head.sequence, frozenset(here)
        for t in sorted(totals.keys() | {through}):
            sums = {position: n for position, n in totals.get(t, {}).items() if position in own}
            place = Place(life, incarnation, lane, t, t == through)
            pieces.append((shard, Piece(place, start, head.sequence + 1, encode_sums(sums, here))))
            start = head.sequence + 1
    return pieces, LaneHead(through + 1, head.sequence + 1)


class OpenSums:
    """Event level: exact sums of the open ticks, 8 bytes a key and open tick; `Contributions`.

    Guarantees:
        - sums never wrap around (tests/flink/test_flink_lanes.py).
    """

    def __init__(self, state: ByteValue, sealer: Sealer, keys: int) -> None:
        self._state: Final = state
        self._sealer: Final = sealer
        self._keys: Final = keys

    def add(self, lane: int, rows: IntArray) -> None:
        """See `Contributions`; rows are tick, key, sum."""
        sums = self._load(lane)
        for t in np.unique(rows[0]).tolist():
            here = rows[0] == t
            sums.setdefault(t, TickSums(1, self._keys)).add(rows[1, here], rows[2, here])
        self._store(lane, sums)

    def close(self, lane: int, through: int) -> TickTotals:
        """See `Contributions`."""
        sums = self._load(lane)
        closed = {t: sums.pop(t) for t in sorted(sums) if t <= through}
        if closed:
            self._store(lane, sums)
        return {t: _amounts(tick.rows(0, 1)[0]) for t, tick in closed.items()}

    def _load(self, lane: int) -> dict[int, TickSums]:
        sealed = self._state.value()
        if sealed is None:
            return {}
        data, at, sums = self._sealer.open(sealed, lane, _SUMS), 0, {}
        while at < len(data):
            t, wide, size = _TICK.unpack_from(data, at)
            body = data[at + _TICK.size : at + _TICK.size + size]
            sums[t] = TickSums(1, self._keys)
            if wide:
                for position, amount in enumerate(unpack_integers(body, self._keys)):
                    _add_wide(sums[t], position, amount)
            else:
                sums[t].add(np.arange(self._keys), np.frombuffer(body, "<i8").astype(np.int64))
            at += _TICK.size + size
        return sums

    def _store(self, lane: int, sums: Mapping[int, TickSums]) -> None:
        parts = []
        for t, tick in sums.items():
            row = tick.rows(0, 1)[0]
            wide = row.dtype == object
            body = pack_integers(row.tolist()) if wide else row.astype("<i8").tobytes()
            parts.append(_TICK.pack(t, wide, len(body)) + body)
        self._state.update(self._sealer.seal(b"".join(parts), lane, _SUMS))


def _amounts(row: NDArray[np.int64] | NDArray[np.object_]) -> dict[int, int]:
    return {position: amount for position, amount in enumerate(row.tolist()) if amount}


def _add_wide(sums: TickSums, position: int, amount: int) -> None:
    """Add an integer of any size in steps that int64 holds."""
    sign, rest = (1, amount) if amount >= 0 else (-1, -amount)
    while rest:
        step = min(rest, 2**62)
        sums.add(np.array([position]), np.array([sign * step]))
        rest -= step
