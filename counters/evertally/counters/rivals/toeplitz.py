"""Factorizations by powers of 1/(1-z): the square root that knows its horizon, and a straw man."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np
from scipy.special import gammaln

from evertally.counters.factorization import NoiseEngine, NoiseSource
from evertally.counters.fft_engine import FftEngine
from evertally.counters.fft_refill import ETA, NoiseSeries
from evertally.counters.participation_norm import finite_pattern_norm
from evertally.counters.power_series import (
    POWER_SERIES_ERROR,
    extended_power_coefficients,
    power_coefficients,
    power_noise_power,
)
from evertally.counters.rivals.protocol import FloatArray
from evertally.counters.yardstick import yardstick
from evertally.errors import InvalidParameter, UnsupportedMechanism
from evertally.validation import positive_integer, positive_real

__all__ = ["PowerPerturbation", "SquareRoot"]

_UP: Final = 1.0 + 1e-12
"""Sums of positive terms with relative errors of a few 2^-53 each are rounded up by this factor."""
_TICKS_MAX: Final = 2**28
_PARTICIPATIONS_MAX: Final = 2**16


@dataclass(frozen=True, slots=True)
class SquareRoot:
    """L = R = (1-z)^(-1/2) cut at a horizon that must be known in advance.

    Nearly optimal among factorizations for exactly `ticks` ticks: its variance at the last is V_ticks^2.

    Reference: arXiv 2202.11205 (Henzinger, Upadhyay and Upadhyay, SODA 2023).

    Attributes:
        ticks: the horizon; the stream refuses tick ticks + 1.

    >>> round(SquareRoot(2**12).sensitivity_squared(), 9)
    3.713883627
    """

    ticks: int

    def __post_init__(self) -> None:
        positive_integer("ticks", self.ticks, high=_TICKS_MAX)

    @property
    def mechanism_id(self) -> str:
        """Canonical id, "square-root:ticks=N"."""
        return f"square-root:ticks={self.ticks}"

    @property
    def horizon(self) -> int:
        """The known number of ticks."""
        return self.ticks

    @property
    def kappa(self) -> float:
        """max |1-z|^(1/2) on the circle, sqrt 2, rounded up."""
        return math.sqrt(2.0) * _UP

    @property
    def state_rounding(self) -> float:
        """0: no recursive state."""
        return 0.0

    @property
    def eta(self) -> float:
        """Bound of the FFT engine."""
        return ETA

    def noise_coefficients(self, n: int) -> FloatArray:
        """c_0 .. c_{n-1}."""
        return power_coefficients(0.5, positive_integer("n", n, high=self.ticks))

    def strategy_coefficients(self, n: int) -> FloatArray:
        """c_0 .. c_{n-1}."""
        return self.noise_coefficients(n)

    def sensitivity_squared(
        self, participations: int = 1, min_separation: int = 1, horizon: int | None = None
    ) -> float:
        """Largest ||R u||^2 over k contributions at least b ticks apart within the horizon, rounded up.

        c is positive and decreasing, so the worst pattern starts at tick 1 with gaps of exactly b.
        """
        ticks = self.ticks if horizon is None else positive_integer("horizon", horizon, high=self.ticks)
        k = positive_integer("participations", participations)
        b = positive_integer("min_separation", min_separation)
        if k == 1:
            return yardstick(ticks) * _UP
        return finite_pattern_norm(power_coefficients(0.5, ticks), min(k, -(-ticks // b)), min(b, ticks))

    def noise_power(self, t: int) -> float:
        """V_t."""
        return yardstick(positive_integer("t", t, high=self.ticks))

    def engine(self, source: NoiseSource) -> NoiseEngine:
        """The FFT engine on the coefficients."""
        return _fft_engine(0.5, source, self.ticks)


@dataclass(frozen=True, slots=True)
class PowerPerturbation:
    """R = (1-z)^(-1/2+a), L = (1-z)^(-1/2-a): the simplest change that makes ||R|| finite for ever.

    ||R||^2 = Gamma(2a)/Gamma(1/2+a)^2, but the variance grows like t^(2a): it is the straw man that the
    log-perturbed family improves on.

    Reference: arXiv 2506.15018, section 3 (the discussion before the logarithmic perturbation).

    Attributes:
        exponent: a, in (0, 1/2).
    """

    exponent: float

    def __post_init__(self) -> None:
        if positive_real("exponent", self.exponent) >= 0.5:
            raise InvalidParameter("exponent", self.exponent, "a number in (0, 1/2)")

    @property
    def mechanism_id(self) -> str:
        """Canonical id, "power:exponent=a"."""
        return f"power:exponent={self.exponent!r}"

    @property
    def horizon(self) -> None:
        """None: the guarantee holds for ever."""
        return None

    @property
    def kappa(self) -> float:
        """max |1-z|^(1/2+a) on the circle, rounded up."""
        return math.exp2(0.5 + self.exponent) * _UP

    @property
    def state_rounding(self) -> float:
        """0: no recursive state."""
        return 0.0

    @property
    def eta(self) -> float:
        """Bound of the FFT engine."""
        return ETA

    def noise_coefficients(self, n: int) -> FloatArray:
        """First n coefficients of (1-z)^(-1/2-a)."""
        return power_coefficients(0.5 + self.exponent, n)

    def strategy_coefficients(self, n: int) -> FloatArray:
        """First n coefficients of (1-z)^(-1/2+a)."""
        return power_coefficients(0.5 - self.exponent, n)

    def sensitivity_squared(
        self, participations: int = 1, min_separation: int = 1, horizon: int | None = None
    ) -> float:
        """Closed form for k contributions at least b ticks apart over an infinite stream, rounded up.

        r(j)/r(0) = prod_{i<=j} (i-1+p)/(i-p) with p = 1/2 - a; R is positive and decreasing. With a horizon
        and one participation: the partial sum.
        """
        k = positive_integer("participations", participations, high=_PARTICIPATIONS_MAX)
        b = positive_integer("min_separation", min_separation)
        if horizon is not None and k == 1:
            r = self.strategy_coefficients(positive_integer("horizon", horizon, high=_TICKS_MAX))
            return math.fsum(r**2) * _UP
        p = 0.5 - self.exponent
        log_norm = gammaln(1.0 - 2.0 * p) - 2.0 * gammaln(1.0 - p)
        lags = b * np.arange(k, dtype=np.float64)
        ratio = gammaln(lags + p) - gammaln(p) - gammaln(lags + 1.0 - p) + gammaln(1.0 - p)
        weights = np.where(lags == 0.0, k, 2.0 * (k - np.arange(k)))
        # gammaln of a large lag loses lag * 2^-52 absolutely, far below what _UP covers up to 2^40 ticks.
        if float(lags[-1]) > 2.0**13:
            raise UnsupportedMechanism("power perturbation: contributions more than 8192 ticks apart")
        return float((weights * np.exp(log_norm + ratio)).sum()) * _UP

    def noise_power(self, t: int) -> float:
        """sum_{k<t} l_k^2."""
        return power_noise_power(0.5 + self.exponent, positive_integer("t", t, high=2**63 - 1))

    def engine(self, source: NoiseSource) -> NoiseEngine:
        """The FFT engine on the coefficients."""
        return _fft_engine(0.5 + self.exponent, source, None)


def _fft_engine(power: float, source: NoiseSource, horizon: int | None) -> NoiseEngine:
    series = NoiseSeries(
        double=partial(power_coefficients, power),
        extended=partial(extended_power_coefficients, power),
        relative_error=POWER_SERIES_ERROR,
    )
    return FftEngine(series, source, horizon)
