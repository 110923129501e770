"""Tuples of counts with a given sum."""

from __future__ import annotations

from functools import lru_cache
from itertools import combinations_with_replacement

import numpy as np
from numpy.typing import NDArray

__all__ = ["compositions"]


@lru_cache(maxsize=512)
def compositions(parts: int, total: int) -> NDArray[np.int64]:
    """All tuples of `parts` counts >= 0 with this sum; shape (number, parts), int64, read only.

    >>> compositions(2, 2).tolist()
    [[0, 2], [1, 1], [2, 0]]
    """
    if parts == 0:
        return _frozen(np.zeros((1 if total == 0 else 0, 0), dtype=np.int64))
    bars = list(combinations_with_replacement(range(total + 1), parts - 1))
    edges = np.pad(
        np.array(bars, dtype=np.int64).reshape(len(bars), parts - 1),
        ((0, 0), (1, 1)),
        constant_values=((0, 0), (0, total)),
    )
    return _frozen(np.diff(edges, axis=1))


def _frozen(array: NDArray[np.int64]) -> NDArray[np.int64]:
    array.setflags(write=False)
    return array
