"""What a ledger line loses about one privacy unit."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar, Protocol

from evertally.accountants.budget.scopes import Scope

__all__ = ["Line", "Loss"]


@dataclass(frozen=True, slots=True)
class Loss:
    """An upper bound on what a line loses.

    Attributes:
        mu2: squared mu of a Gaussian line, None for others.
        renyi: Renyi value at the scope's order of a line that is not Gaussian.
        epsilon: epsilon of a line that enters with an (epsilon, delta) of its own.
        delta: the line's own delta: added, never dropped.
    """

    mu2: Fraction | None = None
    renyi: float | None = None
    epsilon: Fraction = Fraction(0)
    delta: Fraction = Fraction(0)


class Line(Protocol):
    """One kind of ledger line. Lines are frozen and hashable."""

    kind: ClassVar[str]

    def __hash__(self) -> int: ...

    def to_json(self) -> dict[str, object]:
        """Public parameters without floats, with the kind."""
        ...

    def loss(self, scope: Scope) -> Loss:
        """An upper bound on the loss about one unit of the scope."""
        ...
