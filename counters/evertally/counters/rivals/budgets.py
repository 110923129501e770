"""The two mechanisms without correlation between releases."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Final

import numpy as np

from evertally.counters.factorization import NoiseSource
from evertally.counters.rivals.protocol import FloatArray, Normals
from evertally.validation import positive_integer

__all__ = ["FixedBudget", "IndependentNoise"]

_SUMMED_TICKS: Final = 10**6


@dataclass(frozen=True, slots=True)
class IndependentNoise:
    """Fresh unit noise on every tick's increment; totals add them up, so the variance at t is t."""

    @property
    def name(self) -> str:
        """Name in tables."""
        return "independent noise per tick"

    @property
    def horizon(self) -> None:
        """Unbounded."""
        return None

    def variance(self, t: int) -> float:
        """t."""
        return float(positive_integer("t", t))

    def quoted_variance(self, t: int) -> float:
        """The variance."""
        return self.variance(t)

    def noise(self, source: NoiseSource) -> Iterator[FloatArray]:
        """Running sums of draws."""
        normals = Normals(source)
        total = np.zeros(source.keys)
        while True:
            total = total + normals.one()
            yield total


@dataclass(frozen=True, slots=True)
class FixedBudget:
    """Fresh noise on every released total; release t gets the share 1/(Z t (1+ln t)^2) of mu^2.

    One contribution is in all later releases, so the shares of an unbounded stream must have a finite sum;
    Z = sum_t 1/(t (1+ln t)^2) makes it 1. Polynomial shares such as 1/t^2 would do worse.
    """

    @property
    def name(self) -> str:
        """Name in tables."""
        return "fixed budget, fresh noise per release"

    @property
    def horizon(self) -> None:
        """Unbounded."""
        return None

    def variance(self, t: int) -> float:
        """Z t (1 + ln t)^2."""
        return _share_sum() * positive_integer("t", t) * (1.0 + math.log(t)) ** 2

    def quoted_variance(self, t: int) -> float:
        """The variance."""
        return self.variance(t)

    def noise(self, source: NoiseSource) -> Iterator[FloatArray]:
        """Independent draws of growing size."""
        normals = Normals(source)
        t = 0
        while True:
            t += 1
            yield math.sqrt(self.variance(t)) * normals.one()


@cache
def _share_sum() -> float:
    """Z, from above: the tail of a decreasing function is below its integral 1/(1 + ln N)."""
    t = np.arange(1, _SUMMED_TICKS + 1, dtype=np.float64)
    return math.fsum(1.0 / (t * (1.0 + np.log(t)) ** 2)) + 1.0 / (1.0 + math.log(_SUMMED_TICKS))
