"""Where each charge stands: one row a charge beside the append-only history, under an HMAC of its own.

The history says what happened; this row says it in one look, so that no decision grows with the history.
A row that was altered by hand is refused where it is read, one that was put back from an older copy by
`ledger verify`, which plays the history again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from evertally.accountants.budget.chain import check_row, seal_row
from evertally.accountants.budget.sql import Transaction, blob

__all__ = ["ChargeState", "due", "insert", "read", "read_all", "seal_all", "update"]

_COLUMNS: Final = (
    "c.charge_id, s.name, c.status, c.principal, c.line, c.main, c.epsilon, c.delta, c.expires_ms, c.mac"
)
_FROM: Final = "FROM charge_state c JOIN scope s ON s.scope_id = c.scope_id"


@dataclass(frozen=True, slots=True)
class ChargeState:
    """One charge.

    Attributes:
        charge_id: names it.
        scope: who pays.
        status: "reserved", "committed" or "expired".
        principal: who asked.
        line: canonical JSON of the request.
        main, epsilon, delta: what the line costs; in a group, what it adds to its members.
        expires_ms: when a reservation lapses, 0 for none.
    """

    charge_id: str
    scope: str
    status: str
    principal: str
    line: str
    main: int
    epsilon: int
    delta: int
    expires_ms: int


def read(tx: Transaction, key: bytes, charge_id: str) -> ChargeState | None:
    """One charge, its HMAC checked; None where there is none."""
    found = tx.rows(f"SELECT {_COLUMNS} {_FROM} WHERE c.charge_id = ?", charge_id)
    return _checked(key, found[0]) if found else None


def read_all(tx: Transaction, key: bytes, scope: str) -> list[ChargeState]:
    """Every charge of a scope, each HMAC checked."""
    rows = tx.rows(f"SELECT {_COLUMNS} {_FROM} WHERE s.name = ?", scope)
    return [_checked(key, row) for row in rows]


def due(tx: Transaction, scope_id: int, now: int, limit: int) -> list[str]:
    """Ids of some reservations of a scope whose time is over."""
    rows = tx.rows(
        "SELECT charge_id FROM charge_state WHERE scope_id = ? AND status = 'reserved' AND expires_ms <= ?"
        " ORDER BY expires_ms LIMIT ?",
        *(scope_id, now, limit),
    )
    return [str(row[0]) for row in rows]


def insert(tx: Transaction, key: bytes, scope_id: int, state: ChargeState) -> None:
    """Add a charge."""
    tx.run(
        "INSERT INTO charge_state (charge_id, scope_id, status, principal, line, main, epsilon, delta,"
        " expires_ms, mac) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        *(state.charge_id, scope_id, state.status, state.principal, state.line),
        *(state.main, state.epsilon, state.delta, state.expires_ms, _mac(key, state)),
    )


def update(tx: Transaction, key: bytes, state: ChargeState) -> None:
    """Replace what may change: status, line, amounts and expiry."""
    tx.run(
        "UPDATE charge_state SET status = ?, line = ?, main = ?, epsilon = ?, delta = ?, expires_ms = ?,"
        " mac = ? WHERE charge_id = ?",
        *(state.status, state.line, state.main, state.epsilon, state.delta, state.expires_ms),
        *(_mac(key, state), state.charge_id),
    )


def seal_all(tx: Transaction, key: bytes) -> None:
    """Give the rows of an older version their HMACs."""
    for row in tx.rows(f"SELECT {_COLUMNS} {_FROM}"):
        state = ChargeState(*row[:-1])
        tx.run("UPDATE charge_state SET mac = ? WHERE charge_id = ?", *(_mac(key, state), state.charge_id))


def _checked(key: bytes, row: tuple[Any, ...]) -> ChargeState:
    state = ChargeState(*row[:-1])
    check_row(key, b"charge-state", blob(row[-1] or b""), f"charge {state.charge_id}", *_fields(state))
    return state


def _mac(key: bytes, state: ChargeState) -> bytes:
    return seal_row(key, b"charge-state", *_fields(state))


def _fields(state: ChargeState) -> tuple[object, ...]:
    return (
        *(state.charge_id, state.scope, state.status, state.principal, state.line),
        *(state.main, state.epsilon, state.delta, state.expires_ms),
    )
