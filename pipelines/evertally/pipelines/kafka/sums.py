"""Sparse exact sums of one tick: {declared position of the key: integer}, and their bytes. Sensitive."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping

from evertally.counters.encoding import SECRET_BYTES, pack_integers, unpack_integers
from evertally.errors import IntegrityError

__all__ = ["add_sums", "decode_sums", "encode_sums"]


def encode_sums(sums: Mapping[int, int]) -> bytes:
    """Bytes of sparse sums; zeros are left out.

    >>> decode_sums(encode_sums({3: 5, 1: -(2**70), 2: 0}))
    {1: -1180591620717411303424, 3: 5}
    """
    positions = sorted(position for position, amount in sums.items() if amount)
    head = struct.pack(f">I{len(positions)}I", len(positions), *positions)
    return head + pack_integers([sums[position] for position in positions], SECRET_BYTES)


def decode_sums(body: bytes) -> dict[int, int]:
    """The inverse of `encode_sums`. Raises IntegrityError for other bytes."""
    try:
        (count,) = struct.unpack_from(">I", body)
        positions = struct.unpack_from(f">{count}I", body, 4)
        return dict(zip(positions, unpack_integers(body[4 + 4 * count :], count), strict=True))
    except (struct.error, ValueError):
        raise IntegrityError("sums on a topic of the stream are cut short") from None


def add_sums(parts: Iterable[Mapping[int, int]]) -> dict[int, int]:
    """The sum of sparse sums."""
    total: dict[int, int] = {}
    for part in parts:
        for position, amount in part.items():
            total[position] = total.get(position, 0) + amount
    return total
