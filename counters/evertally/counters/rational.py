"""Rational factorizations: the default mechanism, constant memory, finite sensitivity for ever.

L(z) = sum_i w_i / (1 - theta_i z), w_i > 0, theta_i in {0, 1 - 2^-k_i, 1}. The pole at 1 makes
R(z) = 1/((1-z) L(z)) decay exponentially, so ||R|| is finite over an infinite stream and no horizon
bounds the guarantee; past the design range only the variance grows. The zeros of (1-z) L interlace
with the poles, hence R_n = sum_j c_j e^{-mu_j n} with all c_j > 0 (docs/proofs/rational-presets.md).

The weights are dyadic integers: all closed forms here are those of the mechanism that is realised.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

import numpy as np
from numpy.typing import NDArray

from evertally.counters.exponential_power import ExponentialPowerTrack
from evertally.counters.factorization import NoiseEngine, NoiseSource
from evertally.counters.noise_power import NoisePowerTrack, noise_power_track
from evertally.counters.presets import PRESETS
from evertally.counters.rational_engine import FRACTION_BITS, rational_engine
from evertally.counters.rational_roots import (
    Decay,
    decay_modes,
    decay_norm_squared,
    precise_context,
)
from evertally.errors import InvalidParameter
from evertally.validation import integer, positive_integer

__all__ = ["Rational"]

_EXPONENT_MAX: Final = 60
_PARTICIPATIONS_MAX: Final = 2**62
_SMALL_WEIGHT: Final = 2.0**-20
_LABEL: Final = re.compile(r"k=(?P<k>[0-9]+(,[0-9]+)*);w=(?P<w>[0-9a-f]+(,[0-9a-f]+)*);bits=(?P<bits>32|60)")


@dataclass(frozen=True, slots=True)
class Rational:
    """A rational factorization with dyadic weights.

    Attributes:
        exponents: k_1 < k_2 < ...; theta_i = 1 - 2^-k_i.
        weights: integers in units of 2^-weight_bits, one for each exponent, then the weight of
            theta = 1, then that of theta = 0; they add up to 2^weight_bits, so l_0 = 1 exactly.
        weight_bits: 32 or 60.
        label: the preset's name, or a canonical text of the parameters.

    Guarantees:
        - `sensitivity_squared` is an upper bound for an infinite stream (test_rational_golden).
        - L R = all ones (test_factorization_contract).

    Reference: docs/proofs/rational-presets.md; the counting factorization is arXiv 2506.15018.

    >>> round(Rational.preset("W32").sensitivity_squared(), 9)
    4.352869963
    """

    exponents: tuple[int, ...]
    weights: tuple[int, ...]
    weight_bits: int
    label: str

    def __post_init__(self) -> None:
        if self.weight_bits not in (32, 60):
            raise InvalidParameter("weight_bits", self.weight_bits, "32 or 60")
        if not self.exponents or list(self.exponents) != sorted(set(self.exponents)):
            raise InvalidParameter("exponents", self.exponents, "increasing distinct integers")
        for k in self.exponents:
            integer("exponents", k, low=1, high=_EXPONENT_MAX)
        if len(self.weights) != len(self.exponents) + 2 or sum(self.weights) != 1 << self.weight_bits:
            raise InvalidParameter("weights", self.weights, "one an exponent and two more, adding up to 1")
        if min(self.weights[:-1]) <= 0 or self.weights[-1] < 0:
            raise InvalidParameter("weights", self.weights, "positive weights, that of theta=1 included")

    @classmethod
    def preset(cls, name: str) -> Rational:
        """A frozen preset: "W32" (the default, designed for 2^8..2^32), "H24", "H40" or "H48"."""
        if name not in PRESETS:
            raise InvalidParameter("mechanism", f"rational:{name}", "a preset of " + ", ".join(PRESETS))
        exponents, weights = PRESETS[name]
        return cls.from_weights(exponents, weights, label=name)

    @classmethod
    def from_weights(
        cls, exponents: tuple[int, ...], weights: tuple[float, ...], *, label: str | None = None
    ) -> Rational:
        """Make real weights dyadic; theta=0 takes what the others leave.

        Weights below 2^-20 take 60 bits, others 32. A weight that rounds to 0 is refused.
        """
        if len(weights) != len(exponents) + 2:
            raise InvalidParameter("weights", len(weights), f"{len(exponents) + 2} weights")
        if not all(math.isfinite(w) and w > 0 for w in weights[:-1]):
            raise InvalidParameter("weights", weights, "finite positive weights, that of theta=1 included")
        bits = 60 if min(weights[:-1]) < _SMALL_WEIGHT else 32
        dyadic = tuple(round(Fraction(w) * (1 << bits)) for w in weights[:-1])
        rest = (1 << bits) - sum(dyadic)
        if rest < 0:
            raise InvalidParameter("weights", weights, "weights that add up to at most 1")
        text = (
            "k="
            + ",".join(map(str, exponents))
            + ";w="
            + ",".join(f"{w:x}" for w in dyadic)
            + f";bits={bits}"
        )
        return cls(exponents, (*dyadic, rest), bits, label or text)

    @classmethod
    def design(cls, first: int, last: int) -> Rational:
        """Weights that minimise the largest ratio of variance to V_t^2 over t in [first, last].

        The guarantee holds for ever, also outside the range; only the error is tuned to it. Takes seconds.
        """
        from evertally.counters.rational_design import design_rational  # noqa: PLC0415 - scipy.optimize is slow to import

        exponents, weights = design_rational(first, last)
        return cls.from_weights(exponents, weights)

    @classmethod
    def from_label(cls, label: str) -> Rational:
        """Read back a label: a preset's name, or the canonical text of a designed factorization."""
        if label in PRESETS:
            return cls.preset(label)
        match = _LABEL.fullmatch(label)
        if match is None:
            raise InvalidParameter("mechanism", f"rational:{label}", "a preset of " + ", ".join(PRESETS))
        exponents = tuple(int(k) for k in match["k"].split(","))
        dyadic = tuple(int(w, 16) for w in match["w"].split(","))
        bits = int(match["bits"])
        return cls(exponents, (*dyadic, (1 << bits) - sum(dyadic)), bits, label)

    @property
    def mechanism_id(self) -> str:
        """Canonical id, "rational:" and the label."""
        return f"rational:{self.label}"

    @property
    def horizon(self) -> None:
        """None: the guarantee holds for ever."""
        return None

    @property
    def kappa(self) -> float:
        """||L^{-1}||_{2->2} = 1/f_L(-1) <= 2, rounded up."""
        value = self.weights[-1] + Fraction(self.weights[-2], 2)
        for k, w in zip(self.exponents, self.weights, strict=False):
            value += w / (2 - Fraction(1, 1 << k))
        exact = (1 << self.weight_bits) / value
        found = float(exact)
        return math.nextafter(found, math.inf) if found < exact else found

    @property
    def state_rounding(self) -> float:
        """Floor rounding of the decaying states, in grid units a tick (the sum at theta=1 is exact)."""
        return len(self.exponents) * 2.0**-FRACTION_BITS

    @property
    def eta(self) -> float:
        """0: the integer engine's h is exact before its one rounding."""
        return 0.0

    @property
    def decay(self) -> Decay:
        """Amplitudes c_j and roots s_j with R_n = sum_j c_j (1 + s_j)^-n."""
        one = 1 << self.weight_bits
        return decay_modes(
            tuple(Fraction(1, 1 << k) for k in self.exponents), tuple(Fraction(w, one) for w in self.weights)
        )

    def noise_coefficients(self, n: int) -> NDArray[np.float64]:
        """l_0 .. l_{n-1} as float64 of shape (n,)."""
        n = positive_integer("n", n, high=2**32)
        real = self._real_weights()
        coefficients = np.full(n, real[-2])
        ticks = np.arange(n, dtype=np.float64)
        for k, w in zip(self.exponents, real, strict=False):
            coefficients += w * np.exp(ticks * math.log1p(-(2.0**-k)))
        coefficients[0] = 1.0
        return coefficients

    def strategy_coefficients(self, n: int) -> NDArray[np.float64]:
        """r_0 .. r_{n-1} as float64 of shape (n,): positive and decreasing."""
        n = positive_integer("n", n, high=2**32)
        ticks = np.arange(n, dtype=np.float64)
        coefficients = np.zeros(n)
        context = precise_context(160)
        for c, s in zip(*self.decay, strict=True):
            coefficients += float(c) * np.exp(-ticks * float(context.log1p(context.mpf(s))))
        coefficients[0] = 1.0
        return coefficients

    def sensitivity_squared(
        self, participations: int = 1, min_separation: int = 1, horizon: int | None = None
    ) -> float:
        """Squared l2 sensitivity at clip 1 for k participations at least b ticks apart, rounded up.

        Exact for any horizon at k = 1 and for an infinite one at k > 1 (an upper bound for a finite
        one); contributions may have either sign, since all autocorrelations are positive.

        >>> round(Rational.preset("W32").sensitivity_squared(horizon=1), 12)
        1.0
        """
        k = positive_integer("participations", participations, high=_PARTICIPATIONS_MAX)
        b = positive_integer("min_separation", min_separation, high=2**63 - 1)
        n = None if horizon is None else positive_integer("horizon", horizon, high=2**63 - 1)
        return decay_norm_squared(self.decay, k, b, n)

    def noise_power(self, t: int) -> float:
        """sum_{k<t} l_k^2 in closed form, relative error below 1e-13."""
        t = positive_integer("t", t, high=2**63 - 1)
        real, rates = self._real_weights(), self._rates()
        total = 1.0 - (1.0 - real[-1]) ** 2
        return total + _geometric_power(real[:-1], rates, t)

    def window_power(self, t: int, width: int) -> float:
        """||L_t - L_{t-width}||^2: the noise power of the difference of the releases at t and t - width."""
        t = positive_integer("t", t, high=2**63 - 1)
        w = positive_integer("width", width, high=t)
        power = self.noise_power(w)
        if w == t:
            return power
        real, rates = self._real_weights(), self._rates()
        steps = [a * math.expm1(w * rate) for a, rate in zip(real[:-1], rates, strict=True)]
        first = sum(steps)
        return power + _geometric_power(steps, rates, t - w) + (first - real[-1]) ** 2 - first**2

    def engine(self, source: NoiseSource) -> NoiseEngine:
        """The integer engine over the keys of `source`."""
        return rational_engine(self.exponents, self.weights, self.weight_bits, source)

    def _real_weights(self) -> list[float]:
        return [math.ldexp(w, -self.weight_bits) for w in self.weights]

    def _rates(self) -> list[float]:
        return [math.log1p(-(2.0**-k)) for k in self.exponents] + [0.0]


@noise_power_track.register
def _(factorization: Rational) -> NoisePowerTrack:
    exponents = factorization.exponents

    def decay(powers: list[int]) -> list[int]:
        decayed = [p - (p >> k) for p, k in zip(powers, exponents, strict=False)]
        return [*decayed, powers[-1]]

    return ExponentialPowerTrack(factorization.weights[:-1], factorization.weight_bits, decay)


def _geometric_power(amplitudes: list[float], rates: list[float], t: int) -> float:
    """sum_{k<t} (sum_i a_i e^{rate_i k})^2."""
    total = 0.0
    for a, p in zip(amplitudes, rates, strict=True):
        for b, q in zip(amplitudes, rates, strict=True):
            rate = p + q
            total += a * b * (float(t) if rate == 0.0 else math.expm1(t * rate) / math.expm1(rate))
    return total
