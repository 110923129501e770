"""A scope: one privacy unit, one adjacency, one cap, fixed for ever when it is created."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from typing import Final, Literal

from evertally.accountants.budget.amounts import ATTO, NANO, Amount, decimal_text, exact, units_down
from evertally.accountants.budget.canonical import canonical_json, name
from evertally.accountants.budget.filters import gaussian_cap, renyi_cap, zcdp_cap
from evertally.counters.contribution import ADJACENCIES
from evertally.errors import InvalidParameter
from evertally.validation import one_of

__all__ = ["Caps", "Scope", "ScopeStatus", "STATEMENT"]

STATEMENT: Final = (
    "The guarantee is the cap. Spent and remaining amounts are read at times that may depend on the data; "
    "an epsilon computed from them is not a differential privacy statement."
)
_EVENT: Final = "event"
_EPSILON_MAX: Final = 1000
_ORDER_MAX: Final = 1024


@dataclass(frozen=True, slots=True)
class Caps:
    """The caps of a scope in integer units: the filter's, and the sub-budget of lines with their own loss.

    Attributes:
        main: nano-mu2 (gaussian) or nano-Renyi at the scope's order (renyi).
        epsilon: nano-epsilon set aside for lines that enter with an (epsilon, delta) of their own.
        delta: atto-delta set aside for lines' own deltas.
    """

    main: int
    epsilon: int
    delta: int


@dataclass(frozen=True, slots=True)
class Scope:
    """What may be lost about one privacy unit, over every stream, training run and query in the scope.

    Amounts may be given as numbers or decimal text and are kept as text.

    Attributes:
        name: unique name; a renewing scope's name must contain "renewing".
        unit: "event", or the name of the entity whose contributions are bounded ("aircraft").
        adjacency: "add-remove", "replace-value" (tick and key stay) or "replace".
        epsilon_cap: total epsilon.
        delta_cap: total delta, of which `delta_lines` is set aside for lines' own deltas.
        delta_lines: a part of delta_cap; a thousandth of it where not given.
        epsilon_lines: a part of epsilon_cap for lines with an epsilon of their own; "0" for none.
        filter: "gaussian" (exact, Gaussian lines only) or "renyi" (mixed lines at one order).
        order: the one Renyi order > 1 of a "renyi" scope.
        disjoint: names of groups whose members (keys) no two of which see the same record.
        renews: "", or the period ("day") after which a new scope replaces this one.
    """

    name: str
    unit: str
    adjacency: str
    epsilon_cap: Amount
    delta_cap: Amount
    delta_lines: Amount | None = None
    epsilon_lines: Amount = "0"
    filter: Literal["gaussian", "renyi"] = "gaussian"
    order: Amount | None = None
    disjoint: tuple[str, ...] = ()
    renews: str = ""

    def __post_init__(self) -> None:
        name("scope.name", self.name)
        name("scope.unit", self.unit)
        one_of("scope.adjacency", self.adjacency, ADJACENCIES)
        one_of("scope.filter", self.filter, ("gaussian", "renyi"))
        self._check_amounts()
        object.__setattr__(self, "disjoint", tuple(self.disjoint))
        for group in self.disjoint:
            name("scope.disjoint", group)
        if self.disjoint and (self.unit, self.adjacency, self.filter) != (_EVENT, "add-remove", "gaussian"):
            raise InvalidParameter(
                "scope.disjoint", list(self.disjoint), "groups only for unit event, add-remove, gaussian"
            )
        if self.renews:
            name("scope.renews", self.renews)
            if "renewing" not in self.name:
                raise InvalidParameter(
                    "scope.name",
                    self.name,
                    "a name that contains 'renewing': the total loss grows without bound",
                )
        self.caps()

    def _check_amounts(self) -> None:
        self._keep_text("epsilon_cap", self.epsilon_cap)
        self._keep_text("delta_cap", self.delta_cap)
        if exact("scope.epsilon_cap", self.epsilon_cap) > _EPSILON_MAX:
            raise InvalidParameter("scope.epsilon_cap", self.epsilon_cap, f"at most {_EPSILON_MAX}")
        if exact("scope.delta_cap", self.delta_cap) >= 1:
            raise InvalidParameter("scope.delta_cap", self.delta_cap, "a number strictly between 0 and 1")
        self._keep_text(
            "delta_lines", _thousandth(self.delta_cap) if self.delta_lines is None else self.delta_lines
        )
        if exact("scope.delta_lines", self.delta_lines) >= exact("scope.delta_cap", self.delta_cap):
            raise InvalidParameter("scope.delta_lines", self.delta_lines, "a part of delta_cap, below it")
        if self.epsilon_lines in (0, "0"):
            object.__setattr__(self, "epsilon_lines", "0")
        else:
            self._keep_text("epsilon_lines", self.epsilon_lines)
            if exact("scope.epsilon_lines", self.epsilon_lines) >= exact(
                "scope.epsilon_cap", self.epsilon_cap
            ):
                raise InvalidParameter("scope.epsilon_lines", self.epsilon_lines, "a part of epsilon_cap")
        if (self.order is not None) != (self.filter == "renyi"):
            raise InvalidParameter(
                "scope.order", self.order, "one order > 1 for a renyi scope, none otherwise"
            )
        if self.order is not None:
            self._keep_text("order", self.order)
            if not 1 < exact("scope.order", self.order) <= _ORDER_MAX:
                raise InvalidParameter("scope.order", self.order, f"a number > 1 and at most {_ORDER_MAX}")

    def _keep_text(self, field: str, value: Amount) -> None:
        object.__setattr__(self, field, decimal_text(f"scope.{field}", value))

    @property
    def main_unit(self) -> str:
        """Name of the filter's unit, as errors and pages print it."""
        return "nano-mu2" if self.filter == "gaussian" else "nano-renyi"

    @property
    def event_level(self) -> bool:
        """True where the privacy unit is one event."""
        return self.unit == _EVENT

    @property
    def renyi_order(self) -> float | None:
        """The one order as a double, as bounds and caps use it; None in a gaussian scope."""
        return None if self.order is None else float(Fraction(self.order))

    def caps(self) -> Caps:
        """The caps in integer units, each rounded down. Raises InvalidParameter where one is below a unit."""
        return _caps(self)

    def zcdp_main(self) -> int:
        """What the zCDP conversion would allow in nano-mu2, to be shown beside the exact cap."""
        epsilon, delta = _conversion(self)
        return zcdp_cap(float(epsilon), float(delta))

    def definition(self) -> str:
        """Canonical JSON of the whole scope."""
        return canonical_json("scope", asdict(self))


@dataclass(frozen=True, slots=True)
class ScopeStatus:
    """A scope with what is spent. `STATEMENT` belongs beside every display of it.

    Attributes:
        scope: the definition.
        caps: its caps.
        spent: units spent, reservations included.
        rows: number of rows in its history.
        chain: hash chain over them.
    """

    scope: Scope
    caps: Caps
    spent: Caps
    rows: int
    chain: bytes

    @property
    def remaining(self) -> int:
        """Units of the filter that are left."""
        return self.caps.main - self.spent.main


@lru_cache(maxsize=4096)
def _caps(scope: Scope) -> Caps:
    epsilon, delta = _conversion(scope)
    # float() may round up by half an ulp; step down so that a cap is never enlarged
    eps, dlt = _float_down(epsilon), _float_down(delta)
    order = scope.renyi_order
    main = gaussian_cap(eps, dlt) if order is None else renyi_cap(order, eps, dlt)
    lines = 0 if scope.epsilon_lines == "0" else units_down("scope.epsilon_lines", scope.epsilon_lines, NANO)
    return Caps(main, lines, units_down("scope.delta_lines", scope.delta_lines or "0", ATTO))


def _conversion(scope: Scope) -> tuple[Fraction, Fraction]:
    """(epsilon, delta) left for the filter once the lines' parts are set aside."""
    epsilon = exact("scope.epsilon_cap", scope.epsilon_cap) - Fraction(str(scope.epsilon_lines))
    delta = exact("scope.delta_cap", scope.delta_cap) - exact("scope.delta_lines", scope.delta_lines)
    return epsilon, delta


def _float_down(x: Fraction) -> float:
    value = float(x)
    while Fraction(value) > x:
        value = value * (1.0 - 2.0**-53)
    return value


def _thousandth(cap: Amount) -> str:
    return str(Decimal(decimal_text("scope.delta_cap", cap)).scaleb(-3))
