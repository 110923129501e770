"""A scope's history played again: what must have been spent after every row, recomputed from the lines."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Final

from evertally.accountants.budget.charges import ChargeRequest, Cost, cost, request_from_json
from evertally.accountants.budget.horizon import counter_parameters, extended_request
from evertally.accountants.budget.records import ChargeRow
from evertally.accountants.budget.scopes import Caps, Scope
from evertally.errors import EvertallyError

__all__ = ["Replay"]


_NOTHING: Final = Caps(0, 0, 0)
_LAST_UNIT: Final = 1


@dataclass(slots=True)
class _Standing:
    """A charge that was not returned: its line as text, what that costs, what it has been charged so far."""

    line: str
    price: Cost
    charged: Caps


@dataclass(slots=True)
class Replay:
    """The state of a scope after some rows of its history.

    Attributes:
        spent: sum of the rows' amounts.
        due: what the standing lines cost together, disjoint groups at their largest member.
        status: last event of each charge ("committed" also after an extension).

    A price is computed in doubles, which end in other digits on another processor, so that one unit more or
    less for each line is no difference.
    """

    spent: Caps = _NOTHING
    due: int = 0
    status: dict[str, str] = field(default_factory=dict)
    _priced: int = 0
    _standing: dict[str, _Standing] = field(default_factory=dict)
    _groups: dict[str, defaultdict[str, int]] = field(default_factory=dict)

    def play(self, scope: Scope, row: ChargeRow) -> str:
        """Apply one row; returns what is wrong with it, "" for nothing."""
        self.spent = _sum(self.spent, row)
        try:
            wrong = self._apply(scope, row)
        except EvertallyError as error:
            return f"cannot be recomputed: {type(error).__name__}"
        except (ValueError, KeyError, TypeError):
            return "cannot be read"
        if not wrong and self.spent.main + self._priced * _LAST_UNIT < self.due:
            return "charges less than its line costs"
        return wrong

    def states(self) -> dict[str, tuple[str, str]]:
        """(status, line) of each charge; no line for an expired one."""
        return {
            charge_id: (status, self._standing[charge_id].line if charge_id in self._standing else "")
            for charge_id, status in self.status.items()
        }

    def _apply(self, scope: Scope, row: ChargeRow) -> str:
        before = self.status.get(row.charge_id)
        self.status[row.charge_id] = "committed" if row.event == "extended" else row.event
        if row.event == "expired":
            return "expires wrongly" if before != "reserved" else self._expire(row)
        if row.event == "extended":
            return "extends wrongly" if before != "committed" else self._extend(scope, row)
        if before == "reserved":
            plain = row.event == "committed" and (row.main, row.epsilon, row.delta) == (0, 0, 0)
            return "" if plain else "commits wrongly"
        if before is not None or row.event not in ("reserved", "committed"):
            return "is out of order"
        return self._charge(scope, row)

    def _charge(self, scope: Scope, row: ChargeRow) -> str:
        request = _request(row.line, row.principal)
        price = cost(scope, request)
        self._priced += 1
        charge = _Standing(row.line, price, _sum(_NOTHING, row))
        self._standing[row.charge_id] = charge
        self.due += self._add(request, price.main)
        return _short(charge, request)

    def _extend(self, scope: Scope, row: ChargeRow) -> str:
        charge = self._standing[row.charge_id]
        old, new = _request(charge.line, row.principal), _request(row.line, row.principal)
        horizon = counter_parameters(new).slack_horizon
        grows = horizon > counter_parameters(old).slack_horizon
        if not grows or extended_request(old, horizon) != new:
            return "extends wrongly"
        price = cost(scope, new)
        self._priced += 1
        self.due += self._add(new, max(0, price.main - charge.price.main))
        charge.line, charge.price, charge.charged = row.line, price, _sum(charge.charged, row)
        return _short(charge, new)

    def _expire(self, row: ChargeRow) -> str:
        charge = self._standing.pop(row.charge_id)
        request = _request(charge.line, row.principal)
        self.due += self._add(request, -charge.price.main)
        left = _sum(charge.charged, row)
        returned = row.main <= 0 if request.group else left.main == 0
        return "" if returned and (left.epsilon, left.delta) == (0, 0) else "expires wrongly"

    def _add(self, request: ChargeRequest, main: int) -> int:
        """What a line's change adds to what is due."""
        if not request.group:
            return main
        members = self._groups.setdefault(request.group, defaultdict(int))
        peak = max(members.values(), default=0)
        for member in request.members:
            members[member] += main
        return max(members.values()) - peak


def _request(line: str, principal: str) -> ChargeRequest:
    return request_from_json(json.loads(line), principal)


def _short(charge: _Standing, request: ChargeRequest) -> str:
    """A line in a group is compared with the others of its group, by what is due."""
    price, charged = charge.price, charge.charged
    main = 0 if request.group else price.main
    pairs = ((charged.main, main), (charged.epsilon, price.epsilon), (charged.delta, price.delta))
    short = any(paid + _LAST_UNIT < due for paid, due in pairs)
    return "charges less than its line costs" if short else ""


def _sum(amounts: Caps, row: ChargeRow) -> Caps:
    return Caps(amounts.main + row.main, amounts.epsilon + row.epsilon, amounts.delta + row.delta)
