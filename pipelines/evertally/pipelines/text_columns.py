"""A column of ASCII fields inside a block of bytes, read without making one string a row.

Only a faster way: whatever a column is asked for equals what its texts would give.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

__all__ = ["PackedColumn", "character_matrix"]

_WORD = 8


class PackedColumn:
    """Fields as (start, length) in a block. The block is ASCII and holds no NUL.

    Args:
        block: the bytes, uint8, shape (bytes,).
        starts: first byte of each field, shape (rows,).
        lengths: length of each field in bytes, shape (rows,).
    """

    __slots__ = ("_block", "_lengths", "_starts")

    def __init__(
        self, block: NDArray[np.uint8], starts: NDArray[np.int64], lengths: NDArray[np.int64]
    ) -> None:
        self._block = block
        self._starts = starts
        self._lengths = lengths

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, row: int) -> str:
        start = int(self._starts[row])
        return self._block[start : start + int(self._lengths[row])].tobytes().decode("ascii")

    def __repr__(self) -> str:
        return f"PackedColumn(rows={len(self)}, <redacted>)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("raw fields are not pickled")

    def texts(self) -> list[str]:
        """Every field as a string."""
        text = self._block.tobytes().decode("ascii")
        stops = self._starts + self._lengths
        return [text[a:b] for a, b in zip(self._starts.tolist(), stops.tolist(), strict=True)]

    def matrix(self) -> NDArray[np.uint8] | None:
        """Characters, shape (rows, length), where all fields have one length > 0."""
        if len(self) == 0 or self._lengths[0] == 0 or (self._lengths != self._lengths[0]).any():
            return None
        characters: NDArray[np.uint8] = self._block[self._starts[:, None] + np.arange(self._lengths[0])]
        return characters

    def distinct(self) -> tuple[list[str], NDArray[np.int64]] | None:
        """The distinct texts and the index of each row's; None where a field is longer than 8 bytes."""
        if len(self) == 0 or self._lengths.max() > _WORD:
            return None
        places = np.arange(_WORD)
        characters: NDArray[np.uint8] = self._block[
            np.minimum(self._starts[:, None] + places, len(self._block) - 1)
        ]
        characters[places >= self._lengths[:, None]] = 0
        words, rows = np.unique(characters.view(np.uint64).reshape(-1), return_inverse=True)
        texts = [word.tobytes().rstrip(b"\0").decode("ascii") for word in words]
        return texts, rows.astype(np.int64)


def character_matrix(texts: Sequence[str]) -> NDArray[np.uint8] | None:
    """Characters of texts, shape (rows, length), where all are ASCII and have one length > 0."""
    lengths = set(map(len, texts))
    length = lengths.pop() if len(lengths) == 1 else 0
    joined = "".join(texts) if length else ""
    if not length or not joined.isascii():
        return None
    return np.frombuffer(joined.encode("ascii"), np.uint8).reshape(-1, length)
