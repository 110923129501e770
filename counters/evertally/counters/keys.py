"""The keyed noise stream: every draw is a pure function of (key, key index, tick).

K = HKDF-SHA256(master; version tag and length-prefixed stream, stream id, incarnation, lane); the
draw of (key index, t) is the exactly rounded Gaussian of AES-256(K, key_index64 || t64). A replay of
a tick therefore draws the same noise, and no two (stream, incarnation, key, tick) share a block.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from typing import Final, NoReturn

import numpy as np
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from evertally.counters.gaussian import LANES_MAX, exact_gaussians
from evertally.errors import InvalidParameter
from evertally.validation import integer

__all__ = ["KEY_INDEX_MAX", "TICK_MAX", "KeyedNoise", "NoiseKey", "derive_key"]

TICK_MAX: Final = 2**63 - 1
KEY_INDEX_MAX: Final = 2**63 - 1

_VERSION_TAG: Final = b"evertally/1/noise"
_MASTER_BYTES: Final = 32
_ID_BYTES: Final = 16


def derive_key(master: bytes, tag: bytes, *parts: bytes) -> bytes:
    """Derive 32 bytes by HKDF-SHA256; the info is a tag and length-prefixed parts, so it is injective."""
    info = b"".join(struct.pack(">I", len(part)) + part for part in (tag, *parts))
    return HKDF(algorithm=hashes.SHA256(), length=32, salt=None, info=info).derive(master)


class NoiseKey:
    """The secret that fixes all noise of one stream incarnation; as sensitive as the raw data.

    Who holds it can remove all noise, past and future. Its repr is redacted and it refuses pickling.
    """

    __slots__ = ("_lanes", "incarnation", "stream")

    def __init__(self, master: bytes, *, stream: str, stream_id: bytes, incarnation: int = 0) -> None:
        """Derive the stream's key.

        Args:
            master: 32 secret random bytes.
            stream: name of the stream.
            stream_id: 16 random bytes made when the stream's ledger is created; with it, a deleted
                ledger and a kept key file can never republish the same noise over other data.
            incarnation: number of the stream's incarnation, >= 0, never reused.
        """
        if not isinstance(master, bytes) or len(master) != _MASTER_BYTES:
            raise InvalidParameter(
                "master", f"{type(master).__name__}", f"{_MASTER_BYTES} secret random bytes"
            )
        if not isinstance(stream_id, bytes) or len(stream_id) != _ID_BYTES:
            raise InvalidParameter("stream_id", f"{type(stream_id).__name__}", f"{_ID_BYTES} random bytes")
        if not isinstance(stream, str) or not stream:
            raise InvalidParameter("stream", stream, "a non-empty name")
        self.stream: Final = stream
        self.incarnation: Final = integer("incarnation", incarnation, low=0, high=2**63 - 1)
        self._lanes: Final = tuple(
            derive_key(
                master,
                _VERSION_TAG,
                stream.encode(),
                stream_id,
                struct.pack(">Q", self.incarnation),
                struct.pack(">B", lane),
            )
            for lane in range(LANES_MAX + 1)
        )

    @classmethod
    def generate(cls, stream: str) -> NoiseKey:
        """A fresh random key for a stream that lives in this process only (nothing can resume it)."""
        return cls(os.urandom(_MASTER_BYTES), stream=stream, stream_id=os.urandom(_ID_BYTES))

    def encrypt(self, blocks: bytes, lane: int = 0) -> bytes:
        """AES-256 of 16-byte blocks under the key of `lane`; the blocks are all different by construction."""
        # One block is one PRF input and never repeats, so ECB is the raw permutation that is wanted here.
        cipher = Cipher(algorithms.AES256(self._lanes[lane]), modes.ECB())  # noqa: S305  # nosec B305  # see above
        encryptor = cipher.encryptor()
        return encryptor.update(blocks) + encryptor.finalize()

    def __repr__(self) -> str:
        return f"NoiseKey(stream={self.stream!r}, incarnation={self.incarnation}, <secret>)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a noise key does not leave its process; pass a reference to its key file")


class KeyedNoise:
    """The `NoiseSource` of a key: exactly rounded Gaussians for a fixed sequence of key indices."""

    __slots__ = ("_indices", "_key")

    def __init__(self, key: NoiseKey, key_indices: Sequence[int] = (0,)) -> None:
        """Bind a key to key indices (distinct, in [0, 2^63))."""
        indices = [integer("key_indices", i, low=0, high=KEY_INDEX_MAX) for i in key_indices]
        if not indices or len(set(indices)) != len(indices):
            raise InvalidParameter("key_indices", f"{len(indices)} indices", "at least one, all distinct")
        self._key: Final = key
        self._indices: Final = np.array(indices, dtype=">u8")

    @property
    def keys(self) -> int:
        """Number of keys."""
        return len(self._indices)

    def block(self, first: int, count: int) -> NDArray[np.int64]:
        """Draws in grid units for ticks first .. first+count-1, int64 of shape (count, keys)."""
        first = integer("first", first, low=1, high=TICK_MAX)
        count = integer("count", count, low=0, high=TICK_MAX - first + 1)
        blocks = np.empty((count, self.keys, 2), dtype=">u8")
        blocks[:, :, 0] = self._indices
        blocks[:, :, 1] = (np.arange(count, dtype=np.uint64) + np.uint64(first))[:, None]
        plain = blocks.tobytes()
        words = np.frombuffer(self._key.encrypt(plain), dtype=">u8").astype(np.uint64).reshape(-1, 2)

        def more_bits(index: int, lane: int) -> int:
            return int.from_bytes(self._key.encrypt(plain[16 * index : 16 * index + 16], lane), "big")

        return exact_gaussians(words[:, 0], words[:, 1], more_bits).reshape(count, self.keys)

    def __repr__(self) -> str:
        return f"KeyedNoise({self._key!r}, keys={self.keys})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a noise source does not leave its process")
