"""Unbounded mechanisms that cut time at the powers of two."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np

from evertally.counters.factorization import Factorization, NoiseSource
from evertally.counters.power_series import power_coefficients
from evertally.counters.rivals.protocol import FloatArray, Normals
from evertally.counters.rivals.trees import tree_noise
from evertally.counters.series_fft import real_transform
from evertally.counters.yardstick import yardstick
from evertally.validation import positive_integer

__all__ = ["DoublingTrick", "Hybrid", "MatrixHybrid", "square_root_noise"]

_SEGMENTS_MAX: Final = 64


def square_root_noise(normals: Normals, ticks: int) -> FloatArray:
    """Noise of the square root made for `ticks` ticks, at unit privacy, shape (ticks, keys)."""
    coefficients = power_coefficients(0.5, ticks)
    transform = real_transform(2 * ticks)
    spectrum = transform.forward(coefficients)
    draws = normals.take(ticks)
    noise = np.empty_like(draws)
    for key in range(draws.shape[1]):
        noise[:, key] = transform.filtered(draws[:, key], spectrum)[:ticks]
    return math.sqrt(yardstick(ticks)) * noise


@dataclass(frozen=True, slots=True)
class Hybrid:
    """The hybrid mechanism: noise on the total of each segment (2^m, 2^(m+1)], a tree inside the open one.

    Half of mu^2 pays for the segment totals (variance 2 each), half for the tree of the item's segment (m+1
    levels of variance 2(m+1)). At t = 2^(m+1) the segment's total is published in place of its tree.

    Reference: Chan, Shi and Song, ACM TISSEC 14(3) 2011, section 3.4; Gaussian noise.
    """

    @property
    def name(self) -> str:
        """Name in tables."""
        return "hybrid (mean)"

    @property
    def horizon(self) -> None:
        """Unbounded."""
        return None

    def variance(self, t: int) -> float:
        """2 for each closed segment and 2(m+1) for each tree node in the sum."""
        m, inside = _position(t)
        if inside == 0:
            return 2.0 * (m + 1)
        return 2.0 * (m + 1) + 2.0 * (m + 1) * inside.bit_count()

    def quoted_variance(self, t: int) -> float:
        """Mean over the segment that ends at t (or the one that holds t): 2(m+1) + (m+1) m, to 2/2^m."""
        m = max(0, (positive_integer("t", t) - 1).bit_length() - 1)
        return 2.0 * (m + 1) + float((m + 1) * m)

    def noise(self, source: NoiseSource) -> Iterator[FloatArray]:
        """Totals of closed segments, then the open segment's tree."""
        normals = Normals(source)
        closed = math.sqrt(2.0) * normals.one()
        yield closed
        m = 0
        while True:
            for inside in tree_noise(normals, 2**m - 1, math.sqrt(2.0 * (m + 1))):
                yield closed + inside
            closed = closed + math.sqrt(2.0) * normals.one()
            yield closed
            m += 1


@dataclass(frozen=True, slots=True)
class MatrixHybrid:
    """The log-perturbed paper's hybrid: an unbounded factorization across segments, square roots inside.

    Half of mu^2 pays for the sequence of segment totals, released through `across`; half for the square-root
    mechanism of length 2^m that runs inside segment (2^m, 2^(m+1)].

    Reference: arXiv 2506.15018, hybrid mechanism, with Henzinger, Upadhyay and Upadhyay (arXiv 2202.11205)
    as the bounded mechanism.

    Attributes:
        across: factorization of the segment totals, of infinite guarantee.
        label: what tables call it.
    """

    across: Factorization
    label: str = "hybrid of factorizations"

    @property
    def name(self) -> str:
        """Name in tables."""
        return self.label

    @property
    def horizon(self) -> None:
        """Unbounded: 64 segments hold 2^63 ticks."""
        return None

    def variance(self, t: int) -> float:
        """2 ||R||^2 P_(m+1) for the totals, 2 V_(2^m) V_s inside, s ticks into the open segment."""
        m, inside = _position(t)
        totals = 2.0 * self.across.sensitivity_squared() * _totals_power(self.across, m + 1)  # type: ignore[arg-type]  # frozen dataclasses hash
        return totals if inside == 0 else totals + 2.0 * yardstick(2**m) * yardstick(inside)

    def quoted_variance(self, t: int) -> float:
        """The largest variance in the segment that holds or ends at t: its last tick before the total."""
        m = max(0, (positive_integer("t", t) - 1).bit_length() - 1)
        return self.variance(2 ** (m + 1) - 1) if m > 0 else self.variance(t)

    def noise(self, source: NoiseSource) -> Iterator[FloatArray]:
        """Totals through `across`, then the open segment's square root."""
        normals = Normals(source)
        coefficients = self.across.noise_coefficients(_SEGMENTS_MAX)
        scale = math.sqrt(2.0 * self.across.sensitivity_squared())
        drawn = [normals.one()]
        closed = scale * drawn[0]
        yield closed
        for m in range(_SEGMENTS_MAX - 1):
            for inside in square_root_noise(normals, 2**m)[:-1]:
                yield closed + math.sqrt(2.0) * inside
            drawn.append(normals.one())
            closed = scale * (coefficients[: len(drawn)][::-1] @ np.array(drawn))
            yield closed


@dataclass(frozen=True, slots=True)
class DoublingTrick:
    """A fresh bounded square root for each segment [2^m, 2^(m+1)), started when the last one is full.

    An item is in one segment only, so each gets the whole budget; final releases of closed segments add up.

    Reference: the usual reduction from an unknown horizon; arXiv 2506.15018, section 1.
    """

    @property
    def name(self) -> str:
        """Name in tables."""
        return "doubling trick"

    @property
    def horizon(self) -> None:
        """Unbounded."""
        return None

    def variance(self, t: int) -> float:
        """sum_{j<m} V_(2^j)^2 + V_(2^m) V_s, s = t - 2^m + 1."""
        m = positive_integer("t", t).bit_length() - 1
        closed = math.fsum(yardstick(2**j) ** 2 for j in range(m))
        return closed + yardstick(2**m) * yardstick(t - 2**m + 1)

    def quoted_variance(self, t: int) -> float:
        """The variance."""
        return self.variance(t)

    def noise(self, source: NoiseSource) -> Iterator[FloatArray]:
        """One bounded square root after the other."""
        normals = Normals(source)
        closed = np.zeros(source.keys)
        m = 0
        while True:
            noise = square_root_noise(normals, 2**m)
            for inside in noise:
                yield closed + inside
            closed = closed + noise[-1]
            m += 1


@lru_cache(maxsize=1024)
def _totals_power(across: Hashable, segments: int) -> float:
    assert isinstance(across, Factorization)
    return across.noise_power(segments)


def _position(t: int) -> tuple[int, int]:
    """(m, s) with t = 2^m + s, 0 <= s < 2^m: m closed segments beyond the first tick, s ticks inside."""
    m = positive_integer("t", t, high=2 ** (_SEGMENTS_MAX - 1)).bit_length() - 1
    return m, t - 2**m
