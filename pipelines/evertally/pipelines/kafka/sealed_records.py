"""The form of a record on the stream's own topics: a public place in clear, everything else sealed.

Key of the record (clear, canonical JSON): which incarnation, which source, which tick, whether the tick
ends there. Value: AES-256-GCM-SIV under a key of the stream, with topic, partition and the whole key as
associated data, so that a record opens only where it was written. Values are padded: their length says
nothing of the counts. Inside stands the source's sequence range, which a lost or repeated record breaks; a
range may be empty, and a copy of such a record is known by its nonce.
"""

from __future__ import annotations

import json
import os
import struct
from dataclasses import dataclass
from typing import Final, NoReturn

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCMSIV

from evertally.errors import IntegrityError

__all__ = ["Piece", "Place", "StreamSealer"]

_VERSION: Final = 1
_NONCE_BYTES: Final = 12
_PAD_BYTES: Final = 256
_HEAD: Final = struct.Struct(">QQI")
_LIFE_BYTES: Final = 8


@dataclass(frozen=True, slots=True)
class Place:
    """Where a record stands, in clear for whoever may read the topic.

    A function of the clock and of the assignment of partitions; but where several ticks close at once, those
    in which something was counted show (docs/explanation-not-protected.md).

    Attributes:
        life: first 8 bytes of the stream id in hex; another life of the same name is passed over.
        incarnation: incarnation of the stream.
        source: number of the producing partition.
        t: tick.
        end: whether the source has nothing more for ticks up to t.
    """

    life: str
    incarnation: int
    source: int
    t: int
    end: bool

    def encode(self) -> bytes:
        """Canonical JSON.

        >>> Place("00", 1, 0, 7, True).encode()
        b'{"v":1,"life":"00","inc":1,"src":0,"t":7,"end":true}'
        """
        end = "true" if self.end else "false"
        return (
            f'{{"v":{_VERSION},"life":"{self.life}","inc":{self.incarnation},"src":{self.source},'
            f'"t":{self.t},"end":{end}}}'
        ).encode()

    @classmethod
    def decode(cls, key: bytes | None) -> Place:
        """Read a key back. Raises IntegrityError unless it is exactly what `encode` writes."""
        try:
            fields = json.loads(key or b"")
            place = cls(fields["life"], fields["inc"], fields["src"], fields["t"], fields["end"])
            if place.encode() == key:
                return place
        except (ValueError, TypeError, KeyError, RecursionError):
            pass
        raise IntegrityError("a record on a topic of the stream has a key of another form")


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Piece:
    """What one record says: its place, the range of its source's sequence it covers, and a body.

    Attributes:
        start, stop: the sequence range [start, stop); for an input partition these are offsets. Sensitive.
        body: opaque, sensitive.
        nonce: of the record that the piece was opened from; no two records of a stream share one.
    """

    place: Place
    start: int
    stop: int
    body: bytes
    nonce: bytes = b""

    def __repr__(self) -> str:
        return f"Piece({self.place}, <redacted>)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a piece holds exact sums and is not pickled")


class StreamSealer:
    """Seals and opens the records of one stream incarnation on one topic."""

    def __init__(self, key: bytes, topic: str, life: bytes, incarnation: int) -> None:
        name = topic.encode()
        self._cipher: Final = AESGCMSIV(key)
        self._topic: Final = struct.pack(">I", len(name)) + name
        self.life: Final = life[:_LIFE_BYTES].hex()
        self.incarnation: Final = incarnation

    def seal(self, piece: Piece, partition: int) -> tuple[bytes, bytes]:
        """Key and value of the record that carries the piece to a partition."""
        key = piece.place.encode()
        plain = _HEAD.pack(piece.start, piece.stop, len(piece.body)) + piece.body
        plain += bytes(-len(plain) % _PAD_BYTES)
        nonce = os.urandom(_NONCE_BYTES)
        return key, nonce + self._cipher.encrypt(nonce, plain, self._associated(key, partition))

    def open(self, key: bytes | None, value: bytes | None, partition: int) -> Piece | None:
        """The piece in a record, None where it belongs to another incarnation or life of the stream.

        Raises:
            IntegrityError: a record of another form, or one that does not open at this place.
        """
        place = Place.decode(key)
        if (place.life, place.incarnation) != (self.life, self.incarnation):
            return None
        if key is None or value is None or len(value) < _NONCE_BYTES:
            raise IntegrityError("a record on a topic of the stream is cut short")
        try:
            plain = self._cipher.decrypt(
                value[:_NONCE_BYTES], value[_NONCE_BYTES:], self._associated(key, partition)
            )
        except InvalidTag:
            raise IntegrityError(
                "a record on a topic of the stream does not open: another key file, another place, or damage"
            ) from None
        if len(plain) < _HEAD.size:
            raise IntegrityError("a record on a topic of the stream is cut short")
        start, stop, size = _HEAD.unpack_from(plain)
        if len(plain) < _HEAD.size + size:
            raise IntegrityError("a record on a topic of the stream is cut short")
        return Piece(place, start, stop, plain[_HEAD.size : _HEAD.size + size], value[:_NONCE_BYTES])

    def _associated(self, key: bytes, partition: int) -> bytes:
        return self._topic + struct.pack(">I", partition) + key

    def __repr__(self) -> str:
        return "StreamSealer(<secret>)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a sealer does not pickle")
