"""Algorithm 2 of arXiv 2506.15018, for comparison only: asymptotic coefficients after a switch index.

From `switch` on l_n is the expansion at the singularity, n^{-1/2}/sqrt(pi) times F(u) + c_1 F'(u) +
c_2 F''(u)/2 with u = ln n, F(u) = u^gamma (2 ln u)^delta and c_k = sqrt(pi) (1/Gamma)^{(k)}(1/2).
These numbers define another L; what it costs is computed from them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from evertally.counters.factorization import NoiseEngine, NoiseSource
from evertally.counters.fft_engine import FftEngine
from evertally.counters.fft_refill import ETA, NoiseSeries
from evertally.counters.log_perturbed import HORIZON_MAX, LogPerturbed
from evertally.counters.participation_norm import finite_pattern_norm, rounded_up_sum
from evertally.counters.series import reciprocal_series
from evertally.errors import UnsupportedMechanism
from evertally.validation import integer, positive_integer

__all__ = ["SWITCH", "AsymptoticTail"]

FloatArray = NDArray[np.float64]

SWITCH: Final = 1 << 11
"""The paper's switch index."""
_SMALLEST_SWITCH: Final = 16  # ln ln n must be safely positive
# 1/Gamma(1/2 + e) = (1/sqrt(pi)) (1 + c1 e + c2 e^2/2 + ...): c1 = -psi(1/2), c2 = psi(1/2)^2 - pi^2/2.
_PSI_HALF: Final = -1.9635100260214235
_FIRST: Final = -_PSI_HALF
_SECOND: Final = _PSI_HALF * _PSI_HALF - math.pi * math.pi / 2.0


@dataclass(frozen=True, slots=True)
class AsymptoticTail:
    """A log-perturbed L whose coefficients from `switch` on are asymptotic; finite horizon only.

    Attributes:
        exact: the factorization whose first coefficients are kept (memory="fft").
        ticks: horizon, up to 2^26.
        switch: first asymptotic coefficient.

    Guarantees:
        - sensitivity and kappa are those of the coefficients used, L-hat (test_asymptotic_tail).

    Reference: arXiv 2506.15018, Algorithm 2; Flajolet and Odlyzko, SIAM J. Discrete Math. 3 (1990),
    theorem 3B and its expansion in derivatives of 1/Gamma.
    """

    exact: LogPerturbed
    ticks: int
    switch: int = SWITCH

    def __post_init__(self) -> None:
        positive_integer("ticks", self.ticks, high=HORIZON_MAX)
        integer("switch", self.switch, low=_SMALLEST_SWITCH, high=HORIZON_MAX)
        if self.exact.memory != "fft":
            raise UnsupportedMechanism("an asymptotic tail continues the exact coefficients of memory='fft'")

    @property
    def mechanism_id(self) -> str:
        """Canonical id."""
        return (
            f"asymptotic-tail:alpha={self.exact.alpha!r},loglog_ratio={self.exact.loglog_ratio!r},"
            f"ticks={self.ticks},switch={self.switch}"
        )

    @property
    def horizon(self) -> int:
        """The last tick whose sensitivity was computed."""
        return self.ticks

    @property
    def eta(self) -> float:
        """As for any FFT engine."""
        return ETA

    @property
    def state_rounding(self) -> float:
        """No states."""
        return 0.0

    @property
    def kappa(self) -> float:
        """sum |q_n| >= ||L-hat^{-1}||_{2->2} on the horizon, q the coefficients of 1/L-hat; rounded up."""
        strategy = self.strategy_coefficients(self.ticks)
        return float(np.abs(np.diff(strategy, prepend=0.0)).sum()) * (1.0 + 1e-9)

    def noise_coefficients(self, n: int) -> FloatArray:
        """l_0 .. l_{n-1} as used."""
        head = self.exact.noise_coefficients(min(n, self.switch))
        if n <= self.switch:
            return head
        gamma = 0.5 + self.exact.alpha
        delta = -self.exact.loglog_ratio * gamma
        return np.concatenate([head, _expansion(gamma, delta, np.arange(self.switch, n, dtype=np.float64))])

    def strategy_coefficients(self, n: int) -> FloatArray:
        """r_0 .. r_{n-1} of L-hat^{-1} (all ones)."""
        noise = self.noise_coefficients(n)
        return np.asarray(reciprocal_series(np.diff(noise, prepend=0.0)), dtype=np.float64)

    def noise_power(self, t: int) -> float:
        """sum_{k<t} l_k^2."""
        noise = self.noise_coefficients(positive_integer("t", t, high=HORIZON_MAX))
        return math.fsum(noise * noise)

    def sensitivity_squared(
        self, participations: int = 1, min_separation: int = 1, horizon: int | None = None
    ) -> float:
        """Squared sensitivity of L-hat up to the horizon, rounded up.

        Raises:
            UnsupportedMechanism: several participations and an R-hat that is not positive and non-increasing.
        """
        k = positive_integer("participations", participations)
        b = positive_integer("min_separation", min_separation)
        end = self.ticks if horizon is None else min(self.ticks, positive_integer("horizon", horizon))
        strategy = _strategy(self, end)
        if k == 1:
            return rounded_up_sum(strategy)
        if np.any(np.diff(strategy) > 0.0) or strategy[-1] <= 0.0:
            raise UnsupportedMechanism("several participations need a positive non-increasing strategy")
        return finite_pattern_norm(strategy, k, b)

    def engine(self, source: NoiseSource) -> NoiseEngine:
        """Algorithm 1 over these coefficients, which are exact by definition."""
        series = NoiseSeries(
            self.noise_coefficients, lambda n: self.noise_coefficients(n).astype(np.longdouble), 0.0
        )
        return FftEngine(series, source, self.ticks)


@lru_cache(maxsize=8)
def _strategy(tail: AsymptoticTail, n: int) -> FloatArray:
    return tail.strategy_coefficients(n)


def _expansion(gamma: float, delta: float, n: FloatArray) -> FloatArray:
    """n^{-1/2}/sqrt(pi) (F + c1 F' + c2 F''/2) at u = ln n."""
    u = np.log(n)
    v = np.log(u)
    level = u**gamma * (2.0 * v) ** delta
    slope = gamma / u + delta / (u * v)  # F'/F
    bend = slope * slope - gamma / u**2 - delta * (1.0 + v) / (u * v) ** 2  # F''/F
    expansion: FloatArray = level * (1.0 + _FIRST * slope + 0.5 * _SECOND * bend) / np.sqrt(math.pi * n)
    return expansion
