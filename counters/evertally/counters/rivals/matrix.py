"""Any factorization as a rival: its own engine, calibrated to unit privacy."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from evertally.counters.factorization import Factorization, NoiseSource
from evertally.counters.fft_engine import FftEngine
from evertally.counters.rivals.protocol import FloatArray

__all__ = ["MatrixRival"]

_GRID: Final = 2.0**30
_BLOCK: Final = 4096


@dataclass(frozen=True, slots=True)
class MatrixRival:
    """A factorization at unit privacy: noise L z with z of variance ||R||^2.

    Attributes:
        factorization: the mechanism; its own sensitivity, for its own horizon.
        label: what tables call it.
    """

    factorization: Factorization
    label: str

    @property
    def name(self) -> str:
        """Name in tables."""
        return self.label

    @property
    def horizon(self) -> int | None:
        """The factorization's horizon."""
        return self.factorization.horizon

    def variance(self, t: int) -> float:
        """||R||^2 sum_{k<t} l_k^2."""
        squared = self.factorization.sensitivity_squared(horizon=self.horizon)
        return squared * self.factorization.noise_power(t)

    def quoted_variance(self, t: int) -> float:
        """The variance."""
        return self.variance(t)

    def noise(self, source: NoiseSource) -> Iterator[FloatArray]:
        """The engine's integers, in units of sigma."""
        scale = math.sqrt(self.factorization.sensitivity_squared(horizon=self.horizon)) / _GRID
        engine = self.factorization.engine(source)
        try:
            while self.horizon is None or engine.t < self.horizon:
                count = _BLOCK if self.horizon is None else min(_BLOCK, self.horizon - engine.t)
                fresh, correlated = engine.run(count)
                yield from scale * (fresh + correlated)
        finally:
            if isinstance(engine, FftEngine):
                engine.close()
