"""The log-perturbed factorization of the counting matrix, for streams without a known end.

R = f(.; -(1/2+alpha), delta), L = f(.; 1/2+alpha, -delta), delta = loglog_ratio (1/2+alpha), with
f(z; gamma, delta) = (1-z)^(-1/2) A(z)^gamma B(z)^delta (arXiv 2506.15018, section 3).
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from evertally.counters.coefficient_cache import cached_coefficients
from evertally.counters.constant_engine import constant_engine, state_rounding
from evertally.counters.constant_sensitivity import (
    constant_decay,
    constant_kappa,
    constant_noise_coefficients,
    constant_noise_power,
    constant_norm_squared,
    constant_strategy_coefficients,
)
from evertally.counters.exponential_power import ExponentialPowerTrack
from evertally.counters.factorization import NoiseEngine, NoiseSource
from evertally.counters.fft_engine import FftEngine
from evertally.counters.fft_refill import ETA, NoiseSeries
from evertally.counters.log_perturbed_nodes import (
    THETA_BITS,
    WEIGHT_BITS,
    DyadicNodes,
    dyadic_nodes,
    exact_noise_power,
)
from evertally.counters.log_perturbed_shape import strategy_is_decreasing
from evertally.counters.noise_power import CoefficientPowerTrack, NoisePowerTrack, noise_power_track
from evertally.counters.participation_norm import (
    finite_pattern_norm,
    infinite_pattern_norm,
    rounded_up_sum,
)
from evertally.counters.rational_roots import decay_norm_squared
from evertally.counters.sensitivity_quadrature import inverse_noise_norm, strategy_norm_squared
from evertally.counters.series import log_perturbed_series
from evertally.errors import InvalidParameter, UnsupportedMechanism
from evertally.validation import one_of, positive_integer, positive_real, real

__all__ = ["COEFFICIENT_ERROR", "HORIZON_MAX", "LogPerturbed"]

FloatArray = NDArray[np.float64]

HORIZON_MAX: Final = 1 << 26
"""Longest declared horizon: its sensitivity is a sum of that many computed coefficients."""
COEFFICIENT_ERROR: Final = 2.0**-46
"""Bound on ||l computed - l||_2 / ||l||_2; ten times what extended precision shows."""

_ALPHA_MIN: Final = 1e-3
_ALPHA_MAX: Final = 1.0
_RATIO_MIN: Final = 1e-6
_RATIO_MAX: Final = 2.0
_PARTICIPATIONS_MAX: Final = 2**31
_PATTERN_TERMS_MIN: Final = 1 << 16
_PATTERN_TERMS_MAX: Final = 1 << 22
_POWER_TERMS_MAX: Final = 1 << 16
_ID: Final = re.compile(
    r"log-perturbed:alpha=(?P<alpha>[0-9.e+-]{1,32}),loglog_ratio=(?P<ratio>[0-9.e+-]{1,32})"
    r"(,horizon=(?P<horizon>[0-9]{1,9}))?(?P<constant>,memory=constant)?"
)


@dataclass(frozen=True, slots=True)
class LogPerturbed:
    """A log-perturbed factorization and the way its noise is realised.

    Attributes:
        alpha: exponent excess, in [0.001, 1]; smaller is less noise early and a larger infinite norm.
            Within these bounds coefficients, quadrature and shape certificate are proved or checked.
        loglog_ratio: delta / (1/2 + alpha), 0 or in [1e-6, 2]; 1.2 makes r_1 = 1/2.
        horizon: last tick that may be released, up to 2^26; None is for ever. With a horizon the
            sensitivity is the partial sum, and tick horizon + 1 is refused.
        memory: "fft" realises L to g/2 with O(t) memory, for comparisons: the ledger does not charge for it
            (docs/proofs/snapped-mechanism.md, section 8); "constant" realises a sum of about 100
            exponentials close to L (a relative 1e-10) with its own, computed sensitivity.

    Guarantees:
        - `sensitivity_squared` is an upper bound of the mechanism realised (test_log_perturbed_golden).
        - L R = all ones; the noise obeys R (y_t - y_{t-1}) = z (test_log_perturbed_engine).

    Reference: arXiv 2506.15018, section 3 and Algorithm 1; docs/proofs/sensitivity-quadrature.md and
    docs/proofs/quadrature-form.md.

    >>> LogPerturbed().mechanism_id
    'log-perturbed:alpha=1.0,loglog_ratio=1.2'
    >>> round(LogPerturbed(0.01, 0.0).sensitivity_squared(), 6)
    16.587489
    """

    alpha: float = 1.0
    loglog_ratio: float = 1.2
    horizon: int | None = None
    memory: Literal["fft", "constant"] = "fft"

    def __post_init__(self) -> None:
        alpha = real("alpha", positive_real("alpha", self.alpha), low=_ALPHA_MIN, high=_ALPHA_MAX)
        ratio = real("loglog_ratio", self.loglog_ratio, low=0.0, high=_RATIO_MAX) + 0.0
        if 0.0 < ratio < _RATIO_MIN:
            raise InvalidParameter(
                "loglog_ratio", self.loglog_ratio, f"0 or a number in [{_RATIO_MIN}, {_RATIO_MAX}]"
            )
        object.__setattr__(self, "alpha", alpha)
        object.__setattr__(self, "loglog_ratio", ratio)
        if self.horizon is not None:
            object.__setattr__(self, "horizon", positive_integer("horizon", self.horizon, high=HORIZON_MAX))
        one_of("memory", self.memory, ("fft", "constant"))
        if self.memory == "constant":
            dyadic_nodes(self._gamma, -self._delta)  # refuses a density that is not positive

    @classmethod
    def from_id(cls, text: str) -> LogPerturbed:
        """Read back a `mechanism_id`; any other spelling of the same parameters is refused."""
        match = _ID.fullmatch(text)
        expected = 'such as "log-perturbed:alpha=1.0,loglog_ratio=1.2"'
        if match is None:
            raise InvalidParameter("mechanism", text, expected)
        try:
            alpha, ratio = float(match["alpha"]), float(match["ratio"])
        except ValueError:
            raise InvalidParameter("mechanism", text, expected) from None
        horizon = None if match["horizon"] is None else int(match["horizon"])
        found = cls(alpha, ratio, horizon, "fft" if match["constant"] is None else "constant")
        if found.mechanism_id != text:
            raise InvalidParameter("mechanism", text, f"the canonical text {found.mechanism_id!r}")
        return found

    @property
    def mechanism_id(self) -> str:
        """Canonical id with exact floats."""
        text = f"log-perturbed:alpha={self.alpha!r},loglog_ratio={self.loglog_ratio!r}"
        if self.horizon is not None:
            text += f",horizon={self.horizon}"
        return text + (",memory=constant" if self.memory == "constant" else "")

    @property
    def kappa(self) -> float:
        """Upper bound on ||L^{-1}||_{2->2} of the realised L; it holds for every horizon."""
        if self.memory == "constant":
            return constant_kappa(self._nodes)
        return inverse_noise_norm(self._gamma, -self._delta)

    @property
    def state_rounding(self) -> float:
        """sum_i sup|rho_i| in units of g; 0 for memory="fft"."""
        return state_rounding(self._nodes) if self.memory == "constant" else 0.0

    @property
    def eta(self) -> float:
        """|h_t - exact h_t| in units of g before the last rounding: 1/2 for FFT, 0 for integers."""
        return 0.0 if self.memory == "constant" else ETA

    def noise_coefficients(self, n: int) -> FloatArray:
        """l_0 .. l_{n-1} of the realised L, read-only float64 of shape (n,)."""
        n = positive_integer("n", n, high=1 << 28)
        if self.memory == "constant":
            return constant_noise_coefficients(self._nodes, n)
        return _coefficients(self._gamma, -self._delta, n)

    def strategy_coefficients(self, n: int) -> FloatArray:
        """r_0 .. r_{n-1} of R = L^{-1} (all ones), read-only float64 of shape (n,)."""
        n = positive_integer("n", n, high=1 << 28)
        if self.memory == "constant":
            return constant_strategy_coefficients(self._nodes, n)
        return _coefficients(-self._gamma, self._delta, n)

    def noise_power(self, t: int) -> float:
        """sum_{k<t} l_k^2, relative error below 1e-12."""
        t = positive_integer("t", t, high=1 << 62)
        if self.memory == "constant":
            return constant_noise_power(self._nodes, t)
        if t <= _POWER_TERMS_MAX:
            noise = self.noise_coefficients(t)
            return math.fsum(noise * noise)
        return exact_noise_power(self._gamma, -self._delta, t)

    def sensitivity_squared(
        self, participations: int = 1, min_separation: int = 1, horizon: int | None = None
    ) -> float:
        """Squared l2 sensitivity at clip 1, rounded up; the shorter of the two horizons counts.

        Args:
            participations: k, ticks one unit may contribute to.
            min_separation: b, least distance of two of them in ticks.
            horizon: last tick that will be released; None is for ever.

        Raises:
            UnsupportedMechanism: k > 1 where R is not proved positive and non-increasing, or a
                quadrature that did not converge.
        """
        k = positive_integer("participations", participations, high=_PARTICIPATIONS_MAX)
        b = positive_integer("min_separation", min_separation, high=1 << 62)
        if horizon is not None:
            horizon = positive_integer("horizon", horizon, high=1 << 62)
        ends = [end for end in (self.horizon, horizon) if end is not None]
        end = min(ends) if ends else None
        if end is not None:
            k = min(k, -(-end // b))
        if k > 1 and self.memory == "fft" and not strategy_is_decreasing(-self._gamma, self._delta):
            raise UnsupportedMechanism(
                "several participations need a strategy proved positive and non-increasing; "
                f"{self.mechanism_id} has none (a small alpha with loglog_ratio=0 or a ratio of 1 to 1.2 has)"
            )
        return _sensitivity_squared(self, k, b, end if end is not None and end <= HORIZON_MAX else None)

    def engine(self, source: NoiseSource) -> NoiseEngine:
        """An engine over the keys of `source`, before its first tick."""
        if self.memory == "constant":
            return constant_engine(self._nodes, source, self.horizon)
        return FftEngine(_noise_series(self._gamma, -self._delta), source, self.horizon)

    @property
    def _gamma(self) -> float:
        return 0.5 + self.alpha

    @property
    def _delta(self) -> float:
        return self.loglog_ratio * (0.5 + self.alpha)

    @property
    def _nodes(self) -> DyadicNodes:
        return dyadic_nodes(self._gamma, -self._delta)

    def _norm_squared(self) -> float:
        if self.memory == "constant":
            return constant_norm_squared(self._nodes)
        return strategy_norm_squared(-self._gamma, self._delta)


@noise_power_track.register
def _(factorization: LogPerturbed) -> NoisePowerTrack:
    if factorization.memory == "fft":
        return CoefficientPowerTrack(factorization)
    nodes = factorization._nodes

    def decay(powers: list[int]) -> list[int]:
        return [p * theta >> THETA_BITS for p, theta in zip(powers, nodes.thetas, strict=True)]

    return ExponentialPowerTrack(nodes.weights, WEIGHT_BITS, decay)


@lru_cache(maxsize=256)
def _sensitivity_squared(mechanism: LogPerturbed, k: int, b: int, horizon: int | None) -> float:
    norm_squared = mechanism._norm_squared()
    if horizon is None:
        if k == 1:
            return norm_squared
        if mechanism.memory == "constant":
            return decay_norm_squared(constant_decay(mechanism._nodes), k, b, None)
        terms = min(_PATTERN_TERMS_MAX, max(_PATTERN_TERMS_MIN, 64 * (k - 1) * b))
        return infinite_pattern_norm(mechanism.strategy_coefficients(terms), norm_squared, k, b)
    strategy = mechanism.strategy_coefficients(horizon)
    if k == 1:
        return min(norm_squared, rounded_up_sum(strategy))
    return finite_pattern_norm(strategy, k, b)


_IN_MEMORY: Final[dict[tuple[float, float], FloatArray]] = {}
_IN_MEMORY_SERIES_MAX: Final = 4


def _coefficients(gamma: float, delta: float, n: int) -> FloatArray:
    """The longest prefix asked for so far stays in memory: a step that wants a part of it never waits."""
    found = _IN_MEMORY.get((gamma, delta))
    if found is None or len(found) < n:
        name = f"log-perturbed gamma={gamma!r} delta={delta!r}"
        found = cached_coefficients(name, n, partial(_compute, gamma, delta))
        for old in list(_IN_MEMORY)[: max(0, len(_IN_MEMORY) - _IN_MEMORY_SERIES_MAX + 1)]:
            _IN_MEMORY.pop(old, None)
        _IN_MEMORY[gamma, delta] = found
    return found[:n]


def _compute(gamma: float, delta: float, n: int) -> FloatArray:
    return log_perturbed_series(gamma, delta, n).astype(np.float64, copy=False)


def _noise_series(gamma: float, delta: float) -> NoiseSeries:
    """What an FFT engine needs of L; extended precision must be wider than double."""
    if np.finfo(np.longdouble).nmant < 63:
        raise UnsupportedMechanism(
            "memory='fft' needs a long double of 64 bits or more on this machine; use memory='constant'"
        )
    return NoiseSeries(
        partial(_coefficients, gamma, delta),
        lambda n: log_perturbed_series(gamma, delta, n, np.longdouble),
        COEFFICIENT_ERROR,
    )
