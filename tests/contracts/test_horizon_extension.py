"""Paying for more ticks of a running counter, on every ledger store."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import pytest

from evertally.accountants.budget import (
    ChargeRequest,
    CounterLine,
    CounterParameters,
    GaussianLine,
    LedgerStore,
    OpenedStream,
    ReleaseRow,
    Scope,
    StreamRecord,
)
from evertally.counters import parse_mechanism
from evertally.errors import BudgetExceeded, InvalidParameter, UnsupportedMechanism

Open = Callable[[], LedgerStore]
SCOPE = Scope("s", "event", "add-remove", "4", "1e-6", disjoint=("keys",))
SHORT = CounterParameters("rational:W32", q=2**24, keys=2, slack_horizon=4)
LONG = 2**36


def request(parameters: CounterParameters = SHORT, **more: object) -> ChargeRequest:
    return ChargeRequest("s", "event", "add-remove", CounterLine(parameters), **more)  # type: ignore[arg-type]


@pytest.fixture
def store(open_store: Open) -> LedgerStore:
    ledger = open_store()
    ledger.create_scope(SCOPE)
    return ledger


def opened(store: LedgerStore, charge: ChargeRequest | None = None, name: str = "gates") -> OpenedStream:
    return store.open_stream(StreamRecord(name, ("a", "b"), 1, {"tick_s": 60}), charge or request())


def commit(store: LedgerStore, stream: OpenedStream, epoch: int, first: int, last: int) -> None:
    rows = [ReleaseRow(k, t, t, "1.5", t) for t in range(first, last + 1) for k in (0, 1)]
    store.commit_ticks(stream.shard(0), epoch, first, rows, last, b"state")


def price(horizon: int) -> int:
    """(Delta q + A)^2 / 2^60 in nano units, A = sqrt(n) (kappa (1 + 2 eta) + 2 state_rounding)."""
    w32 = parse_mechanism("rational:W32")
    norm = math.sqrt(w32.sensitivity_squared(1, 1, w32.horizon)) * (1 + 2.0**-50)
    slack = math.sqrt(horizon) * (w32.kappa * (1 + 2 * w32.eta) + 2 * w32.state_rounding)
    return math.ceil(((Fraction(norm) * SHORT.q + Fraction(slack)) / 2**30) ** 2 * 10**9)


def test_the_difference_to_the_longer_horizon_is_charged(store: LedgerStore, open_store: Open) -> None:
    stream = opened(store)
    before = store.scope_status("s").spent
    assert before.main == pytest.approx(price(4), abs=2)
    quoted = store.quote_horizon("gates", 1, LONG)
    assert store.scope_status("s").spent == before
    paid = store.extend_horizon("gates", 1, LONG)
    assert (quoted.status, quoted.main, quoted.delta) == ("quote", paid.main, paid.delta)
    spent = store.scope_status("s").spent
    assert spent.main == before.main + paid.main == pytest.approx(price(LONG), abs=2)
    assert paid.main > 1000
    assert spent.delta > before.delta
    assert store.find_stream("gates") == replace(stream, slack_horizon=LONG)
    assert open_store().find_stream("gates", 1) == replace(stream, slack_horizon=LONG)
    history = store.charges("s")
    assert [row.event for row in history] == ["committed", "extended"]
    assert history[1].charge_id == stream.charge_id == paid.charge_id
    assert store.verify().problems == ()
    # as if the long horizon had been bought at once
    bought = store.quote(request(replace(SHORT, slack_horizon=LONG)))
    assert (spent.main, spent.delta) == (bought.main, bought.delta)


def test_ticks_past_the_horizon_wait_until_they_are_paid(store: LedgerStore, open_store: Open) -> None:
    stream = opened(store)
    epoch = store.acquire(stream.shard(0), "one")
    commit(store, stream, epoch, 1, 4)
    for _ in range(2):
        with pytest.raises(UnsupportedMechanism, match="horizon 4"):
            commit(store, stream, epoch, 5, 5)
    open_store().extend_horizon("gates", 1, 6)  # another process pays
    commit(store, stream, epoch, 5, 6)
    with pytest.raises(UnsupportedMechanism, match="horizon 6"):
        commit(store, stream, epoch, 7, 7)
    assert store.head(stream.shard(0)).t == 6
    assert store.verify().problems == ()


def test_paid_horizons_cost_nothing_again_and_never_shrink(store: LedgerStore) -> None:
    opened(store)
    store.extend_horizon("gates", 1, 100)
    before = store.scope_status("s")
    again = store.extend_horizon("gates", 1, 100)
    assert (again.main, again.delta, again.status) == (0, 0, "committed")
    with pytest.raises(InvalidParameter, match="at least 100"):
        store.extend_horizon("gates", 1, 99)
    assert store.scope_status("s") == before
    assert store.extend_horizon("gates", 1, 101).charge_id == again.charge_id


@pytest.mark.parametrize("horizon", [0, -1, True, 2**50 + 1, 2.0**40])
def test_impossible_horizons_are_refused_by_name(store: LedgerStore, horizon: int) -> None:
    opened(store)
    for act in (store.quote_horizon, store.extend_horizon):
        with pytest.raises(InvalidParameter, match="slack_horizon"):
            act("gates", 1, horizon)


def test_only_counters_in_the_ledger_have_a_horizon(store: LedgerStore) -> None:
    for act in (store.quote_horizon, store.extend_horizon):
        with pytest.raises(InvalidParameter, match="stream"):
            act("gates", 1, 10)
    opened(store, ChargeRequest("s", "event", "add-remove", GaussianLine(1, 10)), "plain")
    with pytest.raises(UnsupportedMechanism, match="counter"):
        store.extend_horizon("plain", 1, 10)
    found = store.find_stream("plain")
    assert found is not None
    assert found.slack_horizon is None


def test_what_the_scope_does_not_admit_changes_nothing(store: LedgerStore) -> None:
    stream = opened(store)
    status = store.scope_status("s")
    left = GaussianLine(1, f"{math.sqrt(1e9 / (status.remaining - 1000)):.17g}")
    store.charge(ChargeRequest("s", "event", "add-remove", left))
    before = store.scope_status("s")
    for act in (store.quote_horizon, store.extend_horizon):
        with pytest.raises(BudgetExceeded):
            act("gates", 1, LONG)
    assert store.scope_status("s") == before
    assert store.find_stream("gates") == stream
    with pytest.raises(UnsupportedMechanism):
        commit(store, stream, store.acquire(stream.shard(0), "one"), 1, 5)


def test_in_a_group_only_the_largest_members_rise_is_paid(store: LedgerStore) -> None:
    large, small = replace(SHORT, q=2**25), SHORT
    opened(store, request(large, group="keys", members=("x",)), "large")
    opened(store, request(small, group="keys", members=("y",)), "small")
    assert store.extend_horizon("small", 1, LONG).main == 0
    assert store.extend_horizon("large", 1, LONG).main > 0
    alone = store.quote(request(replace(large, slack_horizon=LONG)))
    assert store.scope_status("s").spent.main == alone.main
    # what the smaller one's extension cost counts once it becomes the largest
    more = ChargeRequest("s", "event", "add-remove", GaussianLine(1, 10), group="keys", members=("y",))
    store.charge(more)
    extended = store.quote(request(replace(small, slack_horizon=LONG)))
    assert store.scope_status("s").spent.main == extended.main + 10_000_000
    assert store.verify().problems == ()


def test_many_extenders_at_once_pay_for_the_longest_once(store: LedgerStore, open_store: Open) -> None:
    opened(store)
    stores = [store, open_store()]
    refused: list[Exception] = []

    def extend(i: int) -> None:
        try:
            stores[i % 2].extend_horizon("gates", 1, 1000 * (i + 1))
        except InvalidParameter as error:  # a longer one was faster
            refused.append(error)

    threads = [threading.Thread(target=extend, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    alone = store.quote(request(replace(SHORT, slack_horizon=8000)))
    assert store.scope_status("s").spent.main == alone.main
    found = store.find_stream("gates")
    assert found is not None
    assert found.slack_horizon == 8000
    assert store.verify().problems == ()
