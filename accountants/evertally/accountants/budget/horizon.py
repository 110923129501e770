"""Buying more slack: a running counter may release further ticks once their rounding is paid for.

A counter of horizon n costs mu = (Delta q + A(n))/2^30: later ticks add rounding slack, never noise. So a
longer horizon with the same q is the same line at a larger mu, and only the difference is charged. Whoever
watches the stream may decide when: the filter admits adaptively chosen lines, and the line's whole output
up to the new horizon is one Gaussian mechanism of the new mu.

Reference: docs/proofs/snapped-mechanism.md ("Theorem", "Grid").
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

from evertally.accountants.budget import charge_states, groups, streams
from evertally.accountants.budget.book import receipt
from evertally.accountants.budget.charge_states import ChargeState
from evertally.accountants.budget.charges import ChargeRequest, cost, request_from_json
from evertally.accountants.budget.counter_loss import CounterParameters
from evertally.accountants.budget.lines import CounterLine
from evertally.accountants.budget.records import OpenedStream, Receipt
from evertally.accountants.budget.scope_book import ScopeRow, admit, append, read_scope
from evertally.accountants.budget.scopes import Caps
from evertally.accountants.budget.sql import Transaction
from evertally.errors import IntegrityError, InvalidParameter, UnsupportedMechanism
from evertally.validation import positive_integer

__all__ = ["counter_parameters", "extend", "extended_request", "quote_extension"]


def counter_parameters(request: ChargeRequest) -> CounterParameters:
    """The counter that a request charges. Raises UnsupportedMechanism where its line is no counter."""
    if not isinstance(request.line, CounterLine):
        raise UnsupportedMechanism("only a counter's line has a slack horizon")
    return request.line.parameters


def extended_request(request: ChargeRequest, slack_horizon: int) -> ChargeRequest:
    """The same counter at another horizon. Raises UnsupportedMechanism where the line is no counter."""
    line = CounterLine(replace(counter_parameters(request), slack_horizon=slack_horizon))
    return replace(request, line=line)


def quote_extension(tx: Transaction, key: bytes, opened: OpenedStream, slack_horizon: int) -> Receipt:
    """What `extend` would answer now; writes nothing."""
    plan = _plan(tx, key, opened, slack_horizon)
    admit(plan.row, plan.change)
    return receipt("", "quote", plan.change, 0, plan.row.scope.name, plan.row.seq)


def extend(tx: Transaction, key: bytes, pk: int, opened: OpenedStream, slack_horizon: int) -> Receipt:
    """Charge the difference and append the horizon, in one transaction; a horizon paid for is a no-op."""
    plan = _plan(tx, key, opened, slack_horizon)
    row, charge_id = plan.row, opened.charge_id
    if slack_horizon == plan.paid:
        return receipt(charge_id, "committed", Caps(0, 0, 0), 0, row.scope.name, row.seq)
    admit(row, plan.change)
    body, request = plan.request.body(), plan.request
    groups.join(tx, row.scope_id, request.group, request.members, plan.more)
    seq = append(tx, key, row, (charge_id, "extended", request.principal, body), plan.change, tx.now_ms())
    state = plan.state
    grown = replace(
        state,
        line=body,
        main=state.main + plan.more,
        epsilon=state.epsilon + plan.change.epsilon,
        delta=state.delta + plan.change.delta,
    )
    charge_states.update(tx, key, grown)
    known = streams.read_horizons(tx, key, pk, opened)
    for horizon in (slack_horizon,) if known else (plan.paid, slack_horizon):
        streams.add_horizon(tx, key, pk, opened, len(known), horizon)
        known.append(horizon)
    return receipt(charge_id, "committed", plan.change, 0, row.scope.name, seq)


@dataclass(frozen=True, slots=True)
class _Plan:
    """An extension: the line at its new horizon, what it adds to the line and to the spend.

    Attributes:
        state: where the charge stands now.
        paid: the horizon that is paid for now.
        more: how much the line's own cost grows, in units of the filter.
    """

    row: ScopeRow
    state: ChargeState
    request: ChargeRequest
    paid: int
    more: int
    change: Caps


def _plan(tx: Transaction, key: bytes, opened: OpenedStream, slack_horizon: int) -> _Plan:
    positive_integer("slack_horizon", slack_horizon, high=2**50)
    state = charge_states.read(tx, key, opened.charge_id)
    if state is None:
        raise IntegrityError(f"the charge of stream {opened.name} is not in the ledger")
    now = request_from_json(json.loads(state.line), state.principal)
    later = extended_request(now, slack_horizon)
    paid = counter_parameters(now).slack_horizon
    if opened.slack_horizon not in (None, paid):
        raise IntegrityError(f"stream {opened.name} and its charge do not have the same horizon")
    if slack_horizon < paid:
        raise InvalidParameter("slack_horizon", slack_horizon, f"at least {paid}, which is paid for")
    row = read_scope(tx, key, opened.scope)
    price = cost(row.scope, later)
    before = state.main, state.epsilon, state.delta
    rises = zip((price.main, price.epsilon, price.delta), before, strict=True)
    more, own_epsilon, own_delta = (max(0, new - old) if slack_horizon > paid else 0 for new, old in rises)
    main_change = groups.rise(tx, row.scope_id, later.group, later.members, more)
    return _Plan(row, state, later, paid, more, Caps(main_change, own_epsilon, own_delta))
