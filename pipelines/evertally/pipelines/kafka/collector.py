"""From pieces of many sources to closed ticks, in order, each piece in exactly one tick.

One log (a partition of a topic of the stream) carries pieces of all sources. A tick closes when every
source has said that it has nothing more for it. The resume position is the first record that belongs to
a tick not closed yet; reading again from there gives the same closed ticks.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, NoReturn, Self

from evertally.errors import IntegrityError
from evertally.pipelines.kafka.sealed_records import Piece

__all__ = ["LogPosition", "TickCollector"]

_VERSION: Final = 1
_HEAD: Final = struct.Struct(">BQQQI")
_UNKNOWN: Final = -1


@dataclass(frozen=True, slots=True, repr=False)
class LogPosition:
    """Where reading goes on after a tick. Sensitive: differences of positions count events.

    Attributes:
        through: last closed tick.
        resume: offset of the first record to read again.
        seen: offset behind the last record that was read.
        stops: end of each source's sequence before `resume`; -1 where nothing was seen of it.
    """

    through: int
    resume: int
    seen: int
    stops: tuple[int, ...]

    def encode(self) -> bytes:
        """Bytes for a sealed state, 8 for each source."""
        head = _HEAD.pack(_VERSION, self.through, self.resume, self.seen, len(self.stops))
        return head + struct.pack(f">{len(self.stops)}q", *self.stops)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """The inverse of `encode`. Raises IntegrityError for other bytes."""
        try:
            version, through, resume, seen, count = _HEAD.unpack_from(data)
            stops = struct.unpack(f">{count}q", data[_HEAD.size :])
        except struct.error:
            raise IntegrityError("a stored log position is cut short") from None
        if version != _VERSION:
            raise IntegrityError(
                f"a stored log position has version {version}, this program knows {_VERSION}"
            )
        return cls(through, resume, seen, stops)

    def __repr__(self) -> str:
        return f"LogPosition(through={self.through}, <redacted>)"


class _Pending(NamedTuple):
    offset: int
    t: int
    source: int
    stop: int


class TickCollector:
    """Collects pieces and gives back closed ticks.

    Guarantees:
        - a tick closes only after every source's end of it; a piece for a tick that its source has
          ended, a piece twice, and a gap in a source's sequence are refused
          (tests/kafka/test_collector.py).
        - reading again from `position().resume` gives the same closed ticks
          (test_resume_anywhere_gives_the_same_ticks).
    """

    def __init__(self, sources: int, position: LogPosition) -> None:
        """Begin behind `position`; sources that it does not know yet begin where they please."""
        self._recovered: Final = position
        self._through = position.through
        self._seen = position.resume
        base = [*position.stops, *([_UNKNOWN] * (sources - len(position.stops)))]
        if len(base) != sources:
            raise IntegrityError("there are fewer sources than before; partitions cannot be taken away")
        self._base = base  # ends of sequence before the first pending record
        self._stops = list(base)
        self._ended = [position.through] * sources
        self._bodies: dict[int, list[bytes]] = {}
        self._nonces: dict[int, set[bytes]] = {}
        self._pending: deque[_Pending] = deque()

    def add(self, offset: int, piece: Piece) -> None:
        """Take in the piece at `offset` of the log; offsets ascend."""
        place = piece.place
        if offset < self._seen:
            raise IntegrityError("records of a topic of the stream came out of order")
        if not 0 <= place.source < len(self._stops):
            raise IntegrityError(
                f"source {place.source} is unknown: there are {len(self._stops)}; was a partition added?"
            )
        expected = self._stops[place.source]
        if expected not in (_UNKNOWN, piece.start) or piece.stop < piece.start:
            raise IntegrityError(f"source {place.source} repeats or lacks a part of its sequence")
        known = offset < self._recovered.seen and place.t <= self._recovered.through
        if not known and place.t <= self._ended[place.source]:
            raise IntegrityError(f"source {place.source} sends more for tick {place.t}, which it had ended")
        if not known:
            self._require_new(piece)
        self._seen = offset + 1
        self._stops[place.source] = piece.stop
        if not known:
            self._bodies.setdefault(place.t, []).append(piece.body)
            if place.end:
                self._ended[place.source] = place.t
        self._pending.append(_Pending(offset, place.t, place.source, piece.stop))

    def skip_to(self, offset: int) -> None:
        """Note that nothing of this stream stands before `offset`."""
        self._seen = max(self._seen, offset)

    @property
    def through(self) -> int:
        """Last closed tick."""
        return self._through

    @property
    def sources(self) -> int:
        """How many sources there are."""
        return len(self._ended)

    @property
    def ready(self) -> int:
        """Last tick that every source has ended."""
        return min(self._ended)

    def waiting_for(self) -> Sequence[int]:
        """Sources that hold back the next tick."""
        return [source for source, ended in enumerate(self._ended) if ended <= self._through]

    def close(self, limit: int) -> list[list[bytes]]:
        """The next closed ticks, at most `limit`: for each the bodies of its pieces, in log order."""
        last = min(self.ready, self._through + limit)
        closed = [self._bodies.pop(t, []) for t in range(self._through + 1, last + 1)]
        for t in range(self._through + 1, last + 1):
            self._nonces.pop(t, None)  # for a tick that is closed nothing is taken any more
        self._through = max(self._through, last)
        while self._pending and self._pending[0].t <= self._through:
            done = self._pending.popleft()
            self._base[done.source] = done.stop
        return closed

    def position(self) -> LogPosition:
        """Where to go on after the last closed tick."""
        resume = self._pending[0].offset if self._pending else self._seen
        return LogPosition(self._through, resume, self._seen, tuple(self._base))

    def _require_new(self, piece: Piece) -> None:
        nonces = self._nonces.setdefault(piece.place.t, set())
        if piece.nonce and piece.nonce in nonces:
            raise IntegrityError(
                f"a record of source {piece.place.source} stands twice on a topic of the stream"
            )
        nonces.add(piece.nonce)

    def __repr__(self) -> str:
        return f"TickCollector(through={self._through}, <redacted>)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a collector holds exact sums and is not pickled")
