"""The book of charges: admissions, reservations and what became of them, inside a transaction.

Every decision reads one scope row and writes a fixed number of rows, however long the history is.
Amounts move only through `scope_book.append`.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from typing import Final

from evertally.accountants.budget import groups
from evertally.accountants.budget.canonical import plain_json
from evertally.accountants.budget.charges import ChargeRequest, Cost
from evertally.accountants.budget.records import Receipt
from evertally.accountants.budget.scope_book import ScopeRow, admit, append, read_scope
from evertally.accountants.budget.scopes import Caps
from evertally.accountants.budget.sql import Transaction
from evertally.errors import Fenced, InvalidParameter

__all__ = [
    "commit_reservation",
    "expire_due",
    "expire_one",
    "line_of_charge",
    "quote",
    "receipt",
    "record",
    "scope_of_charge",
]

_SWEEP: Final = 32


def quote(tx: Transaction, key: bytes, request: ChargeRequest, price: Cost) -> Receipt:
    """The answer a charge would get now. Raises BudgetExceeded; writes nothing."""
    row = read_scope(tx, key, request.scope)
    change = _change(tx, row, request, price)
    admit(row, change)
    return receipt("", "quote", change, 0, row.scope.name, row.seq)


def record(tx: Transaction, key: bytes, request: ChargeRequest, price: Cost, ttl_ms: int | None) -> Receipt:
    """Admit and record a charge: final where ttl_ms is None, else a reservation.

    A repeated idempotency key with the same content returns the first answer; with other content it
    is refused. Refusals are not kept: a retry after one is a new question.
    """
    body = request.body()
    digest = hashlib.sha256(f"{body}|{ttl_ms}".encode()).digest()
    if request.idempotency_key:
        answered = _answered(tx, request, digest)
        if answered is not None:
            return answered
    now = tx.now_ms()
    row = read_scope(tx, key, request.scope)
    if expire_due(tx, key, row, now):
        row = read_scope(tx, key, request.scope)
    change = _change(tx, row, request, price)
    admit(row, change)
    charge_id, expires = uuid.uuid4().hex, 0 if ttl_ms is None else now + ttl_ms
    status = "committed" if ttl_ms is None else "reserved"
    groups.join(tx, row.scope_id, request.group, request.members, price.main)
    seq = append(tx, key, row, (charge_id, status, request.principal, body), change, now)
    tx.run(
        "INSERT INTO charge_state (charge_id, scope_id, status, principal, line, main, epsilon, delta,"
        " expires_ms) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        *(charge_id, row.scope_id, status, request.principal, body),
        *(price.main, price.epsilon, price.delta, expires),
    )
    answer = receipt(charge_id, status, change, expires, row.scope.name, seq)
    if request.idempotency_key:
        tx.run(
            "INSERT INTO answer (principal, idempotency_key, digest, body) VALUES (?, ?, ?, ?)",
            *(request.principal, request.idempotency_key, digest, answer.body),
        )
    return answer


def commit_reservation(tx: Transaction, key: bytes, charge_id: str, principal: str) -> Receipt:
    """Make a reservation final. Raises Fenced when its time is over, InvalidParameter for an unknown one."""
    scope, status, expires = _state(tx, charge_id, principal)
    row = read_scope(tx, key, scope)
    now = tx.now_ms()
    if status == "committed":
        return receipt(charge_id, "committed", Caps(0, 0, 0), 0, scope, row.seq)
    if status != "reserved" or now >= expires:
        raise Fenced("the reservation has expired; nothing may be drawn from it")
    seq = append(tx, key, row, (charge_id, "committed", principal, ""), Caps(0, 0, 0), now)
    tx.run("UPDATE charge_state SET status = 'committed', expires_ms = 0 WHERE charge_id = ?", charge_id)
    return receipt(charge_id, "committed", Caps(0, 0, 0), 0, scope, seq)


def scope_of_charge(tx: Transaction, charge_id: str, principal: str) -> str:
    """Name of the scope a charge of this principal belongs to."""
    return _state(tx, charge_id, principal)[0]


def line_of_charge(tx: Transaction, charge_id: str, principal: str) -> dict[str, object]:
    """The line that a charge of this principal pays for, as JSON."""
    _state(tx, charge_id, principal)
    body = json.loads(tx.rows("SELECT line FROM charge_state WHERE charge_id = ?", charge_id)[0][0])
    line: dict[str, object] = body["line"]
    return line


def expire_due(tx: Transaction, key: bytes, row: ScopeRow, now: int) -> int:
    """Return the amounts of some of the scope's reservations whose time is over; how many."""
    due = tx.rows(
        "SELECT charge_id FROM charge_state WHERE scope_id = ? AND status = 'reserved' AND expires_ms <= ?"
        " ORDER BY expires_ms LIMIT ?",
        *(row.scope_id, now, _SWEEP),
    )
    for (charge_id,) in due:
        _expire(tx, key, read_scope(tx, key, row.scope.name), charge_id, now)
    return len(due)


def expire_one(tx: Transaction, key: bytes, charge_id: str, principal: str) -> int:
    """Return one undrawn reservation at once; 0 where it has expired already. A final charge is refused."""
    scope, status, _ = _state(tx, charge_id, principal)
    if status == "committed":
        raise InvalidParameter(
            "charge_id", charge_id, "a reservation that is not committed; nothing is refunded"
        )
    if status == "expired":
        return 0
    _expire(tx, key, read_scope(tx, key, scope), charge_id, tx.now_ms())
    return 1


def receipt(charge_id: str, status: str, change: Caps, expires_ms: int, scope: str, seq: int) -> Receipt:
    """The answer to a charge, with its canonical bytes."""
    body = plain_json(
        {
            "charge_id": charge_id,
            "delta": change.delta,
            "epsilon": change.epsilon,
            "expires_ms": expires_ms,
            "main": change.main,
            "scope": scope,
            "seq": seq,
            "status": status,
        }
    ).encode()
    return Receipt(charge_id, status, change.main, change.epsilon, change.delta, expires_ms, body)


def _change(tx: Transaction, row: ScopeRow, request: ChargeRequest, price: Cost) -> Caps:
    """What a charge adds to the spend."""
    main = groups.rise(tx, row.scope_id, request.group, request.members, price.main)
    return Caps(main, price.epsilon, price.delta)


def _answered(tx: Transaction, request: ChargeRequest, digest: bytes) -> Receipt | None:
    found = tx.rows(
        "SELECT digest, body FROM answer WHERE principal = ? AND idempotency_key = ?",
        *(request.principal, request.idempotency_key),
    )
    if not found:
        return None
    if bytes(found[0][0]) != digest:
        raise InvalidParameter(
            "idempotency_key", request.idempotency_key, "a new key: this one was used for another request"
        )
    body = bytes(found[0][1])
    said = json.loads(body)
    return Receipt(
        said["charge_id"],
        said["status"],
        said["main"],
        said["epsilon"],
        said["delta"],
        said["expires_ms"],
        body,
    )


def _state(tx: Transaction, charge_id: str, principal: str) -> tuple[str, str, int]:
    found = tx.rows(
        "SELECT s.name, c.status, c.expires_ms FROM charge_state c"
        " JOIN scope s ON s.scope_id = c.scope_id WHERE c.charge_id = ? AND c.principal = ?",
        *(charge_id, principal),
    )
    if not found:
        raise InvalidParameter("charge_id", charge_id[:64], "a charge of this principal")
    scope, status, expires = found[0]
    return str(scope), str(status), int(expires)


def _expire(tx: Transaction, key: bytes, row: ScopeRow, charge_id: str, now: int) -> None:
    main, epsilon, delta, line, principal = tx.rows(
        "SELECT main, epsilon, delta, line, principal FROM charge_state WHERE charge_id = ?", charge_id
    )[0]
    body = json.loads(line)
    main = groups.leave(tx, row.scope_id, body["group"], body["members"], main)
    append(tx, key, row, (charge_id, "expired", principal, ""), Caps(-main, -epsilon, -delta), now)
    tx.run("UPDATE charge_state SET status = 'expired' WHERE charge_id = ?", charge_id)
