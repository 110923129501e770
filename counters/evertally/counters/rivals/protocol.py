"""What every rival offers, and the counter that runs one.

All rivals are calibrated to the same privacy: 1-GDP (mu = 1) for one contribution of at most 1 at one tick.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from evertally.counters.factorization import NoiseSource
from evertally.errors import InvalidParameter

__all__ = ["FloatArray", "Normals", "Rival", "RivalCounter"]

FloatArray = NDArray[np.float64]

_GRID: Final = 2.0**30
_PREFETCH: Final = 1024


class Rival(Protocol):
    """A mechanism for running totals: released total = exact total + noise that never sees data."""

    @property
    def name(self) -> str:
        """Name in tables and figures."""
        ...

    @property
    def horizon(self) -> int | None:
        """Last tick it can release, or None for an unbounded stream."""
        ...

    def variance(self, t: int) -> float:
        """Variance of the noise of the release at tick t, at unit privacy (mu = 1, clip 1)."""
        ...

    def quoted_variance(self, t: int) -> float:
        """What a comparison quotes for tick t: variance(t), or its mean where it jumps from tick to tick."""
        ...

    def noise(self, source: NoiseSource) -> Iterator[FloatArray]:
        """The noise of ticks 1, 2, ... for all keys of `source`, shape (keys,); ends at the horizon."""
        ...


class Normals:
    """Standard normals taken from a noise source one after the other, never twice."""

    __slots__ = ("_ahead", "_next", "_source")

    def __init__(self, source: NoiseSource) -> None:
        self._source: Final = source
        self._ahead: FloatArray = np.empty((0, source.keys))
        self._next = 1

    def one(self) -> FloatArray:
        """The next draw of every key, shape (keys,)."""
        if len(self._ahead) == 0:
            self._ahead = self._draw(_PREFETCH)
        draw: FloatArray = self._ahead[0]
        self._ahead = self._ahead[1:]
        return draw

    def take(self, count: int) -> FloatArray:
        """The next `count` draws, shape (count, keys)."""
        held = self._ahead[:count]
        self._ahead = self._ahead[count:]
        return np.concatenate([held, self._draw(count - len(held))])

    def _draw(self, count: int) -> FloatArray:
        first, self._next = self._next, self._next + count
        draws: FloatArray = self._source.block(first, count) / _GRID
        return draws


class RivalCounter:
    """Noisy running totals of one rival over the keys of a source, in floating point."""

    __slots__ = ("_noise", "_t", "_total")

    def __init__(self, rival: Rival, source: NoiseSource) -> None:
        self._noise: Final = rival.noise(source)
        self._total = np.zeros(source.keys)
        self._t = 0

    def step(self, increments: FloatArray) -> FloatArray:
        """Add the increments of the next tick and release all totals, shape (keys,).

        Raises:
            InvalidParameter: the rival's horizon is reached.
        """
        noise = next(self._noise, None)
        if noise is None:
            raise InvalidParameter("t", self._t + 1, f"a tick up to the horizon {self._t}")
        self._t += 1
        self._total = self._total + increments
        return self._total + noise
