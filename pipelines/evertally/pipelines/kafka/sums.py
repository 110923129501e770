"""Exact sums of one tick: {declared position of the key: integer}, and their bytes. Sensitive.

The bytes hold an integer for every key that a shard declares, zeros too: encryption would hide which
keys were touched, but not how many.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from evertally.counters.encoding import SECRET_BYTES, pack_integers, unpack_integers
from evertally.errors import IntegrityError

__all__ = ["add_sums", "decode_sums", "encode_sums", "sums_bytes"]

_POSITION_BYTES: Final = 4
_LENGTH_BYTES: Final = 2


def encode_sums(sums: Mapping[int, int], positions: Sequence[int]) -> bytes:
    """Bytes of sums, of one length whatever the sums are (up to 2^127).

    Args:
        sums: amounts by declared position; those that are missing are 0.
        positions: every declared position of the shard that the sums go to, ascending.

    Raises IntegrityError where a sum is of no key of the shard.

    >>> decode_sums(encode_sums({3: 5, 1: -(2**70)}, [1, 2, 3]))
    {1: -1180591620717411303424, 3: 5}
    >>> len(encode_sums({}, [1, 2, 3])) == len(encode_sums({1: 2**40}, [1, 2, 3])) == sums_bytes(3)
    True
    """
    if not sums.keys() <= set(positions):
        raise IntegrityError("a sum belongs to a key of another shard")
    head = struct.pack(f">I{len(positions)}I", len(positions), *positions)
    return head + pack_integers([sums.get(position, 0) for position in positions], SECRET_BYTES)


def sums_bytes(keys: int) -> int:
    """Length of the sums of so many keys."""
    return _POSITION_BYTES + keys * (_POSITION_BYTES + _LENGTH_BYTES + SECRET_BYTES)


def decode_sums(body: bytes) -> dict[int, int]:
    """The inverse of `encode_sums`, without zeros. Raises IntegrityError for other bytes."""
    try:
        (count,) = struct.unpack_from(">I", body)
        positions = struct.unpack_from(f">{count}I", body, _POSITION_BYTES)
        amounts = unpack_integers(body[_POSITION_BYTES * (1 + count) :], count)
    except (struct.error, ValueError):
        raise IntegrityError("sums on a topic of the stream are cut short") from None
    return {position: amount for position, amount in zip(positions, amounts, strict=True) if amount}


def add_sums(parts: Iterable[Mapping[int, int]]) -> dict[int, int]:
    """The sum of sparse sums."""
    total: dict[int, int] = {}
    for part in parts:
        for position, amount in part.items():
            total[position] = total.get(position, 0) + amount
    return total
