"""Sealing: state at rest is encrypted and bound to the place it belongs to.

AES-256-GCM-SIV with random nonces under a key derived for one stream incarnation. The associated data
names stream, incarnation, shard and tick, so a blob moved elsewhere, or an older one put back under a
newer tick, does not open.
"""

from __future__ import annotations

import os
import struct
from typing import Final, NoReturn

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCMSIV

from evertally.errors import IntegrityError

__all__ = ["Sealer"]

_VERSION: Final = b"\x01"
_NONCE_BYTES: Final = 12
_TAG_BYTES: Final = 16


class Sealer:
    """Seals and opens the states of one stream incarnation."""

    __slots__ = ("_cipher", "_place")

    def __init__(self, key: bytes, stream: str, incarnation: int) -> None:
        name = stream.encode()
        self._cipher: Final = AESGCMSIV(key)
        self._place: Final = struct.pack(">I", len(name)) + name + struct.pack(">Q", incarnation)

    def seal(self, plain: bytes, shard: int, t: int) -> bytes:
        """Encrypt a state that belongs to tick `t` of `shard`."""
        nonce = os.urandom(_NONCE_BYTES)
        return _VERSION + nonce + self._cipher.encrypt(nonce, plain, self._associated(shard, t))

    def open(self, sealed: bytes, shard: int, t: int) -> bytes:
        """Decrypt a state. Raises IntegrityError where key, place or bytes are other ones."""
        if len(sealed) < 1 + _NONCE_BYTES + _TAG_BYTES or sealed[:1] != _VERSION:
            raise IntegrityError("a sealed state is cut short or of an unknown version")
        nonce, body = sealed[1 : 1 + _NONCE_BYTES], sealed[1 + _NONCE_BYTES :]
        try:
            return self._cipher.decrypt(nonce, body, self._associated(shard, t))
        except InvalidTag:
            raise IntegrityError(
                "a sealed state does not open: another key file, another stream or tick, or damaged bytes"
            ) from None

    def _associated(self, shard: int, t: int) -> bytes:
        return _VERSION + self._place + struct.pack(">QQ", shard, t)

    def __repr__(self) -> str:
        return "Sealer(<secret>)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a sealer does not pickle")
