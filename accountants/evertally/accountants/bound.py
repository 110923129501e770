"""The result of every question to the accountant: a value, where it came from, and how far it may be off."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Bound", "Direction", "LowerScope", "Source"]

Direction = Literal["remove", "add"]
"""remove: P against Q with the record in P; add: the other order."""

Source = Literal["renyi", "colour", "random-allocation", "cc", "gaussian", "poisson-renyi"]
"""The upper bounds: each is a valid privacy curve, each can be called alone."""

LowerScope = Literal["dominating pair", "mechanism", "none"]
"""What the certified lower bound speaks of.

"dominating pair": C >= 0, the pair that the upper bounds account for, which the mechanism attains.
"mechanism": C has mixed signs; an attack on the mechanism itself, below the dominating pair.
"none": no lower bound is offered (the value is 0).
"""


@dataclass(frozen=True, slots=True)
class Bound:
    """A privacy figure, bounded from both sides.

    Attributes:
        value: the figure to publish (epsilon, delta or noise multiplier): an upper bound on the truth.
        source: the bound that gave `value`, the smallest of all that were asked.
        lower: a certified lower bound on the same figure.
        gap: value - lower, >= 0.
        lower_scope: what `lower` speaks of.
        notes: what a reader should know: bounds left out, an optimum on the edge of the order grid.
    """

    value: float
    source: Source
    lower: float
    gap: float
    lower_scope: LowerScope
    notes: tuple[str, ...] = ()

    @classmethod
    def between(
        cls, lower: float, value: float, source: Source, scope: LowerScope, notes: tuple[str, ...] = ()
    ) -> Bound:
        """The figure with its gap; rounding may have put the lower bound a hair above the upper one."""
        assert lower <= value * (1.0 + 1e-9) + 1e-300, "the lower bound is above the upper bound"
        lower = min(lower, value)
        return cls(value, source, lower, value - lower, scope, notes)
