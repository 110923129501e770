"""Parts of ticks: what one step has to say about one tick. Exact sums; sealed wherever a runner sees them.

Parts of a tick are merged until one is left for each destination. Beside its sums a part carries what
proves that it is whole: how many contributions are in it, how many each source says it has sent, and
between which input positions. A runner that loses or repeats anything makes the two differ.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NoReturn

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCMSIV
from numpy.typing import NDArray

from evertally.errors import IntegrityError
from evertally.pipelines.kafka.sums import add_sums, decode_sums, encode_sums

__all__ = ["UNKNOWN", "Part", "PartSealer", "merge"]

IntArray = NDArray[np.int64]
UNKNOWN: Final = -1
"""A source that does not know how many contributions it has sent."""

_VERSION: Final = 1
_HEAD: Final = struct.Struct(">BQQIIII")
_END: Final = struct.Struct(">Iq")
_CUT: Final = struct.Struct(">IQQ")
_LENGTH: Final = struct.Struct(">Q")
_NONCE_BYTES: Final = 12
_PAD_BYTES: Final = 256


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Part:
    """A part of tick `t`, going to one destination.

    Attributes:
        t: the tick.
        sums: {declared position of the key: exact amount}; empty on the way to a bounding step.
        rows: unit, key, value of each contribution, shape (3, n); empty on the way to a release step.
        events: contributions in `sums` or `rows`.
        ends: {source: contributions it has sent here for this tick, or UNKNOWN}: it sends no more.
        cuts: {Kafka partition: (first offset, offset behind the last one) read while the tick was open}.
    """

    t: int
    sums: Mapping[int, int] = field(default_factory=dict)
    rows: IntArray = field(default_factory=lambda: np.empty((3, 0), np.int64))
    events: int = 0
    ends: Mapping[int, int] = field(default_factory=dict)
    cuts: Mapping[int, tuple[int, int]] = field(default_factory=dict)

    def check_whole(self, sources: int) -> None:
        """Refuse a part that lacks a source, or whose contributions are not those that were sent."""
        if set(self.ends) != set(range(sources)):
            raise IntegrityError(
                f"tick {self.t} would close before all of its {sources} sources have ended it"
            )
        if UNKNOWN not in self.ends.values() and sum(self.ends.values()) != self.events:
            raise IntegrityError(
                f"the runner lost or repeated contributions of tick {self.t}; nothing is released"
            )

    def encode(self) -> bytes:
        """Plain bytes; only for sealing."""
        rows = self.rows.shape[1]
        sums = encode_sums(self.sums, sorted(self.sums))
        head = _HEAD.pack(_VERSION, self.t, self.events, len(self.ends), len(self.cuts), rows, len(sums))
        ends = b"".join(_END.pack(source, sent) for source, sent in sorted(self.ends.items()))
        cuts = b"".join(_CUT.pack(place, *cut) for place, cut in sorted(self.cuts.items()))
        return head + ends + cuts + self.rows.astype(">i8").tobytes() + sums

    @classmethod
    def decode(cls, data: bytes) -> Part:
        """The inverse of `encode`. Raises IntegrityError for other bytes."""
        try:
            version, t, events, ends, cuts, rows, sums = _HEAD.unpack_from(data)
            at = _HEAD.size
            if version != _VERSION or len(data) < at + ends * _END.size + cuts * _CUT.size + rows * 24 + sums:
                raise IntegrityError("a part of a tick is cut short or of an unknown version")
            found = dict(_END.iter_unpack(data[at : at + ends * _END.size]))
            at += ends * _END.size
            placed = {p: (a, b) for p, a, b in _CUT.iter_unpack(data[at : at + cuts * _CUT.size])}
            at += cuts * _CUT.size
            columns = np.frombuffer(data, ">i8", rows * 3, at).astype(np.int64).reshape(3, rows)
            at += rows * 24
            return cls(t, decode_sums(data[at : at + sums]), columns, events, found, placed)
        except struct.error:
            raise IntegrityError("a part of a tick is cut short") from None

    def __repr__(self) -> str:
        return f"Part(t={self.t}, <redacted>)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a part holds exact sums and is not pickled")


def merge(parts: Iterable[Part]) -> Part:
    """All parts of one tick as one. Raises IntegrityError where they contradict each other."""
    listed = list(parts)
    t = listed[0].t
    ends: dict[int, int] = {}
    cuts: dict[int, tuple[int, int]] = {}
    for part in listed:
        if part.t != t or not ends.keys().isdisjoint(part.ends):
            raise IntegrityError(f"a source has ended tick {t} twice, or parts of two ticks were mixed")
        if any(cuts.get(place, cut) != cut for place, cut in part.cuts.items()):
            raise IntegrityError(f"two sources contradict each other about where tick {t} ends")
        ends.update(part.ends)
        cuts.update(part.cuts)
    rows = np.concatenate([part.rows for part in listed], axis=1)
    return Part(t, add_sums(p.sums for p in listed), rows, sum(p.events for p in listed), ends, cuts)


class PartSealer:
    """Seals parts, and other bytes of a step, under a key of the stream; padded: lengths say little."""

    __slots__ = ("_cipher", "_stream")

    def __init__(self, key: bytes, stream: str) -> None:
        self._cipher: Final = AESGCMSIV(key)
        self._stream: Final = stream.encode()

    def seal(self, part: Part) -> bytes:
        """Bytes that a runner may see."""
        return self.seal_bytes(part.encode(), b"part")

    def open(self, sealed: bytes) -> Part:
        """The part. Raises IntegrityError where key, stream or bytes are other ones."""
        return Part.decode(self.open_bytes(sealed, b"part"))

    def seal_bytes(self, plain: bytes, what: bytes) -> bytes:
        """Encrypt bytes of the kind `what`."""
        nonce = os.urandom(_NONCE_BYTES)
        framed = _LENGTH.pack(len(plain)) + plain
        padded = framed + bytes(-len(framed) % _PAD_BYTES)
        return nonce + self._cipher.encrypt(nonce, padded, self._associated(what))

    def open_bytes(self, sealed: bytes, what: bytes) -> bytes:
        """The inverse of `seal_bytes`. Raises IntegrityError where key, stream or kind are other ones."""
        try:
            nonce, body = sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:]
            framed = self._cipher.decrypt(nonce, body, self._associated(what))
        except (InvalidTag, ValueError):
            raise IntegrityError(
                "sealed bytes of a step do not open: another key file, stream, or damage"
            ) from None
        end = _LENGTH.size + (_LENGTH.unpack_from(framed)[0] if len(framed) >= _LENGTH.size else 0)
        if len(framed) < end:
            raise IntegrityError("sealed bytes of a step are cut short")
        return framed[_LENGTH.size : end]

    def _associated(self, what: bytes) -> bytes:
        return b"evertally/1/beam/" + what + b"/" + self._stream

    def __repr__(self) -> str:
        return "PartSealer(<secret>)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a sealer does not pickle")
