"""The Renyi moments as an upper bound on delta and epsilon."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from evertally.accountants import renyi
from evertally.accountants.bound import Direction, Source
from evertally.accountants.curves import Answer, Curve
from evertally.accountants.gram import Gram
from evertally.accountants.renyi_forecast import forecast_log_delta

__all__ = ["Renyi", "edge_note"]


@dataclass(frozen=True, slots=True)
class Renyi:
    """Renyi moments of integer orders, converted.

    Attributes:
        directions: for each direction asked for, the lines whose minimum bounds its moments, and orders.
    """

    directions: tuple[renyi.Focus, ...]
    source: ClassVar[Source] = "renyi"

    @classmethod
    def of(cls, gram: Gram, directions: tuple[Direction, ...], time_budget_s: float) -> Renyi:
        """All lines that the time budget of one sweep affords."""
        return cls(tuple(renyi.Focus(renyi.direction_lines(gram, d, time_budget_s)) for d in directions))

    def delta(self, sigma: float, epsilon: float) -> Answer:
        """The larger of the directions."""
        return _answer([renyi.delta(found, sigma, epsilon) for found in self.directions])

    def epsilon(self, sigma: float, delta: float) -> Answer:
        """The larger of the directions."""
        return _answer([renyi.epsilon(found, sigma, delta) for found in self.directions])

    def focused(self, sigma: float, epsilon: float) -> Renyi:
        """The line that matters nearby, of low orders."""
        last = renyi.COARSE_ORDER
        return Renyi(tuple(renyi.focused(found, sigma, epsilon, last) for found in self.directions))

    def sharpened(self, sigma: float, epsilon: float) -> Renyi:
        """The line and the order that matter nearby."""
        return Renyi(tuple(renyi.focused(found, sigma, epsilon) for found in self.directions))

    def shortlisted(self, sigma: float, epsilon: float) -> Renyi:
        """The lines that come near the best one nearby."""
        return Renyi(tuple(renyi.shortlisted(found, sigma, epsilon) for found in self.directions))

    def covers(self, other: Curve) -> bool:
        """Whether this curve has every line and order of the other."""
        return isinstance(other, Renyi) and all(
            set(theirs.lines) <= set(ours.lines) and theirs.last <= ours.last
            for ours, theirs in zip(self.directions, other.directions, strict=True)
        )

    def forecast(self, known: Sequence[float], sigma: float, epsilon: float) -> float:
        """The larger of the directions, each line's moments interpolated between the known noises."""
        return max(forecast_log_delta(found, known, sigma, epsilon) for found in self.directions)


def edge_note(order: int, edge: int) -> str:
    """What to tell a reader about the best order, "" where nothing is to be said."""
    return f"the best Renyi order, {order}, is the largest that was computed" if order >= edge else ""


def _answer(found: list[renyi.RenyiResult]) -> Answer:
    worst = max(found, key=lambda result: result.value)
    return Answer(worst.value, edge_note(worst.order, worst.order) if worst.on_edge else "")
