"""Scopes in the ledger: their rows, their caps, and the one place where a spend changes."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any, Final

from evertally.accountants.budget.canonical import is_name, plain_json
from evertally.accountants.budget.chain import check_row, link, seal_row
from evertally.accountants.budget.records import ChargeRow
from evertally.accountants.budget.scopes import Caps, Scope, ScopeStatus
from evertally.accountants.budget.sql import Transaction, blob
from evertally.errors import BudgetExceeded, IntegrityError, InvalidParameter

__all__ = [
    "ScopeRow",
    "admit",
    "append",
    "charge_rows",
    "create_scope",
    "read_scope",
    "read_scopes",
    "row_bytes",
    "scope_lock",
]

_MEMO: Final = "scope"
_COLUMNS: Final = (
    "scope_id, name, definition, cap_main, cap_epsilon, cap_delta, main, epsilon, delta, seq, chain, mac"
)


@dataclass(frozen=True, slots=True)
class ScopeRow:
    """A scope as stored."""

    scope_id: int
    definition: str
    scope: Scope
    caps: Caps
    spent: Caps
    seq: int
    chain: bytes

    def status(self) -> ScopeStatus:
        """What callers see."""
        return ScopeStatus(self.scope, self.caps, self.spent, self.seq, self.chain)


def scope_lock(name: str) -> str:
    """Name of the lock that every change of a scope takes."""
    return f"scope/{name}"


def create_scope(tx: Transaction, key: bytes, scope: Scope) -> ScopeStatus:
    """Create a scope, or return the equal one that is there."""
    found = tx.rows("SELECT definition FROM scope WHERE name = ?", scope.name)
    if found:
        if found[0][0] != scope.definition():
            raise InvalidParameter(
                "scope", scope.name, "the definition it was created with; a scope never changes"
            )
        return read_scope(tx, key, scope.name).status()
    caps = scope.caps()
    chain = link(key, b"scope", b"", scope.definition().encode())
    mac = seal_row(key, b"scope", scope.definition(), caps.main, caps.epsilon, caps.delta, 0, 0, 0, 0, chain)
    tx.run(
        "INSERT INTO scope (name, definition, cap_main, cap_epsilon, cap_delta, main, epsilon, delta, seq,"
        " chain, mac) VALUES (?, ?, ?, ?, ?, 0, 0, 0, 0, ?, ?)",
        *(scope.name, scope.definition(), caps.main, caps.epsilon, caps.delta, chain, mac),
    )
    return ScopeStatus(scope, caps, Caps(0, 0, 0), 0, chain)


def read_scope(tx: Transaction, key: bytes, name: str) -> ScopeRow:
    """One scope, its HMAC checked. Raises InvalidParameter for an unknown name."""
    known: ScopeRow | None = tx.memo.get((_MEMO, name))
    if known is not None:  # read, or written, in this very transaction
        return known
    statement = f"SELECT {_COLUMNS} FROM scope WHERE name = ?"  # noqa: S608  # nosec B608  # a literal list
    found = tx.rows(statement, name) if is_name(name) else []
    if not found:
        raise InvalidParameter("scope", name, "the name of a scope in this ledger")
    row = tx.memo[_MEMO, name] = _scope_row(key, found[0])
    return row


def read_scopes(tx: Transaction, key: bytes) -> list[ScopeRow]:
    """Every scope by name."""
    return [_scope_row(key, row) for row in tx.rows(f"SELECT {_COLUMNS} FROM scope ORDER BY name")]  # noqa: S608  # nosec B608  # as above


def admit(row: ScopeRow, change: Caps) -> None:
    """Raise BudgetExceeded where the change does not fit under one of the caps."""
    for unit, cap, spent, more in (
        (row.scope.main_unit, row.caps.main, row.spent.main, change.main),
        ("nano-epsilon", row.caps.epsilon, row.spent.epsilon, change.epsilon),
        ("atto-delta", row.caps.delta, row.spent.delta, change.delta),
    ):
        if spent + more > cap:
            raise BudgetExceeded(more, spent, cap, unit)


def append(
    tx: Transaction, key: bytes, row: ScopeRow, what: tuple[str, str, str, str], change: Caps, now: int
) -> int:
    """Add one row (charge id, event, principal, line) to the history and its change to the spend.

    Returns the row's number. The database checks the caps once more in the same statement.
    """
    entry = ChargeRow(
        row.scope.name, row.seq + 1, *what, change.main, change.epsilon, change.delta, now
    )  # fmt: skip
    chain = link(key, b"charge", row.chain, row_bytes(entry))
    spent = Caps(
        row.spent.main + change.main, row.spent.epsilon + change.epsilon, row.spent.delta + change.delta
    )
    caps = row.caps
    mac = seal_row(
        *(key, b"scope", row.definition, caps.main, caps.epsilon, caps.delta),
        *(spent.main, spent.epsilon, spent.delta, entry.seq, chain),
    )
    changed = tx.rows(
        "UPDATE scope SET main = ?, epsilon = ?, delta = ?, seq = ?, chain = ?, mac = ? WHERE scope_id = ?"
        " AND seq = ? AND cap_main >= ? AND cap_epsilon >= ? AND cap_delta >= ? RETURNING seq",
        *(spent.main, spent.epsilon, spent.delta, entry.seq, chain, mac, row.scope_id),
        *(row.seq, spent.main, spent.epsilon, spent.delta),
    )
    if not changed:
        raise IntegrityError("the scope changed under its lock; nothing was charged")
    tx.run(
        "INSERT INTO charge (scope_id, seq, charge_id, event, principal, line, main, epsilon, delta, at_ms,"
        " chain) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        *(row.scope_id, *entry[1:], chain),
    )
    tx.memo[_MEMO, row.scope.name] = replace(row, spent=spent, seq=entry.seq, chain=chain)
    return entry.seq


_TYPES: Final = (str, int, str, str, str, str, int, int, int, int)


def charge_rows(tx: Transaction, scope: str, after_seq: int, limit: int) -> list[ChargeRow]:
    """History of a scope in order. Raises IntegrityError for rows of other types or in no order: damage."""
    rows = [
        ChargeRow(scope, *row)
        for row in tx.rows(
            "SELECT c.seq, c.charge_id, c.event, c.principal, c.line, c.main, c.epsilon, c.delta, c.at_ms"
            " FROM charge c JOIN scope s ON s.scope_id = c.scope_id"
            " WHERE s.name = ? AND c.seq > ? ORDER BY c.seq LIMIT ?",
            *(scope, after_seq, limit),
        )
    ]
    if any(tuple(map(type, row)) != _TYPES for row in rows):
        raise IntegrityError(f"the history of scope {scope} holds a row that cannot be read")
    if any(seq <= before for before, seq in pairwise([after_seq, *(row.seq for row in rows)])):
        raise IntegrityError(f"the history of scope {scope} is in no order: its table is damaged")
    return rows


def row_bytes(row: ChargeRow) -> bytes:
    """Canonical bytes of a history row, what the chain is over."""
    return plain_json(list(row)).encode()


def _scope_row(key: bytes, row: tuple[Any, ...]) -> ScopeRow:
    scope_id, name, definition, *amounts, seq, chain, mac = row
    check_row(key, b"scope", blob(mac), f"scope {name}", definition, *amounts, seq, blob(chain))
    caps, spent, scope = Caps(*amounts[:3]), Caps(*amounts[3:]), _scope_of(definition)
    if scope.name != name:  # the name is sealed within the definition
        raise IntegrityError(f"scope {name} was altered outside the ledger")
    return ScopeRow(scope_id, definition, scope, caps, spent, seq, blob(chain))


@lru_cache(maxsize=4096)
def _scope_of(definition: str) -> Scope:
    fields = json.loads(definition)
    return Scope(**{**fields, "disjoint": tuple(fields["disjoint"])})
