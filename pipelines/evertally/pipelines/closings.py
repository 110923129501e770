"""Closings: the exact sums of closed ticks, on their way from aggregation to release.

Exact sums are as sensitive as the raw events. These two types are the only ones that carry them;
they print nothing of what they hold and refuse to be pickled.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

__all__ = ["Closing", "ClosingBlock", "TickSums"]

_SAFE_TOTAL = 2**62


@dataclass(frozen=True, slots=True, repr=False)
class Closing:
    """One key's exact sum of one closed tick, with the input positions it covers.

    Attributes:
        stream: name of the stream.
        key: a declared key.
        t: tick, from 1.
        sum: exact sum of the clipped contributions, in value units; an unbounded integer.
        positions: input positions up to which events are counted, opaque bytes of the source.
    """

    stream: str
    key: str
    t: int
    sum: int
    positions: bytes

    def __repr__(self) -> str:
        return f"Closing(stream={self.stream!r}, key={self.key!r}, t={self.t}, <redacted>)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a closing holds an exact sum and is not pickled")


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class ClosingBlock:
    """The closings of consecutive ticks and all keys at once.

    Attributes:
        stream: name of the stream.
        keys: declared keys, in the order of the columns.
        first: tick of the first row.
        sums: exact sums, shape (ticks, keys): int64, or Python ints (dtype object) where int64 is too small.
        positions: input positions after the last of these ticks.
        tick_ends_ms: ends of the ticks, epoch milliseconds.
    """

    stream: str
    keys: tuple[str, ...]
    first: int
    sums: NDArray[np.int64] | NDArray[np.object_]
    positions: bytes
    tick_ends_ms: tuple[int, ...]

    def __repr__(self) -> str:
        ticks = len(self.tick_ends_ms)
        return f"ClosingBlock(stream={self.stream!r}, first={self.first}, ticks={ticks}, <redacted>)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a closing holds an exact sum and is not pickled")

    def __iter__(self) -> Iterator[Closing]:
        for row, values in enumerate(self.sums.tolist()):
            for key, value in zip(self.keys, values, strict=True):
                yield Closing(self.stream, key, self.first + row, value, self.positions)


class TickSums:
    """Exact sums per (tick, key): int64 while that provably suffices, Python ints beyond.

    Memory: 8 bytes a cell; where sums pass 2^62, an unbounded integer a cell besides.
    """

    def __init__(self, ticks: int, keys: int) -> None:
        self._shape = (ticks, keys)
        self._low: NDArray[np.int64] = np.zeros(ticks * keys, np.int64)
        self._high: NDArray[np.object_] | None = None
        self._low_bound = 0  # no cell of _low can be larger than this in absolute value

    def __repr__(self) -> str:
        return f"TickSums(ticks={self._shape[0]}, keys={self._shape[1]}, <redacted>)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("exact sums are not pickled")

    def count(self, cells: NDArray[np.int64]) -> None:
        """Add 1 in each of these cells (tick index times keys plus key index); cells may repeat."""
        self._reserve(len(cells))
        np.add.at(self._low, cells, 1)

    def add(self, cells: NDArray[np.int64], values: NDArray[np.int64]) -> None:
        """Add a value in each of these cells; cells may repeat. No sum of them ever wraps around."""
        if len(values) == 0:
            return
        largest = max(abs(int(values.min())), abs(int(values.max())))
        step = max(1, _SAFE_TOTAL // max(1, largest))
        for first in range(0, len(values), step):
            part = slice(first, first + step)
            self._reserve(len(values[part]) * largest)
            np.add.at(self._low, cells[part], values[part])

    def rows(self, first: int, stop: int) -> NDArray[np.int64] | NDArray[np.object_]:
        """Sums of ticks first+1 .. stop (indices first .. stop-1), shape (stop-first, keys)."""
        keys = self._shape[1]
        cells = slice(first * keys, stop * keys)
        low = self._low[cells].reshape(-1, keys)
        if self._high is None:
            return low
        sums: NDArray[np.object_] = self._high[cells].reshape(-1, keys) + low.astype(object)
        return sums

    def _reserve(self, more: int) -> None:
        if self._low_bound + more > _SAFE_TOTAL:
            low = self._low.astype(object)
            self._high = low if self._high is None else self._high + low
            self._low[:] = 0
            self._low_bound = 0
        self._low_bound += more
