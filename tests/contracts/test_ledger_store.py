"""One suite for every ledger store: what a store promises, whatever database stands behind it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evertally.accountants.budget import (
    ChargeRequest,
    CounterLine,
    CounterParameters,
    GaussianLine,
    LedgerStore,
    OpenedStream,
    Receipt,
    ReleaseRow,
    Scope,
    StreamRecord,
    fit_counter,
)
from evertally.errors import BudgetExceeded, Fenced, IntegrityError, InvalidParameter, UnsupportedMechanism

Open = Callable[[], LedgerStore]


@pytest.fixture
def store(open_store: Open) -> LedgerStore:
    ledger = open_store()
    ledger.create_scope(SCOPE)
    return ledger


SCOPE = Scope("s", "event", "add-remove", "4.8865541175", "1.001001001e-6", "1.001001e-9", disjoint=("keys",))


def line(scope: str = "s", sigma: str = "10", **more: object) -> ChargeRequest:
    return ChargeRequest(scope, "event", "add-remove", GaussianLine(1, sigma), **more)  # type: ignore[arg-type]


def opened(store: LedgerStore, keys: tuple[str, ...] = ("a", "b", "c"), shards: int = 1) -> OpenedStream:
    return store.open_stream(StreamRecord("flights", keys, shards, {"tick_s": 60}), line())


def rows(stream: OpenedStream, shard: int, first: int, last: int, salt: int = 0) -> list[ReleaseRow]:
    return [
        ReleaseRow(k, t, 1000 * t + k + salt, "20.4567", 60_000 * t)
        for t in range(first, last + 1)
        for k in stream.shard_keys(shard)
    ]


# scopes


def test_scope_is_created_once_and_never_changes(store: LedgerStore, open_store: Open) -> None:
    assert store.create_scope(SCOPE) == store.scope_status("s")
    with pytest.raises(InvalidParameter, match="never changes"):
        store.create_scope(Scope("s", "event", "add-remove", "4.9", "1e-6"))
    assert [status.scope for status in open_store().scopes()] == [SCOPE]


def test_unknown_names_are_refused_by_name(store: LedgerStore) -> None:
    with pytest.raises(InvalidParameter, match="scope"):
        store.scope_status("other")
    with pytest.raises(InvalidParameter, match="scope"):
        store.charge(line("other"))
    assert store.find_stream("nothing") is None


@pytest.mark.parametrize("text", ["\x00", "a\x00b", "\ud800", "", "x" * 10_000])
def test_names_that_no_database_holds_are_unknown_on_each(store: LedgerStore, text: str) -> None:
    with pytest.raises(InvalidParameter, match="scope"):
        store.scope_status(text)
    assert store.find_stream(text) is None
    assert store.find_stream(text, 1) is None


@pytest.mark.parametrize("text", ["\x00", "a\x00b", "\ud800"])
def test_texts_that_no_database_holds_are_refused_by_name(store: LedgerStore, text: str) -> None:
    with pytest.raises(InvalidParameter, match="members"):
        store.charge(line(group="keys", members=(text,)))
    with pytest.raises(InvalidParameter, match="keys"):
        opened(store, keys=("a", text))
    shard = opened(store).shard(0)
    with pytest.raises(InvalidParameter, match="holder"):
        store.acquire(shard, text)
    assert store.verify().problems == ()


# charges


def test_eleven_elevenths_never_pass_one(store: LedgerStore) -> None:
    # w3c/attribution#77: 11 x (1/11) overruns 1 in doubles; here each is 90,909,091 units, rounded up
    scope = Scope("eleven", "event", "add-remove", "4.8865541176", "1.0011e-6", "1.1e-9")
    assert store.create_scope(scope).caps.main == 10**9
    eleventh = ChargeRequest("eleven", "event", "add-remove", GaussianLine("0.3015113445777636", 1))
    for i in range(10):
        assert store.charge(eleventh).main == 90_909_091
        assert store.scope_status("eleven").spent.main == 90_909_091 * (i + 1)
    with pytest.raises(BudgetExceeded):
        store.charge(eleventh)
    tenth_part = ChargeRequest("eleven", "event", "add-remove", GaussianLine("0.301511343", 1))
    assert store.charge(tenth_part).main == 90_909_090  # a hair less privacy loss is exactly what is left
    assert store.scope_status("eleven").remaining == 0


def test_refusal_changes_nothing_and_says_what_is_left(store: LedgerStore) -> None:
    before = store.scope_status("s")
    with pytest.raises(BudgetExceeded) as refused:
        store.charge(line(sigma="0.5"))
    assert (refused.value.requested, refused.value.spent) == (4 * 10**9, 0)
    assert store.scope_status("s") == before
    assert store.charges("s") == []


def test_spend_equals_the_distinct_grants_and_stops_at_the_cap(store: LedgerStore) -> None:
    cap, granted = store.scope_status("s").caps.main, 0
    for i in range(200):
        try:
            granted += store.charge(line(sigma="3", idempotency_key=f"k{i}")).main
        except BudgetExceeded:
            break
    assert store.scope_status("s").spent.main == granted <= cap < granted + 111_111_112


def test_quote_is_the_charge_without_the_charge(store: LedgerStore) -> None:
    before = store.scope_status("s")
    quoted = store.quote(line())
    assert store.scope_status("s") == before
    assert store.charge(line()).main == quoted.main
    with pytest.raises(BudgetExceeded):
        store.quote(line(sigma="0.5"))


def test_reading_spent_a_hundred_times_changes_nothing(store: LedgerStore) -> None:
    store.charge(line())
    assert len({repr((store.scope_status("s"), store.charges("s"))) for _ in range(100)}) == 1


def test_retry_returns_the_first_answers_bytes(store: LedgerStore, open_store: Open) -> None:
    first = store.charge(line(idempotency_key="once"))
    store.charge(line())
    again = open_store().charge(line(idempotency_key="once"))
    assert again.body == first.body
    assert again == first
    assert store.scope_status("s").rows == 2


def test_a_refusal_is_not_kept_and_the_same_request_is_asked_anew(store: LedgerStore) -> None:
    held = store.reserve(line(sigma="1.1"), 60_000)
    wish = line(sigma="1.2", idempotency_key="later")
    for _ in range(2):
        with pytest.raises(BudgetExceeded):
            store.charge(wish)
    store.expire(held.charge_id)
    granted = store.charge(wish)  # room came back meanwhile: the retry is granted, and only once
    assert store.charge(wish).body == granted.body
    assert [row.event for row in store.charges("s")] == ["reserved", "expired", "committed"]
    assert store.verify().ok


def test_idempotency_key_is_bound_to_content_and_principal(store: LedgerStore) -> None:
    first = store.charge(line(idempotency_key="once", principal="alice"))
    with pytest.raises(InvalidParameter, match="idempotency_key"):
        store.charge(line(sigma="11", idempotency_key="once", principal="alice"))
    with pytest.raises(InvalidParameter, match="idempotency_key"):
        store.reserve(line(idempotency_key="once", principal="alice"), 60_000)
    assert store.charge(line(idempotency_key="once", principal="bob")).charge_id != first.charge_id
    assert store.scope_status("s").rows == 2


def test_reservation_counts_as_spent_until_it_expires(store: LedgerStore) -> None:
    receipt = store.reserve(line(), 60_000)
    assert receipt.status == "reserved"
    assert store.scope_status("s").spent.main == receipt.main > 0
    assert store.expire() == 0
    assert store.expire(receipt.charge_id) == 1
    assert store.expire(receipt.charge_id) == 0
    assert store.scope_status("s").spent.main == 0
    assert [row.event for row in store.charges("s")] == ["reserved", "expired"]
    assert store.verify().ok


def test_committed_reservation_is_final(store: LedgerStore) -> None:
    receipt = store.reserve(line(), 60_000)
    assert store.commit_charge(receipt.charge_id).status == "committed"
    assert store.commit_charge(receipt.charge_id).status == "committed"
    with pytest.raises(InvalidParameter, match="nothing is refunded"):
        store.expire(receipt.charge_id)
    assert store.scope_status("s").spent.main == receipt.main


def test_expired_reservation_cannot_be_drawn_from(store: LedgerStore) -> None:
    receipt = store.reserve(line(), 1)
    threading.Event().wait(0.05)
    with pytest.raises(Fenced):
        store.commit_charge(receipt.charge_id)
    assert store.expire() == 1
    with pytest.raises(Fenced):
        store.commit_charge(receipt.charge_id)


def test_expired_reservations_make_room_for_the_next_request(store: LedgerStore) -> None:
    store.reserve(line(sigma="1.1"), 1)
    threading.Event().wait(0.05)
    assert store.charge(line(sigma="1.1")).status == "committed"
    assert store.verify().ok


def lapse(store: LedgerStore, count: int, sigma: str, **more: object) -> None:
    """Reservations that have lapsed and that nobody has returned yet."""
    wishes = [(line(sigma=sigma, **more), 100)] * count  # type: ignore[arg-type]
    assert all(isinstance(answer, Receipt) for answer in store.record_all(wishes))
    threading.Event().wait(0.15)


def test_a_quote_is_the_charge_also_where_reservations_have_lapsed(store: LedgerStore) -> None:
    lapse(store, 1, "1.1")
    assert store.quote(line(sigma="1.1")).main == store.charge(line(sigma="1.1")).main


def test_a_quote_in_a_group_does_not_count_on_a_member_that_has_lapsed(store: LedgerStore) -> None:
    lapse(store, 1, "5", group="keys", members=("a",))
    wish = line(group="keys", members=("b",))
    assert store.quote(wish).main == store.charge(wish).main == 10_000_000


def test_any_number_of_lapsed_reservations_makes_room(store: LedgerStore) -> None:
    lapse(store, 40, "6.4")
    assert store.charge(line(sigma="1.1")).status == "committed"
    assert store.verify().problems == ()


def test_lapsed_reservations_make_room_for_charges_decided_together(store: LedgerStore) -> None:
    lapse(store, 40, "6.4")
    large, small, beyond = store.record_all([(line(sigma=sigma), None) for sigma in ("1.1", "20", "0.5")])
    assert isinstance(large, Receipt)
    assert isinstance(small, Receipt)
    assert isinstance(beyond, BudgetExceeded)
    assert store.verify().problems == ()


def test_lapsed_reservations_make_room_for_streams_and_their_horizons(store: LedgerStore) -> None:
    lapse(store, 40, "6.4")
    fitted = fit_counter(CounterParameters("rational:W32", 1, 3, slack_horizon=4), SCOPE, 900_000_000)
    charge = ChargeRequest("s", "event", "add-remove", CounterLine(fitted))
    store.open_stream(StreamRecord("x", ("a",), 1, {}), charge)
    lapse(store, 40, "20.1")
    assert store.quote_horizon("x", 1, 2**40).main == store.extend_horizon("x", 1, 2**40).main
    assert store.verify().problems == ()


def test_another_principals_charge_is_unknown(store: LedgerStore) -> None:
    receipt = store.reserve(line(principal="alice"), 60_000)
    with pytest.raises(InvalidParameter, match="charge_id"):
        store.commit_charge(receipt.charge_id, "bob")


def test_group_pays_for_its_largest_member(store: LedgerStore) -> None:
    def member(sigma: str, *members: str) -> int:
        return store.charge(line(sigma=sigma, group="keys", members=members)).main

    assert member("10", "a", "b") == 10_000_000
    assert member("10", "c") == 0  # disjoint, and no larger than what is paid
    assert member("5", "c") == 40_000_000  # c: 10^-2 + 4 10^-2, over all its lines first
    assert member("10", "a") == 0
    assert store.scope_status("s").spent.main == 50_000_000
    assert store.verify().ok


def test_expiry_in_a_group_returns_only_what_the_peak_falls(store: LedgerStore) -> None:
    first = store.reserve(line(sigma="5", group="keys", members=("a",)), 60_000)
    second = store.reserve(line(sigma="10", group="keys", members=("b",)), 60_000)
    assert (first.main, second.main) == (40_000_000, 0)
    store.expire(first.charge_id)
    assert store.scope_status("s").spent.main == 10_000_000
    store.expire(second.charge_id)
    assert store.scope_status("s").spent.main == 0
    assert store.verify().ok


def test_charges_decided_together_are_decided_one_by_one(store: LedgerStore) -> None:
    wishes: list[tuple[ChargeRequest, int | None]] = [
        (line(idempotency_key="a"), None),
        (line(sigma="0.01"), None),  # beyond the cap: its refusal undoes nothing of the others
        (line(idempotency_key="a"), None),
        (line(group="keys", members=("m", "n")), 60_000),
        (line("nowhere"), None),
        (line(group="keys", members=("m",)), None),
        (line(sigma="11", idempotency_key="a"), None),
        (line(), 0),
    ]
    first, beyond, again, held, unknown, larger, reused, lapsed = store.record_all(wishes)
    assert isinstance(first, Receipt)
    assert first == again
    assert isinstance(beyond, BudgetExceeded)
    assert isinstance(held, Receipt)
    assert isinstance(larger, Receipt)
    assert (held.status, held.main, larger.main) == ("reserved", first.main, first.main)
    assert [type(error) for error in (unknown, reused, lapsed)] == [InvalidParameter] * 3
    assert store.scope_status("s").spent.main == 3 * first.main
    assert store.charge_of(held.charge_id).members == ("m", "n")
    with pytest.raises(InvalidParameter, match="charge_id"):
        store.charge_of(held.charge_id, "someone-else")
    assert store.commit_charge(held.charge_id).status == "committed"
    assert store.record_all([]) == []
    many = store.record_all([(line(sigma="1000", idempotency_key=f"n{i}"), None) for i in range(600)])
    assert all(isinstance(answer, Receipt) for answer in many)
    assert [row.seq for row in store.charges("s")] == list(range(1, 605))
    assert store.verify().problems == ()


def test_many_threads_never_pass_the_cap_and_lose_nothing(store: LedgerStore) -> None:
    granted: list[int] = []
    refused: list[BaseException] = []

    def client(number: int) -> None:
        for i in range(12):
            try:
                granted.append(store.charge(line(sigma="8", idempotency_key=f"{number}-{i}")).main)
            except BudgetExceeded as error:
                refused.append(error)

    threads = [threading.Thread(target=client, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    status = store.scope_status("s")
    assert len(granted) + len(refused) == 96
    assert sum(granted) == status.spent.main <= status.caps.main
    assert refused
    assert store.verify().ok


# streams


def test_stream_is_opened_with_its_charge(store: LedgerStore, open_store: Open) -> None:
    stream = opened(store)
    assert (stream.incarnation, stream.key_indices, len(stream.stream_id)) == (1, (0, 1, 2), 16)
    assert store.scope_status("s").spent.main == 10_000_000
    assert open_store().find_stream("flights") == stream
    assert store.streams() == [stream]


def test_counter_stream_uses_the_whole_scope_and_no_more(store: LedgerStore) -> None:
    fitted = fit_counter(CounterParameters("rational:W32", 1, 3), SCOPE, store.scope_status("s").remaining)
    charge = ChargeRequest("s", "event", "add-remove", CounterLine(fitted))
    store.open_stream(StreamRecord("whole", ("a", "b", "c"), 1, {}), charge)
    status = store.scope_status("s")
    assert 0 <= status.remaining <= 100
    assert 0 < status.spent.delta <= status.caps.delta
    with pytest.raises(BudgetExceeded):
        store.open_stream(StreamRecord("whole", ("a", "b", "c"), 1, {}), charge)
    assert store.find_stream("whole") is not None
    assert store.find_stream("whole", 2) is None


def test_no_counter_has_more_keys_than_its_charge_counts(store: LedgerStore) -> None:
    charge = ChargeRequest(
        "s", "event", "add-remove", CounterLine(CounterParameters("rational:W32", 2**20, 2))
    )
    with pytest.raises(InvalidParameter, match="keys"):
        store.open_stream(StreamRecord("wide", ("a", "b", "c"), 1, {}), charge)
    assert store.open_stream(StreamRecord("wide", ("a", "b"), 1, {}), charge).incarnation == 1


def test_new_incarnation_is_a_new_id_and_a_new_charge(store: LedgerStore) -> None:
    first = opened(store)
    second = opened(store, keys=("c", "d", "a"))
    assert second.incarnation == 2
    assert second.stream_id != first.stream_id
    assert second.key_indices == (2, 3, 0)  # a key keeps its index for ever
    assert store.find_stream("flights") == second
    assert store.find_stream("flights", 1) == first
    assert store.scope_status("s").rows == 2


def test_refused_stream_leaves_nothing(store: LedgerStore) -> None:
    with pytest.raises(BudgetExceeded):
        store.open_stream(StreamRecord("flights", ("a",), 1, {}), line(sigma="0.5"))
    assert store.find_stream("flights") is None
    assert opened(store).incarnation == 1


def test_retried_opening_returns_the_first_incarnation(store: LedgerStore) -> None:
    record, charge = StreamRecord("flights", ("a",), 1, {}), line(idempotency_key="open-1")
    assert store.open_stream(record, charge) == store.open_stream(record, charge)
    assert store.scope_status("s").rows == 1


@pytest.mark.parametrize(
    "other",
    [
        StreamRecord("gates", ("a",), 1, {"tick_s": 60}),
        StreamRecord("flights", ("b",), 1, {"tick_s": 60}),
        StreamRecord("flights", ("a",), 2, {"tick_s": 60}),
        StreamRecord("flights", ("a",), 1, {"tick_s": 61}),
    ],
)
def test_one_charge_opens_one_stream(store: LedgerStore, other: StreamRecord) -> None:
    """Its idempotency key is bound to the stream as well: another one is not the answer to a retry."""
    charge = line(idempotency_key="open-1")
    stream = store.open_stream(StreamRecord("flights", ("a",), 1, {"tick_s": 60}), charge)
    with pytest.raises(InvalidParameter, match="idempotency_key"):
        store.open_stream(other, charge)
    assert store.streams() == [stream]
    assert store.scope_status("s").rows == 1


def test_shards_that_reach_their_horizon_at_once_are_refused_by_name(store: LedgerStore) -> None:
    parameters = CounterParameters("rational:W32", 2**20, 8, slack_horizon=4)
    charge = ChargeRequest("s", "event", "add-remove", CounterLine(parameters))
    stream = store.open_stream(StreamRecord("wide", tuple("abcdefgh"), 8, {}), charge)
    epochs = [store.acquire(stream.shard(i), "one") for i in range(8)]
    errors: list[BaseException] = []

    def beyond(shard: int) -> None:
        for _ in range(30):
            try:
                store.commit_ticks(stream.shard(shard), epochs[shard], 1, rows(stream, shard, 1, 5), 5, b"x")
            except BaseException as error:
                errors.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=beyond, args=(shard,)) for shard in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert {type(error) for error in errors} == {UnsupportedMechanism}


@pytest.mark.parametrize(
    ("field", "record"),
    [
        ("keys", StreamRecord("x", ("a", "a"), 1, {})),
        ("keys", StreamRecord("x", (), 1, {})),
        ("shards", StreamRecord("x", ("a",), 0, {})),
        ("descriptor", StreamRecord("x", ("a",), 1, {"epsilon": 0.1})),
        ("name", StreamRecord("", ("a",), 1, {})),
    ],
)
def test_bad_streams_are_refused_by_field(store: LedgerStore, field: str, record: StreamRecord) -> None:
    with pytest.raises(InvalidParameter, match=field):
        store.open_stream(record, line())


# the release path


def test_ticks_are_committed_read_published_and_folded(store: LedgerStore, open_store: Open) -> None:
    stream = opened(store)
    shard = stream.shard(0)
    epoch = store.acquire(shard, "one")
    head = store.commit_ticks(shard, epoch, 1, rows(stream, 0, 1, 4), 4, b"sealed-4")
    head = store.commit_ticks(shard, epoch, 5, rows(stream, 0, 5, 5), 5, b"sealed-5")
    assert (head.t, head.sealed, head.published_t) == (5, b"sealed-5", 0)
    assert head == open_store().head(shard)
    assert store.releases(shard, 0, 100) == rows(stream, 0, 1, 5)
    assert store.releases(shard, 1, 7) == rows(stream, 0, 2, 3)  # whole ticks only
    assert store.releases(shard, 4, 1) == rows(stream, 0, 5, 5)
    assert store.releases(shard, 5, 10) == []
    store.mark_published(shard, epoch, 3, 1234)
    assert (store.head(shard).published_t, store.head(shard).published_mark) == (3, 1234)
    anchor = store.chain_at(shard, 2)
    assert store.fold(shard, epoch, 2) == 6
    assert store.chain_at(shard, 2) == anchor
    assert store.releases(shard, 2, 100) == rows(stream, 0, 3, 5)
    with pytest.raises(IntegrityError, match="folded"):
        store.releases(shard, 1, 100)
    with pytest.raises(IntegrityError, match="not published"):
        store.fold(shard, epoch, 4)
    assert store.verify().problems == ()


def test_values_of_any_size_survive(store: LedgerStore) -> None:
    stream = opened(store, keys=("a",))
    shard = stream.shard(0)
    epoch = store.acquire(shard, "one")
    values = [0, -1, 2**63, -(2**80), 10**60]
    written = [ReleaseRow(0, t, v, "1.5e+30", t) for t, v in enumerate(values, 1)]
    store.commit_ticks(shard, epoch, 1, written, len(values), b"x")
    assert store.releases(shard, 0, 10) == written


def test_a_tick_is_committed_once(store: LedgerStore) -> None:
    stream = opened(store)
    shard = stream.shard(0)
    epoch = store.acquire(shard, "one")
    store.commit_ticks(shard, epoch, 1, rows(stream, 0, 1, 2), 2, b"x")
    for first in (1, 2, 4):
        with pytest.raises(IntegrityError):
            store.commit_ticks(shard, epoch, first, rows(stream, 0, first, first, salt=7), first, b"y")
    assert store.releases(shard, 0, 100) == rows(stream, 0, 1, 2)
    assert store.head(shard).sealed == b"x"


def test_rows_must_cover_ticks_and_keys_exactly(store: LedgerStore) -> None:
    stream = opened(store)
    shard = stream.shard(0)
    epoch = store.acquire(shard, "one")
    good = rows(stream, 0, 1, 2)
    broken = [
        good[:-1],
        good + good[-1:],
        [good[1], good[0], *good[2:]],
        [good[0]._replace(key_index=9), *good[1:]],
        [good[0]._replace(tick_end_ms=1), *good[1:]],
        [good[0]._replace(t=2), *good[1:]],
    ]
    for wrong in broken:
        with pytest.raises(IntegrityError):
            store.commit_ticks(shard, epoch, 1, wrong, 2, b"x")
    half: Any = 1.5
    for wrong_type in (good[0]._replace(value=half), good[0]._replace(stderr="1,2")):
        with pytest.raises(InvalidParameter):
            store.commit_ticks(shard, epoch, 1, [wrong_type, *good[1:]], 2, b"x")
    assert store.head(shard).t == 0


def test_epochs_grow_and_fence_the_former_holder(store: LedgerStore, open_store: Open) -> None:
    stream = opened(store)
    shard = stream.shard(0)
    former = store.acquire(shard, "one")
    successor = open_store()
    current = successor.acquire(shard, "two")
    assert current > former
    for act in (
        lambda: store.commit_ticks(shard, former, 1, rows(stream, 0, 1, 1), 1, b"x"),
        lambda: store.mark_published(shard, former, 0, 0),
        lambda: store.fold(shard, former, 0),
    ):
        with pytest.raises(Fenced):
            act()
    successor.commit_ticks(shard, current, 1, rows(stream, 0, 1, 1), 1, b"x")
    assert store.head(shard).t == 1
    assert store.acquire(shard, "one") > current


def test_publishing_moves_forward_within_what_is_committed(store: LedgerStore) -> None:
    stream = opened(store)
    shard = stream.shard(0)
    epoch = store.acquire(shard, "one")
    store.commit_ticks(shard, epoch, 1, rows(stream, 0, 1, 3), 3, b"x")
    store.mark_published(shard, epoch, 2, 10)
    for t in (1, 4):
        with pytest.raises(IntegrityError):
            store.mark_published(shard, epoch, t, 10)


def test_shards_split_the_keys_and_stand_alone(store: LedgerStore) -> None:
    stream = opened(store, keys=tuple("abcde"), shards=2)
    assert [stream.shard_keys(i) for i in range(2)] == [(0, 2, 4), (1, 3)]
    even, odd = stream.shard(0), stream.shard(1)
    store.commit_ticks(even, store.acquire(even, "e"), 1, rows(stream, 0, 1, 2), 2, b"e")
    assert store.head(odd).t == 0
    store.commit_ticks(odd, store.acquire(odd, "o"), 1, rows(stream, 1, 1, 1), 1, b"o")
    assert store.releases(odd, 0, 10) == rows(stream, 1, 1, 1)
    assert store.releases(even, 0, 10) == rows(stream, 0, 1, 2)
    with pytest.raises(InvalidParameter, match="shard"):
        store.head(stream.shard(2))
    assert store.verify().ok


def test_public_topic_ahead_of_the_ledger_is_noticed(store: LedgerStore) -> None:
    stream = opened(store)
    shard = stream.shard(0)
    epoch = store.acquire(shard, "one")
    store.commit_ticks(shard, epoch, 1, rows(stream, 0, 1, 3), 3, b"x")
    store.check_anchor(shard, 3, store.chain_at(shard, 3))
    store.check_anchor(shard, 0)
    with pytest.raises(IntegrityError, match="ahead"):
        store.check_anchor(shard, 4)
    with pytest.raises(IntegrityError, match="other rows"):
        store.check_anchor(shard, 3, bytes(32))


def test_sealed_state_is_in_no_repr(store: LedgerStore) -> None:
    stream = opened(store)
    shard = stream.shard(0)
    store.commit_ticks(
        shard, store.acquire(shard, "one"), 1, rows(stream, 0, 1, 1), 1, b"canary-917263544512"
    )
    assert "917263544512" not in repr(store.head(shard))


def test_closed_store_refuses_and_another_key_is_noticed(open_store: Open, tmp_path: Path) -> None:
    store = open_store()
    store.create_scope(SCOPE)
    store.close()
    store.close()
    with pytest.raises(Exception, match="closed"):
        store.scope_status("s")
    (tmp_path / "chainkey").write_bytes(bytes(32))
    with pytest.raises(IntegrityError, match="chain key"):
        open_store()
