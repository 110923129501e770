"""The snapping grid of one mechanism and what the whole stream costs on it.

Noise is drawn with standard deviation exactly 2^30 grid units; a count of 1 is q grid units, so
sigma = 2^30 / q and data enters as the integer q S_t. The adaptive output is mu-GDP with
mu = (Delta q + A) / 2^30, A = sqrt(m n) (kappa (1 + 2 eta) + 2 state_rounding), where n is the slack
horizon and m the number of counters one privacy unit can touch
(docs/proofs/snapped-mechanism.md, "Theorem" and "Grid").
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from evertally.counters.factorization import Factorization
from evertally.counters.gaussian import GRID_BITS
from evertally.errors import UnsupportedMechanism
from evertally.validation import positive_integer, positive_real

__all__ = ["SLACK_HORIZON", "Grid"]

SLACK_HORIZON: Final = 2**30
"""Ticks whose rounding slack a stream pays for by default."""

_UNIT: Final = 1 << GRID_BITS
_CIPHER_BLOCK_BITS: Final = 129
_UNDECIDED_BITS: Final = 92


@dataclass(frozen=True, slots=True)
class Grid:
    """A grid and its exact price. All attributes are public and fixed before any data.

    Attributes:
        q: grid units a count, >= 1.
        sensitivity: Delta = clip * ||R|| * (what the privacy unit may do), rounded up, in counts.
        slack: A in grid units, rounded up.
        slack_horizon: last tick whose rounding is paid for.
    """

    q: int
    sensitivity: float
    slack: float
    slack_horizon: int

    @classmethod
    def for_mu(
        cls,
        factorization: Factorization,
        mu: float,
        sensitivity: float,
        *,
        touched_counters: int = 1,
        slack_horizon: int = SLACK_HORIZON,
    ) -> Grid:
        """The finest noise whose whole price, slack included, is at most `mu`."""
        target = Fraction(positive_real("mu", mu, high=2.0**20))
        delta, slack, horizon = _parts(factorization, sensitivity, touched_counters, slack_horizon)
        return cls(cls._steps(target * _UNIT - Fraction(slack), delta), delta, slack, horizon)

    @classmethod
    def for_sigma(
        cls,
        factorization: Factorization,
        sigma: float,
        sensitivity: float,
        *,
        touched_counters: int = 1,
        slack_horizon: int = SLACK_HORIZON,
    ) -> Grid:
        """The grid whose noise is at least `sigma` (in counts); `mu` is then its price."""
        wanted = Fraction(positive_real("sigma", sigma, high=2.0**1000))
        delta, slack, horizon = _parts(factorization, sensitivity, touched_counters, slack_horizon)
        q = math.floor(Fraction(_UNIT) / wanted)
        if q < 1:
            raise UnsupportedMechanism(
                f"sigma: {sigma:g} is above 2^{GRID_BITS} counts; count in larger units"
            )
        return cls(q, delta, slack, horizon)

    @property
    def mu(self) -> float:
        """GDP parameter of the stream's whole output up to the slack horizon, rounded up."""
        exact = (Fraction(self.sensitivity) * self.q + Fraction(self.slack)) / _UNIT
        value = float(exact)
        return value if Fraction(value) >= exact else math.nextafter(value, math.inf)

    @property
    def sigma(self) -> float:
        """Noise standard deviation at mu's factorization scale, in counts: 2^30 / q."""
        return _UNIT / self.q

    def computational_delta(self, counters: int) -> float:
        """What the keyed stream and undecided draws add to delta over the slack horizon.

        n 2^-92 for draws that one block does not decide, n^2 2^-129 for AES taken as a random
        function, over the n = slack_horizon * counters blocks of one stream key.
        """
        draws = float(self.slack_horizon) * positive_integer("counters", counters)
        return draws * 2.0**-_UNDECIDED_BITS + draws * draws * 2.0**-_CIPHER_BLOCK_BITS

    @staticmethod
    def _steps(budget: Fraction, delta: float) -> int:
        q = math.floor(budget / Fraction(delta))
        if q < 1:
            raise UnsupportedMechanism(
                "mu: too small for this sensitivity on the 2^-30 grid; shorten the slack horizon, "
                "raise mu or count in larger units"
            )
        return q


def _parts(
    factorization: Factorization, sensitivity: float, touched_counters: int, slack_horizon: int
) -> tuple[float, float, int]:
    delta = positive_real("sensitivity", sensitivity, high=2.0**100)
    horizon = positive_integer("slack_horizon", slack_horizon, high=2**50)
    if factorization.horizon is not None:
        horizon = min(horizon, factorization.horizon)
    touched = positive_integer("touched_counters", touched_counters, high=2**40)
    per_tick = factorization.kappa * (1.0 + 2.0 * factorization.eta) + 2.0 * factorization.state_rounding
    slack = math.sqrt(float(horizon) * touched) * per_tick
    return delta, slack * (1.0 + 2.0**-48), horizon
