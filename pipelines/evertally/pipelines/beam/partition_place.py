"""Where the reading of one Kafka partition stands: all of it, so that it can stop and go on anywhere.

Which tick an event belongs to depends on when it was read. What a new job reads again, between the oldest
offset it needs and the end of the last released tick, gets the same ticks as before: the offsets at which
ticks ended say which one was open, and what belongs to a released tick is passed over.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from apache_beam.coders import Coder
from apache_beam.io.iobase import RestrictionProgress, RestrictionTracker

from evertally.errors import IntegrityError
from evertally.pipelines.beam.stream_ref import AggregationRef, StreamRef, opened

__all__ = ["PartitionPlace", "PartitionTracker", "PlaceCoder"]

_VERSION: Final = 1


@dataclass(frozen=True, slots=True, repr=False)
class PartitionPlace:
    """A place in a partition. Sensitive: it counts events.

    Attributes:
        offset: the next record to read.
        open_tick: first tick that has not ended.
        cut: offset at which the open tick began.
        sent: {(tick, destination): contributions sent so far} for ticks that have not ended.
        known: offsets at which the last released ticks ended, oldest first, while reading before the last
            of them; the open tick then is the one behind the last released one.
        done: whether the reading stops here for good.
    """

    offset: int
    open_tick: int
    cut: int
    sent: Mapping[tuple[int, int], int] = field(default_factory=dict)
    known: tuple[int, ...] = ()
    done: bool = False

    @classmethod
    def behind(cls, through: int, stops: tuple[int, ...]) -> PartitionPlace:
        """Where a new job begins: behind tick `through`, whose offsets and those before it are `stops`."""
        return cls(stops[0], through + 1, stops[-1], known=stops if stops[0] < stops[-1] else ())

    def segment(self) -> tuple[int, int] | None:
        """While reading again: (the tick that was open at `offset`, offset at which it ended), else None."""
        if not self.known or self.offset >= self.known[-1]:
            return None
        later = sum(stop > self.offset for stop in self.known)
        return self.open_tick - later, self.known[len(self.known) - later]

    def moved(self, offset: int, sent: Mapping[tuple[int, int], int]) -> PartitionPlace:
        """After records up to `offset`, with what was sent of them."""
        total = dict(self.sent)
        for place, count in sent.items():
            total[place] = total.get(place, 0) + count
        known = self.known if self.known and offset < self.known[-1] else ()
        return replace(self, offset=offset, sent=total, known=known)

    def ended(self, through: int) -> PartitionPlace:
        """After ticks up to `through` have ended here."""
        kept = {place: count for place, count in self.sent.items() if place[0] > through}
        return replace(self, open_tick=through + 1, cut=self.offset, sent=kept)

    def __repr__(self) -> str:
        return f"PartitionPlace(open_tick={self.open_tick}, <redacted>)"


class PartitionTracker(RestrictionTracker):
    """A partition never ends. What is claimed is the place behind what is about to be sent.

    A runner may checkpoint it; it cannot be split, because a partition is read in order.
    """

    def __init__(self, place: PartitionPlace) -> None:
        self._place = place
        self._stopped = place.done

    def current_restriction(self) -> PartitionPlace:
        """Where reading stands."""
        return self._place

    def try_claim(self, position: PartitionPlace) -> bool:
        """Move on; False where a checkpoint came first, and nothing may be sent."""
        if self._stopped:
            return False
        self._place = position
        return True

    def try_split(self, fraction_of_remainder: float) -> tuple[PartitionPlace, PartitionPlace] | None:
        """A checkpoint (fraction 0): stop here, and go on from here later."""
        if fraction_of_remainder != 0 or self._stopped:
            return None
        self._stopped = True
        rest, self._place = self._place, replace(self._place, done=True)
        return self._place, rest

    def check_done(self) -> None:
        """Raise ValueError where the step went away without leaving the rest to a later call."""
        if not self._stopped:
            raise ValueError("a partition was left without a checkpoint")

    def current_progress(self) -> RestrictionProgress:
        """It never ends; runners get no counts from here."""
        return RestrictionProgress(fraction=0.0)

    def is_bounded(self) -> bool:
        """It is not."""
        return False


class PlaceCoder(Coder):
    """Places as sealed bytes: a runner keeps them in its checkpoints."""

    def __init__(self, stream: StreamRef | AggregationRef) -> None:
        self._stream = stream

    def encode(self, value: PartitionPlace) -> bytes:
        """Seal."""
        sent = [[t, destination, count] for (t, destination), count in sorted(value.sent.items())]
        fields = [_VERSION, value.offset, value.open_tick, value.cut, sent, list(value.known), value.done]
        return opened(self._stream).sealer.seal_bytes(json.dumps(fields).encode(), b"place")

    def decode(self, encoded: bytes) -> PartitionPlace:
        """Open. Raises IntegrityError for bytes of another stream, key or version."""
        fields: list[Any] = json.loads(opened(self._stream).sealer.open_bytes(encoded, b"place"))
        if fields[0] != _VERSION:
            raise IntegrityError("a place in a partition was written by another version of this program")
        _, offset, open_tick, cut, sent, known, done = fields
        counted = {(t, destination): count for t, destination, count in sent}
        return PartitionPlace(offset, open_tick, cut, counted, tuple(known), done)

    def is_deterministic(self) -> bool:
        """Sealing is not."""
        return False
