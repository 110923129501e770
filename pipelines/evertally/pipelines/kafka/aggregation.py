"""Events of one input partition to partial sums of ticks. No state outlives a commit.

At each commit the sums so far leave as pieces together with the partition's offset, in one Kafka
transaction. What remains is where the partition stands and which tick is open: both travel in the
group's committed offset, so that a new owner goes on where the old one stopped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NoReturn, Self

import numpy as np
from numpy.typing import NDArray

from evertally.errors import IntegrityError
from evertally.pipelines.kafka.sealed_records import Piece, Place
from evertally.pipelines.kafka.sums import encode_sums, split_by_shard

__all__ = ["OpenTick", "PartitionTally", "TickRule"]

IntArray = NDArray[np.int64]


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
        if len(words) == 4 and words[0] == "evertally/1" and words[2].isdigit() and words[3].isdigit():
            return cls(words[1], int(words[2]), int(words[3]))
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


class PartitionTally:
    """Open sums of one input partition since its last commit.

    Guarantees:
        - an event is in the sums of exactly one tick, never of one that was ended
          (tests/kafka/test_aggregation.py).
    """

    def __init__(self, partition: int, position: int, open_tick: int) -> None:
        self._partition: Final = partition
        self.position = position
        self._start = position
        self.open_tick = open_tick
        self._sums: dict[int, dict[int, int]] = {}

    def add(self, keys: IntArray, values: IntArray | None, ticks: IntArray, stop: int) -> None:
        """Count events.

        Args:
            keys: declared position of each event's key.
            values: clipped contributions below 2^41 in absolute value, None where each event counts 1.
            ticks: tick of each event; ended ones become the first open one.
            stop: offset behind the last event.
        """
        ticks = np.maximum(ticks, self.open_tick)
        for t in np.unique(ticks).tolist() if len(ticks) else ():
            here = ticks == t
            counted = np.zeros(int(keys.max()) + 1, np.int64)
            np.add.at(counted, keys[here], 1 if values is None else values[here])
            sums = self._sums.setdefault(t, {})
            for position in np.nonzero(counted)[0].tolist():
                sums[position] = sums.get(position, 0) + int(counted[position])
        self.position = stop

    def dirty(self, closed_through: int) -> bool:
        """Whether a commit has something to say."""
        return self.position != self._start or closed_through >= self.open_tick

    def cut(
        self, life: str, incarnation: int, closed_through: int, shard_of: Sequence[int], shards: int
    ) -> list[tuple[int, Piece]]:
        """(shard, piece) of everything since the last commit; ends ticks up to `closed_through`.

        Every shard gets at least one piece, and the first one it gets covers the whole range of offsets.
        """
        ends = closed_through >= self.open_tick
        ticks = sorted(set(self._sums) | ({closed_through} if ends else set()) or {self.open_tick})
        pieces = []
        starts = dict.fromkeys(range(shards), self._start)
        for t in ticks:
            split = split_by_shard(self._sums.get(t, {}), shard_of)
            for shard in range(shards):
                place = Place(life, incarnation, self._partition, t, ends and t == closed_through)
                body = encode_sums(split.get(shard, {}))
                pieces.append((shard, Piece(place, starts[shard], self.position, body)))
                starts[shard] = self.position
        self._start = self.position
        self.open_tick = max(self.open_tick, closed_through + 1)
        self._sums = {}
        return pieces

    def __repr__(self) -> str:
        return f"PartitionTally(partition={self._partition}, open_tick={self.open_tick}, <redacted>)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a tally holds exact sums and is not pickled")
