"""Integers of any size as bytes: a 16-bit length, then the two's complement, big-endian."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

from evertally.errors import IntegrityError

__all__ = ["SECRET_BYTES", "pack_integers", "unpack_integers"]

SECRET_BYTES: Final = 16
"""Least width of a secret integer in a state: encryption hides the integer, but not how long it is."""


def pack_integers(values: Iterable[int], least: int = 1) -> bytes:
    """Encode integers one after the other, each in at least `least` bytes; readers take any width.

    >>> pack_integers([0, -1, 256]).hex(), pack_integers([-1], 3).hex()
    ('0001000001ff00020100', '0003ffffff')
    """
    parts = []
    for value in values:
        body = value.to_bytes(max(least, value.bit_length() // 8 + 1), "big", signed=True)
        parts.append(struct.pack(">H", len(body)) + body)
    return b"".join(parts)


def unpack_integers(data: bytes, count: int) -> list[int]:
    """Decode exactly `count` integers that fill `data`. Raises IntegrityError otherwise."""
    values, at = [], 0
    for _ in range(count):
        if at + 2 > len(data):
            raise IntegrityError("a stored integer is cut short")
        (size,) = struct.unpack_from(">H", data, at)
        body = data[at + 2 : at + 2 + size]
        if size == 0 or len(body) != size:
            raise IntegrityError("a stored integer is cut short")
        values.append(int.from_bytes(body, "big", signed=True))
        at += 2 + size
    if at != len(data):
        raise IntegrityError("stored integers are followed by unknown bytes")
    return values
