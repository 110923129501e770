"""Masses of the standard normal law between edges, each tail with its own relative precision."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

__all__ = ["normal_mass"]


def normal_mass(edges: NDArray[np.float64]) -> NDArray[np.float64]:
    """Mass between successive edges (ascending, infinities allowed), shape (n - 1,).

    >>> normal_mass(np.array([-np.inf, 0.0, np.inf])).tolist()
    [0.5, 0.5]
    """
    tail = ndtr(-np.abs(edges))
    a, b, tail_a, tail_b = edges[:-1], edges[1:], tail[:-1], tail[1:]
    across = 1.0 - tail_a - tail_b
    return np.asarray(np.where(a >= 0.0, tail_a - tail_b, np.where(b <= 0.0, tail_b - tail_a, across)))
