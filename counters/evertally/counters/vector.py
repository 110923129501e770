"""A d-dimensional running total: one privacy unit adds a vector whose l2 norm is clipped.

The d coordinates are d counters of one mechanism with one sensitivity, C ||R|| for l2 clip C; a unit
touches all of them, which the slack pays for (docs/proofs/snapped-mechanism.md, section 6).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NoReturn

from evertally.counters.bank import CounterBank, TickRelease
from evertally.counters.contribution import Contribution
from evertally.counters.factorization import Factorization
from evertally.counters.grid import SLACK_HORIZON, Grid
from evertally.counters.keys import KeyedNoise, NoiseKey
from evertally.errors import InvalidParameter
from evertally.validation import positive_integer

__all__ = ["VectorCounter", "clip_l2"]

_DIMENSION_MAX: Final = 2**20


def clip_l2(vector: Sequence[int], clip: int) -> tuple[int, ...]:
    """The integer vector scaled towards zero so that its l2 norm is at most `clip`; exact for any size.

    A vector within the clip is unchanged. Otherwise each coordinate becomes sign(x) floor(|x| C/||x||),
    with ||x|| rounded up, so the result's norm is never above the clip.

    >>> clip_l2([3, 4], 5), clip_l2([30, -40], 5)
    ((3, 4), (3, -4))
    """
    limit = positive_integer("clip", clip)
    if any(isinstance(x, bool) or not isinstance(x, int) for x in vector):
        raise InvalidParameter("vector", "coordinates of another type", "exact ints")
    squared = sum(x * x for x in vector)
    if squared <= limit * limit:
        return tuple(vector)
    norm = math.isqrt(squared - 1) + 1
    return tuple((1 if x >= 0 else -1) * (abs(x) * limit // norm) for x in vector)


class VectorCounter:
    """Running totals of vectors under one charge.

    Guarantees:
        - the whole infinite output is `grid.mu`-GDP for adding or removing one clipped vector
          (test_vector_sensitivity).
    """

    def __init__(
        self,
        factorization: Factorization,
        *,
        mu: float,
        clip: int,
        dimension: int,
        key: NoiseKey,
        slack_horizon: int = SLACK_HORIZON,
    ) -> None:
        """Prepare a counter before its first tick.

        Args:
            factorization: the mechanism.
            mu: GDP parameter of the whole stream, > 0.
            clip: l2 norm C of one unit's vector, in counts.
            dimension: number of coordinates d.
            key: the secret noise key of this stream incarnation.
            slack_horizon: ticks paid for in advance; later ones are refused.
        """
        d = positive_integer("dimension", dimension, high=_DIMENSION_MAX)
        self._clip: Final = clip
        grid = Grid.for_mu(
            factorization,
            mu,
            Contribution(clip, lower=-clip).sensitivity(factorization),
            touched_counters=d,
            slack_horizon=slack_horizon,
        )
        self._bank: Final = CounterBank(factorization, grid, KeyedNoise(key, range(d)))

    @property
    def grid(self) -> Grid:
        """The public grid: sigma, mu and what they rest on."""
        return self._bank.grid

    def contribute(self, vector: Sequence[int]) -> None:
        """Add one unit's vector to the open tick, clipped in l2."""
        if len(vector) != self._bank.keys:
            raise InvalidParameter("vector", f"{len(vector)} coordinates", f"{self._bank.keys} coordinates")
        for position, amount in enumerate(clip_l2(vector, self._clip)):
            self._bank.add(position, amount)

    def close_tick(self) -> TickRelease:
        """Close the open tick and release every coordinate's noisy total."""
        return self._bank.close_tick()

    def snapshot(self) -> bytes:
        """The state as sensitive bytes."""
        return self._bank.snapshot()

    def load(self, snapshot: bytes) -> None:
        """Continue from a snapshot of a counter with the same public parameters."""
        self._bank.load(snapshot)

    def __repr__(self) -> str:
        return f"VectorCounter({self._bank!r})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a counter does not pickle; use snapshot() and seal the bytes")
