"""What is charged: every amount is recomputed here from a line's public parameters.

A request names a mechanism; it has no field for a mu, a Renyi value or a share of the budget, so no
number sent by a client can become the charge. `cost` turns a line into integer units of its scope.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Final

from evertally.accountants.budget.amounts import ATTO, NANO, units_up
from evertally.accountants.budget.canonical import canonical_json, is_storable, name, plain_json
from evertally.accountants.budget.filters import gaussian_renyi_units
from evertally.accountants.budget.lines import line_from_json
from evertally.accountants.budget.loss import Line, Loss
from evertally.accountants.budget.scopes import Scope
from evertally.errors import InvalidParameter, UnsupportedMechanism

__all__ = ["ChargeRequest", "Cost", "cost", "request_from_json"]

_MEMBERS: Final = 100_000


@dataclass(frozen=True, slots=True)
class ChargeRequest:
    """A wish to charge one line to a scope.

    Attributes:
        scope: the scope's name.
        unit, adjacency: must be the scope's; stated here so that a mix-up is refused.
        line: the mechanism's public parameters.
        group: a group of the scope within which `members` are disjoint, "" for none.
        members: the members (keys) of the group whose records this line sees.
        principal: who asks.
        idempotency_key: a retry with the same key and content returns the first answer; "" for none.
    """

    scope: str
    unit: str
    adjacency: str
    line: Line
    group: str = ""
    members: tuple[str, ...] = ()
    principal: str = "local"
    idempotency_key: str = ""

    def __post_init__(self) -> None:
        name("charge.scope", self.scope)
        name("charge.principal", self.principal)
        object.__setattr__(self, "members", tuple(self.members))
        for text in (self.unit, self.adjacency, self.group, *self.members):
            if not isinstance(text, str):
                raise InvalidParameter("charge", type(text).__name__, "text as unit, adjacency and members")
        if not all(map(is_storable, self.members)):
            raise InvalidParameter("charge.members", "other characters", "members without NUL")
        if bool(self.group) != bool(self.members):
            raise InvalidParameter(
                "charge.members", len(self.members), "members exactly where a group is named"
            )
        if len(self.members) > _MEMBERS or len(set(self.members)) != len(self.members):
            raise InvalidParameter(
                "charge.members", len(self.members), f"at most {_MEMBERS} distinct members"
            )
        if self.idempotency_key:
            name("charge.idempotency_key", self.idempotency_key)

    def body(self) -> str:
        """Canonical JSON of everything but principal and idempotency key: what a retry must repeat."""
        return plain_json(
            {
                "scope": self.scope,
                "unit": self.unit,
                "adjacency": self.adjacency,
                "line": _line_json(self.line),
                "group": self.group,
                "members": list(self.members),
            }
        )


@dataclass(frozen=True, slots=True)
class Cost:
    """A line's cost in units of its scope, each rounded up: filter, nano-epsilon, atto-delta."""

    main: int
    epsilon: int
    delta: int


def request_from_json(body: Mapping[str, object], principal: str = "local") -> ChargeRequest:
    """The request of a stored body."""
    line, members = body.get("line"), body.get("members", [])
    if not isinstance(line, Mapping) or not isinstance(members, list):
        raise InvalidParameter("charge", "an incomplete body", "the fields of a charge")
    return ChargeRequest(
        scope=str(body.get("scope")),
        unit=str(body.get("unit")),
        adjacency=str(body.get("adjacency")),
        line=line_from_json(line),
        group=str(body.get("group", "")),
        members=tuple(str(member) for member in members),
        principal=principal,
    )


def cost(scope: Scope, request: ChargeRequest) -> Cost:
    """What a request costs in its scope.

    Guarantees:
        - an upper bound on the line's privacy loss under the scope's unit and adjacency, in whole units.
        - a function of public parameters only, so that a refusal tells nothing about data.

    Raises:
        InvalidParameter: another unit or adjacency than the scope's, an undeclared group.
        UnsupportedMechanism: a line without a valid bound in this scope's filter.
    """
    if (request.unit, request.adjacency) != (scope.unit, scope.adjacency):
        raise InvalidParameter(
            "charge.unit",
            f"{request.unit} under {request.adjacency}",
            f"the scope's unit {scope.unit} under {scope.adjacency}",
        )
    if request.group and request.group not in scope.disjoint:
        raise InvalidParameter("charge.group", request.group, "a group the scope declares disjoint")
    loss = _loss(request.line, scope)
    if request.group and loss.mu2 is None:
        raise UnsupportedMechanism(
            "only Gaussian lines compose in parallel; charge this line without a group"
        )
    return Cost(_main_units(loss, scope), _units(loss.epsilon, NANO), _units(loss.delta, ATTO))


def _main_units(loss: Loss, scope: Scope) -> int:
    order = scope.renyi_order
    if order is None:
        if loss.renyi is not None:
            raise UnsupportedMechanism(
                "an amplified training run is not tight in GDP: charge it to a scope with filter 'renyi'"
            )
        return _bounded(0 if loss.mu2 is None else math.ceil(loss.mu2 * NANO))
    if loss.mu2 is not None:
        return _bounded(gaussian_renyi_units(loss.mu2, order))
    return 0 if loss.renyi is None else _bounded(math.ceil(Fraction(loss.renyi) * NANO))


def _bounded(units: int) -> int:
    if units > 2**62:
        raise InvalidParameter("charge.line", "a loss beyond 2^62 units", "a mechanism with a finite budget")
    return units


def _units(amount: Fraction, unit: int) -> int:
    return units_up("charge.line", amount, unit) if amount else 0


@lru_cache(maxsize=4096)
def _line_json(line: Line) -> dict[str, object]:
    """The line's JSON, checked; shared, never changed."""
    checked: dict[str, object] = json.loads(canonical_json("charge.line", line.to_json()))
    return checked


@lru_cache(maxsize=4096)
def _loss(line: Line, scope: Scope) -> Loss:
    return line.loss(scope)
