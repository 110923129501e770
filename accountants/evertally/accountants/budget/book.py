"""The book of charges: admissions, reservations and what became of them, inside a transaction.

Every decision reads one scope row and writes a fixed number of rows, however long the history is.
Amounts move only through `scope_book.append`.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import replace
from typing import Final

from evertally.accountants.budget import charge_states, groups, kept_answers
from evertally.accountants.budget.canonical import plain_json
from evertally.accountants.budget.charge_states import ChargeState
from evertally.accountants.budget.charges import ChargeRequest, Cost
from evertally.accountants.budget.records import Receipt
from evertally.accountants.budget.scope_book import ScopeRow, admit, append, read_scope
from evertally.accountants.budget.scopes import Caps
from evertally.accountants.budget.sql import Transaction
from evertally.errors import Fenced, IntegrityError, InvalidParameter

__all__ = [
    "any_due",
    "commit_reservation",
    "expire_due",
    "expire_one",
    "owned",
    "quote",
    "receipt",
    "record",
]

_SWEEP: Final = 32
_SWEPT: Final = "swept"


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
    content = kept_answers.content_digest(body, ttl_ms)
    answered = kept_answers.find(tx, key, request, content)
    if answered is not None:
        return _receipt_of(answered)
    now = tx.now_ms()
    row = read_scope(tx, key, request.scope)
    if (_SWEPT, request.scope) not in tx.memo and expire_due(tx, key, row, now) < _SWEEP:
        tx.memo[_SWEPT, request.scope] = True
    row = read_scope(tx, key, request.scope)
    change = _change(tx, row, request, price)
    admit(row, change)
    charge_id, expires = uuid.uuid4().hex, 0 if ttl_ms is None else now + ttl_ms
    status = "committed" if ttl_ms is None else "reserved"
    groups.join(tx, row.scope_id, request.group, request.members, price.main)
    seq = append(tx, key, row, (charge_id, status, request.principal, body), change, now)
    state = ChargeState(
        *(charge_id, row.scope.name, status, request.principal, body),
        *(price.main, price.epsilon, price.delta, expires),
    )
    charge_states.insert(tx, key, row.scope_id, state)
    answer = receipt(charge_id, status, change, expires, row.scope.name, seq)
    kept_answers.keep(tx, key, request, content, answer.body)
    return answer


def commit_reservation(tx: Transaction, key: bytes, charge_id: str, principal: str) -> Receipt:
    """Make a reservation final. Raises Fenced when its time is over, InvalidParameter for an unknown one."""
    state = owned(tx, key, charge_id, principal)
    scope = state.scope
    row = read_scope(tx, key, scope)
    now = tx.now_ms()
    if state.status == "committed":
        return receipt(charge_id, "committed", Caps(0, 0, 0), 0, scope, row.seq)
    if state.status != "reserved" or now >= state.expires_ms:
        raise Fenced("the reservation has expired; nothing may be drawn from it")
    seq = append(tx, key, row, (charge_id, "committed", principal, ""), Caps(0, 0, 0), now)
    charge_states.update(tx, key, replace(state, status="committed", expires_ms=0))
    return receipt(charge_id, "committed", Caps(0, 0, 0), 0, scope, seq)


def owned(tx: Transaction, key: bytes, charge_id: str, principal: str) -> ChargeState:
    """A charge of this principal. Raises InvalidParameter for any other id."""
    state = charge_states.read(tx, key, charge_id)
    if state is None or state.principal != principal:
        raise InvalidParameter("charge_id", charge_id[:64], "a charge of this principal")
    return state


def any_due(tx: Transaction, row: ScopeRow, now: int) -> bool:
    """Whether a reservation of the scope has lapsed and its amounts were not returned yet."""
    return bool(charge_states.due(tx, row.scope_id, now, 1))


def expire_due(tx: Transaction, key: bytes, row: ScopeRow, now: int) -> int:
    """Return the amounts of some of the scope's reservations whose time is over; how many.

    Raises IntegrityError where an index names as lapsed what is none: nothing that was spent is returned.
    """
    ids = charge_states.due(tx, row.scope_id, now, _SWEEP)
    for charge_id in ids:
        state = charge_states.read(tx, key, charge_id)
        if state is None or state.status != "reserved" or state.expires_ms > now:
            raise IntegrityError("a reservation that is listed as lapsed is none: the ledger is damaged")
        _expire(tx, key, state, now)
    return len(ids)


def expire_one(tx: Transaction, key: bytes, charge_id: str, principal: str) -> int:
    """Return one undrawn reservation at once; 0 where it has expired already. A final charge is refused."""
    state = owned(tx, key, charge_id, principal)
    if state.status == "committed":
        raise InvalidParameter(
            "charge_id", charge_id, "a reservation that is not committed; nothing is refunded"
        )
    if state.status == "expired":
        return 0
    _expire(tx, key, state, tx.now_ms())
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


def _receipt_of(body: bytes) -> Receipt:
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


def _expire(tx: Transaction, key: bytes, state: ChargeState, now: int) -> None:
    row, body = read_scope(tx, key, state.scope), json.loads(state.line)
    main = groups.leave(tx, row.scope_id, body["group"], body["members"], state.main)
    what = (state.charge_id, "expired", state.principal, "")
    append(tx, key, row, what, Caps(-main, -state.epsilon, -state.delta), now)
    charge_states.update(tx, key, replace(state, status="expired"))
