"""Noise sources for tests. FOR TESTS ONLY: whoever knows the noise reads the exact sums from a release."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from evertally.counters.factorization import NoiseSource
from evertally.errors import InvalidParameter

__all__ = ["FixedNoise", "RecordingNoise"]

IntArray = NDArray[np.int64]


class FixedNoise:
    """Draws given in advance, zero after their end; never private.

    Args:
        draws: z_t/g for ticks 1, 2, ..., int64, shape (ticks, keys).

    >>> FixedNoise.zero(keys=2).block(1, 1).tolist()
    [[0, 0]]
    """

    def __init__(self, draws: IntArray) -> None:
        if draws.ndim != 2 or draws.dtype != np.int64:
            raise InvalidParameter(
                "draws", f"{draws.dtype} of {draws.ndim} axes", "int64, shape (ticks, keys)"
            )
        self._draws = draws

    @classmethod
    def zero(cls, keys: int) -> FixedNoise:
        """No noise at all, to compare sums."""
        return cls(np.zeros((0, keys), np.int64))

    @property
    def keys(self) -> int:
        """Number of keys."""
        return int(self._draws.shape[1])

    def block(self, first: int, count: int) -> IntArray:
        """Draws of ticks first .. first+count-1, shape (count, keys)."""
        block = np.zeros((count, self.keys), np.int64)
        given = self._draws[first - 1 : first - 1 + count]
        block[: len(given)] = given
        return block


class RecordingNoise:
    """Passes draws through and keeps them, so that a test can compare releases with them."""

    def __init__(self, source: NoiseSource) -> None:
        self._source = source
        self._seen: dict[int, IntArray] = {}

    @property
    def keys(self) -> int:
        """Number of keys."""
        return self._source.keys

    def block(self, first: int, count: int) -> IntArray:
        """Draws of the source, recorded."""
        block = self._source.block(first, count)
        for offset, row in enumerate(block):
            self._seen[first + offset] = row.copy()
        return block

    def draws(self) -> IntArray:
        """Draws seen for ticks 1, 2, ... without a gap, shape (ticks, keys)."""
        ticks = range(1, len(self._seen) + 1)
        return np.array([self._seen[t] for t in ticks], np.int64).reshape(len(ticks), self.keys)
