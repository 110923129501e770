"""What a released tick remembers of its input, sealed in the ledger's row: where a new job goes on.

Kafka: for each partition the offsets at which the last ticks ended. A live input without offsets: keyed
digests of the last ticks, so that a tick that comes again is known to be the same.
"""

from __future__ import annotations

import hmac
import struct
from dataclasses import dataclass
from typing import Final, Self

from evertally.errors import IntegrityError
from evertally.pipelines.beam.parts import Part

__all__ = ["Cuts", "Digests"]

_CUTS: Final = 1
_DIGESTS: Final = 2
_HEAD: Final = struct.Struct(">BQI")
_DIGEST_BYTES: Final = 16
_DIGESTS_KEPT: Final = 64
_PARTITIONS_MAX: Final = 1 << 20


@dataclass(frozen=True, slots=True, repr=False)
class Cuts:
    """Offsets at which ticks ended. Sensitive: their differences count events.

    Attributes:
        through: last released tick.
        stops: for each partition the offsets behind ticks through-n+1 .. through, n the same for all.
    """

    through: int
    stops: tuple[tuple[int, ...], ...]

    def followed_by(self, part: Part, keep: int) -> Cuts:
        """Behind one more tick; at most `keep` offsets of each partition are kept.

        Raises IntegrityError unless the tick begins exactly where the last one ended.
        """
        if set(part.cuts) != set(range(len(self.stops))) or part.t != self.through + 1:
            raise IntegrityError(
                f"tick {part.t} lacks a partition; were partitions added? Start the job again"
            )
        stops = []
        for number, known in enumerate(self.stops):
            start, stop = part.cuts[number]
            if known and start != known[-1]:
                raise IntegrityError(
                    f"tick {part.t} does not begin where tick {self.through} ended in partition {number}: "
                    "the runner went back behind the ledger. Start the job anew, without its old state"
                )
            stops.append((*known, stop)[-keep:])
        return Cuts(part.t, tuple(stops))

    def encode(self) -> bytes:
        """Bytes for a sealed state."""
        kept = len(self.stops[0]) if self.stops else 0
        flat = [stop for stops in self.stops for stop in stops]
        return _HEAD.pack(_CUTS, self.through, len(self.stops)) + struct.pack(f">I{len(flat)}Q", kept, *flat)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """The inverse of `encode`. Raises IntegrityError for other bytes."""
        try:
            version, through, partitions = _HEAD.unpack_from(data)
            (kept,) = struct.unpack_from(">I", data, _HEAD.size)
            if partitions > _PARTITIONS_MAX:  # where none are kept, no length says how many there are
                raise IntegrityError("stored positions are of more partitions than a topic has")
            flat = struct.unpack(f">{partitions * kept}Q", data[_HEAD.size + 4 :])
        except struct.error:
            raise IntegrityError("stored positions are cut short") from None
        if version != _CUTS:
            raise IntegrityError("the stream's positions are not those of a Kafka topic read by Beam")
        return cls(through, tuple(flat[n * kept : (n + 1) * kept] for n in range(partitions)))

    def __repr__(self) -> str:
        return f"Cuts(through={self.through}, <redacted>)"


@dataclass(frozen=True, slots=True, repr=False)
class Digests:
    """Keyed digests of the last released ticks.

    Attributes:
        through: last released tick.
        last: digests of ticks through-n+1 .. through, 16 bytes each.
    """

    through: int
    last: tuple[bytes, ...]

    def followed_by(self, part: Part, key: bytes) -> Digests:
        """Behind one more tick."""
        return Digests(part.t, (*self.last, _digest(part, key))[-_DIGESTS_KEPT:])

    def require_same(self, part: Part, key: bytes) -> None:
        """Refuse a released tick that comes again with another content, or from too long ago to tell."""
        at = part.t - self.through + len(self.last) - 1
        if at < 0 or not hmac.compare_digest(self.last[at], _digest(part, key)):
            raise IntegrityError(
                f"tick {part.t} comes again with other data than it was released with; nothing is released"
            )

    def encode(self) -> bytes:
        """Bytes for a sealed state."""
        return _HEAD.pack(_DIGESTS, self.through, len(self.last)) + b"".join(self.last)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """The inverse of `encode`. Raises IntegrityError for other bytes."""
        try:
            version, through, count = _HEAD.unpack_from(data)
        except struct.error:
            raise IntegrityError("stored positions are cut short") from None
        body = data[_HEAD.size :]
        if version != _DIGESTS or len(body) != count * _DIGEST_BYTES:
            raise IntegrityError("the stream's positions are not those of a live Beam input")
        return cls(through, tuple(body[n : n + _DIGEST_BYTES] for n in range(0, len(body), _DIGEST_BYTES)))

    def __repr__(self) -> str:
        return f"Digests(through={self.through}, <redacted>)"


def _digest(part: Part, key: bytes) -> bytes:
    """Of what the tick adds, and of nothing that differs when the same tick is computed again."""
    return hmac.digest(key, Part(part.t, part.sums, events=part.events).encode(), "sha256")[:_DIGEST_BYTES]
