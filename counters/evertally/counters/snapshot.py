"""The frame around state bytes: magic, version, length and checksum.

A snapshot holds exact sums and noise states. It is plain bytes; whoever stores it seals it first.
"""

from __future__ import annotations

import hashlib
import struct
from typing import Final

from evertally.errors import IntegrityError

__all__ = ["frame", "unframe"]

_MAGIC: Final = b"EVT"
_HEADER: Final = struct.Struct(">3sBQ")
_CHECKSUM_BYTES: Final = 16


def frame(version: int, body: bytes) -> bytes:
    """Wrap `body` with a magic, a version byte, its length and a checksum."""
    head = _HEADER.pack(_MAGIC, version, len(body))
    return head + body + _checksum(head + body)


def unframe(data: bytes, versions: tuple[int, ...]) -> tuple[int, bytes]:
    """Return (version, body) of a frame whose version is one of `versions`.

    Raises:
        IntegrityError: cut short, damaged, of another kind or of an unknown version.
    """
    if len(data) < _HEADER.size + _CHECKSUM_BYTES:
        raise IntegrityError("a snapshot is cut short")
    magic, version, size = _HEADER.unpack_from(data)
    if magic != _MAGIC:
        raise IntegrityError("these bytes are not a snapshot")
    if version not in versions:
        raise IntegrityError(f"snapshot version {version} is unknown; this release reads {versions}")
    head_and_body = data[: _HEADER.size + size]
    if (
        len(data) != _HEADER.size + size + _CHECKSUM_BYTES
        or _checksum(head_and_body) != data[_HEADER.size + size :]
    ):
        raise IntegrityError("a snapshot's checksum does not match its bytes")
    return version, head_and_body[_HEADER.size :]


def _checksum(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()[:_CHECKSUM_BYTES]
