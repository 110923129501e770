"""What travels from the combining to the closing operator: one message a lane and batch. Sensitive.

Lane, then dead letters, then contributions by tick. Tick 0 stands for the tick of arrival.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from evertally.errors import IntegrityError

__all__ = ["ARRIVAL", "NO_ROWS", "Letter", "Message", "lane_of"]

IntArray = NDArray[np.int64]
ARRIVAL: Final = 0
NO_ROWS: Final[IntArray] = np.empty((1, 0), np.int64)
"""Rows of a message that only carries dead letters, or only makes a lane known."""
_HEAD: Final = struct.Struct(">iIII")
_LETTER: Final = struct.Struct(">II")
_DAMAGED: Final = "a message between the job's operators is damaged"


class Letter(NamedTuple):
    """A dead letter, and the input partition it is about."""

    partition: int
    body: bytes


class Message(NamedTuple):
    """Part of a batch.

    Attributes:
        lane: where it goes.
        letters: dead letters of the batch.
        rows: contributions, int64 of shape (columns, rows): tick, key, sum at event level; tick, unit,
            key, value at unit level.
    """

    lane: int
    letters: Sequence[Letter]
    rows: IntArray

    def encode(self) -> bytes:
        """Bytes that begin with the lane."""
        letters = b"".join(_LETTER.pack(p, len(body)) + body for p, body in self.letters)
        head = _HEAD.pack(self.lane, len(self.letters), len(letters), len(self.rows))
        return head + letters + self.rows.astype("<i8").tobytes()

    @classmethod
    def decode(cls, data: bytes) -> Message:
        """The inverse of `encode`. Raises IntegrityError for other bytes.

        >>> rows = np.array([[0, 0], [1, 2], [5, 7]])
        >>> Message.decode(Message(3, [Letter(1, b"{}")], rows).encode()).rows.tolist()
        [[0, 0], [1, 2], [5, 7]]
        """
        try:
            lane, count, size, columns = _HEAD.unpack_from(data)
            at, letters = _HEAD.size, []
            for _ in range(count):
                partition, length = _LETTER.unpack_from(data, at)
                at += _LETTER.size
                letters.append(Letter(partition, data[at : at + length]))
                at += length
            if at != _HEAD.size + size:
                raise IntegrityError(_DAMAGED)
            rows = np.frombuffer(data, "<i8", offset=at).astype(np.int64).reshape(columns, -1)
        except (struct.error, ValueError):
            raise IntegrityError(_DAMAGED) from None
        return cls(lane, letters, rows)


def lane_of(data: bytes) -> int:
    """The lane of an encoded message. Raises IntegrityError for bytes that are none."""
    if len(data) < _HEAD.size:
        raise IntegrityError(_DAMAGED)
    lane: int = _HEAD.unpack_from(data)[0]
    return lane
