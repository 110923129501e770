"""What one privacy unit may do to a stream, and the sensitivity that follows.

The unit is what is protected: one event, or one person with all their events. Adjacency says how
neighbouring inputs differ (docs/proofs/participation.md; the closed form for k participations with
separation b follows Choquette-Choo et al., arXiv 2306.08153, for positive decreasing R).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from evertally.counters.factorization import Factorization
from evertally.errors import InvalidParameter, UnsupportedMechanism
from evertally.validation import integer, one_of, positive_integer

__all__ = ["ADJACENCIES", "Contribution"]

ADJACENCIES: Final = ("add-remove", "replace-value", "replace")
"""add-remove: the unit is there or not. replace-value: each contribution keeps its tick and key and
changes its value. replace: ticks, keys and values may all change."""

_CLIP_MAX: Final = 2**40
_SQRT2_UP: Final = math.nextafter(math.sqrt(2.0), math.inf)


@dataclass(frozen=True, slots=True)
class Contribution:
    """Bounds on one unit's contributions, enforced before counting.

    Attributes:
        clip: largest absolute value C of one contribution, an integer in counts.
        lower: 0 (values in [0, C]) or -clip (values in [-C, C]).
        participations: k, the most ticks a unit contributes in, over all keys together.
        min_separation: b, the least distance between two of those ticks.
        per_tick: c, the most contributions a unit makes in one tick, over all keys together.
        adjacency: one of ADJACENCIES.
    """

    clip: int = 1
    lower: int = 0
    participations: int = 1
    min_separation: int = 1
    per_tick: int = 1
    adjacency: str = "add-remove"

    def __post_init__(self) -> None:
        positive_integer("clip", self.clip, high=_CLIP_MAX)
        if integer("lower", self.lower) not in (0, -self.clip):
            raise InvalidParameter("lower", self.lower, f"0 or {-self.clip}")
        positive_integer("participations", self.participations, high=2**40)
        positive_integer("min_separation", self.min_separation, high=2**62)
        positive_integer("per_tick", self.per_tick, high=2**40)
        one_of("adjacency", self.adjacency, ADJACENCIES)

    def sensitivity(self, factorization: Factorization) -> float:
        """l2 sensitivity Delta in counts at unit noise, rounded up, over an infinite stream.

        Guarantees:
            - at least ||R x||_2 for every difference x of neighbouring inputs (test_contribution).
        """
        squared = factorization.sensitivity_squared(
            self.participations, self.min_separation, factorization.horizon
        )
        if not (math.isfinite(squared) and squared > 0.0):
            raise UnsupportedMechanism(f"{factorization.mechanism_id} has no finite sensitivity here")
        scale = self.clip * self.per_tick * self._adjacency_factor(factorization)
        return math.sqrt(squared) * scale * (1.0 + 2.0**-50)

    def touched_counters(self, counters: int) -> int:
        """Most counters one unit can touch, of `counters` in the stream."""
        times = 2 if self.adjacency == "replace" else 1
        return min(positive_integer("counters", counters), times * self.participations * self.per_tick)

    def clip_value(self, value: int) -> int:
        """`value` clipped into [lower, clip]; only an exact int has a place there (a NaN would become C)."""
        if isinstance(value, bool) or not isinstance(value, int):
            raise InvalidParameter("value", type(value).__name__, "an exact int")
        return max(self.lower, min(self.clip, value))

    def _adjacency_factor(self, factorization: Factorization) -> float:
        """Replacing is removing and adding: sqrt(2) where both have one sign and R >= 0, else 2."""
        if self.adjacency == "add-remove" or (self.adjacency == "replace-value" and self.lower == 0):
            return 1.0
        return _SQRT2_UP if self.lower == 0 and _strategy_is_positive(factorization) else 2.0


def _strategy_is_positive(factorization: Factorization) -> bool:
    """Whether R is certified positive and non-increasing: the precondition of the two-participation form."""
    try:
        factorization.sensitivity_squared(2, 1, factorization.horizon)
    except UnsupportedMechanism:
        return False
    return True
