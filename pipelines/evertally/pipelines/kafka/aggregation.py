"""Events of one input partition to partial sums of ticks. No state outlives a commit.

At each commit the sums so far leave as pieces together with the partition's offset, in one Kafka
transaction. What remains is where the partition stands and which tick is open: both travel in the
group's committed offset, so that a new owner goes on where the old one stopped.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NoReturn, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from evertally.errors import IntegrityError
from evertally.pipelines.events import EventColumns
from evertally.pipelines.kafka.sealed_records import Piece, Place
from evertally.pipelines.kafka.sums import encode_sums

__all__ = ["Accumulator", "OpenTick", "PartitionTally", "ShardSums", "TickRule", "positions_of"]

IntArray = NDArray[np.int64]

_NUMBER: Final = re.compile(r"[0-9]{1,19}", re.ASCII)


@dataclass(frozen=True, slots=True)
class TickRule:
    """Which tick an event belongs to, and when a tick closes. By the clock alone.

    Attributes:
        start_ms, tick_ms: the stream's ticks.
        lateness_ms: a tick closes so long after its end; 0 by arrival.
        skew_ms: event time only: events further in the future than this are refused; None by arrival.
    """

    start_ms: int
    tick_ms: int
    lateness_ms: int = 0
    skew_ms: int | None = None

    @property
    def by_arrival(self) -> bool:
        """Whether an event belongs to the tick in which it arrives."""
        return self.skew_ms is None

    def closed_through(self, now_ms: int) -> int:
        """Last tick that is over; 0 before the first one is.

        >>> rule = TickRule(0, 1000, lateness_ms=500, skew_ms=0)
        >>> rule.closed_through(1499), rule.closed_through(1500)
        (0, 1)
        """
        return max(0, (now_ms - self.lateness_ms - self.start_ms) // self.tick_ms)

    def next_close_ms(self, now_ms: int) -> int:
        """When the next tick closes."""
        return self.start_ms + (self.closed_through(now_ms) + 1) * self.tick_ms + self.lateness_ms

    def latest_tick(self, now_ms: int) -> int:
        """Last tick that an event which comes now may have; less than 1 before the stream starts."""
        return (now_ms + (self.skew_ms or 0) - self.start_ms) // self.tick_ms + 1

    def ticks(self, time_ms: IntArray) -> IntArray:
        """Tick of each time stamp."""
        ticks: IntArray = (time_ms - self.start_ms) // self.tick_ms + 1
        return ticks


@dataclass(frozen=True, slots=True)
class OpenTick:
    """The text that travels with a committed offset: incarnation, life, first open tick. Public."""

    life: str
    incarnation: int
    t: int

    def encode(self) -> str:
        """As the broker keeps it."""
        return f"evertally/1 {self.life} {self.incarnation} {self.t}"

    @classmethod
    def decode(cls, text: str) -> Self:
        """Read it back. Raises IntegrityError for text that is not ours."""
        words = text.split(" ")
        numbers = [word for word in words[2:] if _NUMBER.fullmatch(word)]
        if len(words) == 4 and words[0] == "evertally/1" and len(numbers) == 2:
            return cls(words[1], int(numbers[0]), int(numbers[1]))
        raise IntegrityError("the group's committed offsets were written by another program")

    def within(self, life: str, incarnation: int) -> int:
        """The open tick in the running incarnation: 1 where the text is of an earlier one.

        Raises IntegrityError where the stream was created again under the same name.
        """
        if self.incarnation == incarnation and self.life == life:
            return self.t
        if self.incarnation < incarnation:
            return 1
        raise IntegrityError(
            "the group's committed offsets belong to another life of this stream: was its ledger replaced?"
        )


class Accumulator(Protocol):
    """Open contributions of one input partition, by tick and destination. Sensitive."""

    @property
    def destinations(self) -> int:
        """Number of partitions of the topic that the bodies go to; each gets its end of every tick."""
        ...

    def add(self, t: int, events: EventColumns) -> None:
        """Take in events of one tick."""
        ...

    def ticks(self) -> set[int]:
        """Ticks that hold something."""
        ...

    def take(self, t: int, destination: int) -> list[bytes]:
        """The bodies for one destination, at least one, all of one public length."""
        ...

    def clear(self) -> None:
        """Forget everything, after it was committed."""
        ...


class ShardSums:
    """Exact sums of each tick, going to the shard of each key."""

    def __init__(self, shard_of: Sequence[int], shards: int) -> None:
        self.destinations: Final = shards
        self._shard_of: Final = shard_of
        self._positions: Final = positions_of(shard_of, shards)
        self._sums: dict[int, dict[int, int]] = {}

    def add(self, t: int, events: EventColumns) -> None:
        """See `Accumulator`. Contributions are below 2^41 each and a batch below 2^20 of them."""
        counted = np.zeros(len(self._shard_of), np.int64)
        np.add.at(counted, events.keys, 1 if events.values is None else events.values)
        sums = self._sums.setdefault(t, {})
        for position in np.nonzero(counted)[0].tolist():
            sums[position] = sums.get(position, 0) + int(counted[position])

    def ticks(self) -> set[int]:
        """See `Accumulator`."""
        return set(self._sums)

    def take(self, t: int, destination: int) -> list[bytes]:
        """See `Accumulator`."""
        sums = self._sums.get(t, {})
        here = {p: amount for p, amount in sums.items() if self._shard_of[p] == destination}
        return [encode_sums(here, self._positions[destination])]

    def clear(self) -> None:
        """See `Accumulator`."""
        self._sums = {}

    def __repr__(self) -> str:
        return "ShardSums(<redacted>)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("exact sums are not pickled")


class PartitionTally:
    """What one input partition has contributed since its last commit.

    Guarantees:
        - an event is in exactly one tick, never in one that was ended
          (tests/kafka/test_aggregation.py).
    """

    def __init__(
        self, partition: int, position: int, open_tick: int, rule: TickRule, accumulator: Accumulator
    ) -> None:
        self._partition: Final = partition
        self.position = position
        self._start = position
        self.open_tick = open_tick
        self._rule: Final = rule
        self._open: Final = accumulator
        self.rows = 0

    def add(self, events: EventColumns, stop: int) -> None:
        """Count events; `stop` is the offset behind the last record they came from."""
        if len(events.keys):
            ticks = np.maximum(self._rule.ticks(events.time_ms), self.open_tick)
            distinct = np.unique(ticks).tolist()
            for t in distinct:
                self._open.add(t, events if len(distinct) == 1 else _rows(events, ticks == t))
        self.rows += len(events.keys)
        self.position = stop

    def dirty(self) -> bool:
        """Whether records were read since the last commit."""
        return self.position != self._start

    def cut(self, life: str, incarnation: int, closed_through: int) -> list[tuple[int, Piece]]:
        """(destination, piece) of everything since the last commit; ends ticks up to `closed_through`.

        Every destination gets at least one piece; the first one it gets covers the whole range of offsets.
        """
        ends = closed_through >= self.open_tick
        ticks = self._open.ticks() | ({closed_through} if ends else set()) or {self.open_tick}
        pieces = []
        for destination in range(self._open.destinations):
            start = self._start
            for t in sorted(ticks):
                *bodies, last = self._open.take(t, destination)
                for body in bodies:
                    place = Place(life, incarnation, self._partition, t, False)
                    pieces.append((destination, Piece(place, start, self.position, body)))
                    start = self.position
                place = Place(life, incarnation, self._partition, t, ends and t == closed_through)
                pieces.append((destination, Piece(place, start, self.position, last)))
                start = self.position
        return pieces

    def committed(self, closed_through: int) -> None:
        """The pieces of the last `cut` are durable."""
        self._start = self.position
        self.open_tick = max(self.open_tick, closed_through + 1)
        self._open.clear()
        self.rows = 0

    def __repr__(self) -> str:
        return f"PartitionTally(partition={self._partition}, open_tick={self.open_tick}, <redacted>)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a tally holds exact sums and is not pickled")


def positions_of(shard_of: Sequence[int], shards: int) -> list[list[int]]:
    """The declared positions of each shard's keys.

    >>> positions_of([0, 1, 0], 2)
    [[0, 2], [1]]
    """
    places: list[list[int]] = [[] for _ in range(shards)]
    for position, shard in enumerate(shard_of):
        places[shard].append(position)
    return places


def _rows(events: EventColumns, rows: NDArray[np.bool_]) -> EventColumns:
    return EventColumns(
        events.time_ms[rows],
        events.keys[rows],
        None if events.values is None else events.values[rows],
        None if events.units is None else events.units[rows],
    )
