"""The book of charges: scopes, admissions, reservations and their history, inside a transaction.

Every decision reads one scope row and writes a fixed number of rows, however long the history is.
Amounts move only through `_append`, which checks the caps, extends the scope's hash chain and stores
the new spend in one place.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from evertally.accountants.budget.canonical import canonical_json
from evertally.accountants.budget.chain import check_row, link, seal_row
from evertally.accountants.budget.charges import ChargeRequest, Cost
from evertally.accountants.budget.ledger import ChargeRow, Receipt
from evertally.accountants.budget.scopes import Caps, Scope, ScopeStatus
from evertally.accountants.budget.sql import Transaction
from evertally.errors import BudgetExceeded, Fenced, IntegrityError, InvalidParameter

__all__ = [
    "charge_rows",
    "commit_reservation",
    "create_scope",
    "expire_due",
    "expire_one",
    "quote",
    "read_scope",
    "read_scopes",
    "record",
    "row_bytes",
    "scope_lock",
    "scope_of_charge",
]

_COLUMNS: Final = (
    "scope_id, name, definition, cap_main, cap_epsilon, cap_delta, main, epsilon, delta, seq, chain, mac"
)
_SWEEP: Final = 32


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
    found = tx.rows(f"SELECT {_COLUMNS} FROM scope WHERE name = ?", name)  # noqa: S608 - a literal list
    if not found:
        raise InvalidParameter("scope", name, "the name of a scope in this ledger")
    return _scope_row(key, found[0])


def read_scopes(tx: Transaction, key: bytes) -> list[ScopeRow]:
    """Every scope by name."""
    return [_scope_row(key, row) for row in tx.rows(f"SELECT {_COLUMNS} FROM scope ORDER BY name")]  # noqa: S608


def quote(tx: Transaction, key: bytes, request: ChargeRequest, price: Cost) -> Receipt:
    """The answer a charge would get now. Raises BudgetExceeded; writes nothing."""
    row = read_scope(tx, key, request.scope)
    change = Caps(_main_change(tx, row, request, price.main), price.epsilon, price.delta)
    _admit(row, change)
    return _receipt("", "quote", change, 0, row.scope.name, row.seq)


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
    change = Caps(_main_change(tx, row, request, price.main), price.epsilon, price.delta)
    _admit(row, change)
    charge_id, expires = uuid.uuid4().hex, 0 if ttl_ms is None else now + ttl_ms
    status = "committed" if ttl_ms is None else "reserved"
    _join_group(tx, row.scope_id, request, price.main)
    seq = _append(tx, key, row, (charge_id, status, request.principal, body), change, now)
    tx.run(
        "INSERT INTO charge_state (charge_id, scope_id, status, principal, line, main, epsilon, delta,"
        " expires_ms) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        *(
            charge_id,
            row.scope_id,
            status,
            request.principal,
            body,
            price.main,
            price.epsilon,
            price.delta,
            expires,
        ),
    )
    receipt = _receipt(charge_id, status, change, expires, row.scope.name, seq)
    if request.idempotency_key:
        tx.run(
            "INSERT INTO answer (principal, idempotency_key, digest, body) VALUES (?, ?, ?, ?)",
            *(request.principal, request.idempotency_key, digest, receipt.body),
        )
    return receipt


def commit_reservation(tx: Transaction, key: bytes, charge_id: str, principal: str) -> Receipt:
    """Make a reservation final. Raises Fenced when its time is over, InvalidParameter for an unknown one."""
    scope, status, expires = _state(tx, charge_id, principal)
    row = read_scope(tx, key, scope)
    now = tx.now_ms()
    if status == "committed":
        return _receipt(charge_id, "committed", Caps(0, 0, 0), 0, scope, row.seq)
    if status != "reserved" or now >= expires:
        raise Fenced("the reservation has expired; nothing may be drawn from it")
    seq = _append(tx, key, row, (charge_id, "committed", principal, ""), Caps(0, 0, 0), now)
    tx.run("UPDATE charge_state SET status = 'committed', expires_ms = 0 WHERE charge_id = ?", charge_id)
    return _receipt(charge_id, "committed", Caps(0, 0, 0), 0, scope, seq)


def scope_of_charge(tx: Transaction, charge_id: str, principal: str) -> str:
    """Name of the scope a charge of this principal belongs to."""
    return _state(tx, charge_id, principal)[0]


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


def charge_rows(tx: Transaction, scope: str, after_seq: int, limit: int) -> list[ChargeRow]:
    """History of a scope in order."""
    return [
        ChargeRow(scope, *row)
        for row in tx.rows(
            "SELECT c.seq, c.charge_id, c.event, c.principal, c.line, c.main, c.epsilon, c.delta, c.at_ms"
            " FROM charge c JOIN scope s ON s.scope_id = c.scope_id"
            " WHERE s.name = ? AND c.seq > ? ORDER BY c.seq LIMIT ?",
            *(scope, after_seq, limit),
        )
    ]


def row_bytes(row: ChargeRow) -> bytes:
    """Canonical bytes of a history row, what the chain is over."""
    return canonical_json("charge row", list(row)).encode()


def _scope_row(key: bytes, row: tuple[Any, ...]) -> ScopeRow:
    scope_id, name, definition, *amounts, seq, chain, mac = row
    check_row(key, b"scope", bytes(mac), f"scope {name}", definition, *amounts, seq, bytes(chain))
    caps, spent = Caps(*amounts[:3]), Caps(*amounts[3:])
    return ScopeRow(scope_id, definition, _scope_of(definition), caps, spent, seq, bytes(chain))


@lru_cache(maxsize=4096)
def _scope_of(definition: str) -> Scope:
    fields = json.loads(definition)
    return Scope(**{**fields, "disjoint": tuple(fields["disjoint"])})


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


def _main_change(tx: Transaction, row: ScopeRow, request: ChargeRequest, main: int) -> int:
    """What a charge adds to the filter: its cost, or the rise of its group's largest member.

    mu^2 is first added over everything one member sees, then the maximum over members is taken.
    """
    if not request.group:
        return main
    peak = _peak(tx, row.scope_id, request.group)
    sums = [_member(tx, row.scope_id, request.group, member) + main for member in request.members]
    return max(0, max(sums) - peak)


def _join_group(tx: Transaction, scope_id: int, request: ChargeRequest, main: int) -> None:
    for member in request.members:
        tx.run(
            "INSERT INTO member (scope_id, group_name, member, main) VALUES (?, ?, ?, ?)"
            " ON CONFLICT (scope_id, group_name, member) DO UPDATE SET main = member.main + excluded.main",
            *(scope_id, request.group, member, main),
        )


def _peak(tx: Transaction, scope_id: int, group: str) -> int:
    found = tx.rows(
        "SELECT main FROM member WHERE scope_id = ? AND group_name = ? ORDER BY main DESC LIMIT 1",
        *(scope_id, group),
    )
    return int(found[0][0]) if found else 0


def _member(tx: Transaction, scope_id: int, group: str, member: str) -> int:
    found = tx.rows(
        "SELECT main FROM member WHERE scope_id = ? AND group_name = ? AND member = ?",
        scope_id,
        group,
        member,
    )
    return int(found[0][0]) if found else 0


def _admit(row: ScopeRow, change: Caps) -> None:
    for unit, cap, spent, more in (
        (row.scope.main_unit, row.caps.main, row.spent.main, change.main),
        ("nano-epsilon", row.caps.epsilon, row.spent.epsilon, change.epsilon),
        ("atto-delta", row.caps.delta, row.spent.delta, change.delta),
    ):
        if spent + more > cap:
            raise BudgetExceeded(more, spent, cap, unit)


def _append(
    tx: Transaction, key: bytes, row: ScopeRow, what: tuple[str, str, str, str], change: Caps, now: int
) -> int:
    charge_id, event, principal, line = what
    entry = ChargeRow(
        row.scope.name,
        row.seq + 1,
        charge_id,
        event,
        principal,
        line,
        change.main,
        change.epsilon,
        change.delta,
        now,
    )
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
    return entry.seq


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
    if body["group"]:
        before = _peak(tx, row.scope_id, body["group"])
        for member in body["members"]:
            tx.run(
                "UPDATE member SET main = main - ? WHERE scope_id = ? AND group_name = ? AND member = ?",
                *(main, row.scope_id, body["group"], member),
            )
        main = before - _peak(tx, row.scope_id, body["group"])
    _append(tx, key, row, (charge_id, "expired", principal, ""), Caps(-main, -epsilon, -delta), now)
    tx.run("UPDATE charge_state SET status = 'expired' WHERE charge_id = ?", charge_id)


def _receipt(charge_id: str, status: str, change: Caps, expires_ms: int, scope: str, seq: int) -> Receipt:
    said = {
        "charge_id": charge_id,
        "delta": change.delta,
        "epsilon": change.epsilon,
        "expires_ms": expires_ms,
        "main": change.main,
        "scope": scope,
        "seq": seq,
        "status": status,
    }
    body = canonical_json("receipt", said).encode()
    return Receipt(charge_id, status, change.main, change.epsilon, change.delta, expires_ms, body)
