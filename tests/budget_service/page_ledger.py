"""A ledger with enough in it to look at: scopes at three levels of spend, a stream with published ticks."""

from __future__ import annotations

from evertally.accountants.budget import (
    ChargeRequest,
    CounterLine,
    CounterParameters,
    GaussianLine,
    ReleaseRow,
    Scope,
    ShardRef,
    StreamRecord,
    fit_counter,
)
from evertally.accountants.budget.ledger import LedgerStore
from evertally.accountants.budget.opening import open_ledger

KEYS = (
    "Emergency",
    "Cardiology",
    "Maternity",
    "<script>alert(1)</script>",
    "Paediatrics",
    "Oncology",
    "Surgery",
)
TICKS = 60
PUBLISHED = 56
START_MS = 1_767_225_600_000
HOUR_MS = 3_600_000


def fill(location: str) -> None:
    """Create scopes, charges and a stream; the last four ticks are committed but not published."""
    ledger = open_ledger(location)
    visits = Scope("hospital/visits", "event", "add-remove", "2", "0.000001")
    flights = Scope("flights/aircraft", "aircraft", "add-remove", "1", "0.00001")
    models = Scope(
        "models/2026", "event", "add-remove", "4", "0.000001", filter="renyi", order="16", epsilon_lines="0.5"
    )
    renewing = Scope("usage/renewing-daily", "event", "replace-value", "0.5", "0.000001", renews="day")
    for scope in (visits, flights, models, renewing):
        ledger.create_scope(scope)
    _open_stream(ledger, visits)
    for scope, share in ((flights, 0.97), (models, 0.42), (renewing, 0.84)):
        _spend(ledger, scope, share)
    ledger.reserve(_gaussian(flights, "400"), 600_000)
    ledger.close()


def _open_stream(ledger: LedgerStore, scope: Scope) -> None:
    bare = CounterParameters("rational:W32", q=1, keys=len(KEYS))
    line = CounterLine(fit_counter(bare, scope, int(scope.caps().main * 0.62)))
    descriptor = {
        "start_ms": START_MS,
        "tick_ms": HOUR_MS,
        "value_unit": "visits",
        "mechanism": "rational:W32",
    }
    opened = ledger.open_stream(
        StreamRecord("hospital/visits-by-ward", KEYS, 1, descriptor),
        ChargeRequest(scope.name, scope.unit, scope.adjacency, line),
    )
    shard = ShardRef(opened.name, opened.incarnation, 0)
    epoch = ledger.acquire(shard, "page")
    rows = [
        ReleaseRow(key, t, _value(key, t), _stderr(key, t), START_MS + t * HOUR_MS)
        for t in range(1, TICKS + 1)
        for key in opened.key_indices
    ]
    ledger.commit_ticks(shard, epoch, 1, rows, TICKS, b"sealed")
    ledger.mark_published(shard, epoch, PUBLISHED, 0)


def _stderr(key: int, t: int) -> str:
    return f"{(14.0 + 3.0 * t**0.5) * (1 + key % 3):.6g}"


def _value(key: int, t: int) -> int:
    """A running total with a fixed scatter, so that the picture never changes."""
    arrivals = sum(4 + key + 3 * abs((hour + 5 * key) % 24 - 12) // 2 for hour in range(t))
    scatter = (t * (7919 + 104729 * key) % 23 - 11) * float(_stderr(key, t)) / 14
    return arrivals + round(scatter)


def _gaussian(scope: Scope, sigma: str) -> ChargeRequest:
    return ChargeRequest(scope.name, scope.unit, scope.adjacency, GaussianLine("1", sigma))


def _spend(ledger: LedgerStore, scope: Scope, share: float) -> None:
    """Spend a share of the cap in one Gaussian line and a few small ones."""
    order = scope.renyi_order
    mu2 = scope.caps().main * share * 1e-9 * (1.0 if order is None else 2.0 / order)
    ledger.charge(_gaussian(scope, f"{(1.0 / mu2) ** 0.5 * 1.001:.6f}"))
    for sigma in ("300", "450", "900"):
        ledger.charge(_gaussian(scope, sigma))
