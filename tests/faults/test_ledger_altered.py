"""A ledger that was changed behind its back: found by a walk, refused where it is read, never handed out."""

from __future__ import annotations

import contextlib
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import apsw
import pytest
from tests.faults.ledger_files import KEYS, PAID, SHARD, commit, written

from evertally.accountants.budget import (
    ChargeRequest,
    ChargeRow,
    CounterLine,
    CounterParameters,
    GaussianLine,
    ReleaseRow,
    Scope,
    ShardRef,
    StreamRecord,
    kept_answers,
    open_ledger,
)
from evertally.accountants.budget.scope_book import charge_rows
from evertally.accountants.budget.sql import Transaction
from evertally.errors import (
    IntegrityError,
    UnsupportedMechanism,
)

pytestmark = pytest.mark.faults


TAMPERINGS: dict[str, str] = {
    "a released value": "UPDATE released SET value = '7' WHERE t = 11 AND key_index = 3",
    "a standard error": "UPDATE released SET stderr = '1.4' WHERE t = 11 AND key_index = 3",
    "a tick end": "UPDATE released SET tick_end_ms = 5 WHERE t = 11 AND key_index = 3",
    "a swapped key": "UPDATE released SET key_index = 90 WHERE t = 11 AND key_index = 3",
    "a row lost in the middle": "DELETE FROM released WHERE t = 11 AND key_index = 3",
    "a tick lost": "DELETE FROM released WHERE t = 11",
    "a dropped tail of rows": "DELETE FROM released WHERE t > 25",
    "a dropped tail of links": "DELETE FROM tick WHERE t > 25",
    "a row too many": "INSERT INTO released VALUES (1, 31, 0, 0, '5', '1.5', 31)",
    "a link": "UPDATE tick SET chain = zeroblob(32) WHERE t = 11",
    "the head's tick": "UPDATE head SET t = 29",
    "the epoch": "UPDATE head SET epoch = 0",
    "the mark": "UPDATE head SET published_mark = 98",
    "the sealed state": "UPDATE head SET sealed = zeroblob(2000)",
    "the stream's id": "UPDATE incarnation SET stream_id = zeroblob(16)",
    "the descriptor": "UPDATE incarnation SET descriptor = '{\"tick_s\":1}'",
    "a key's index": "UPDATE incarnation_key SET key_index = 77 WHERE position = 2",
    "the spend": "UPDATE scope SET main = main - 1",
    "the cap": "UPDATE scope SET cap_main = cap_main + 1",
    "a charge's amount": "UPDATE charge SET main = main - 1",
    "a charge's line": "UPDATE charge SET line = replace(line, '\"10\"', '\"11\"')",
    "a charge lost": "DELETE FROM charge",
    "a charge's state": "UPDATE charge_state SET status = 'reserved'",
    "what a charge would return": "UPDATE charge_state SET main = main + 1",
    "whose a charge is": "UPDATE charge_state SET principal = 'me'",
    "when a charge lapses": "UPDATE charge_state SET expires_ms = 5",
    "a charge's state lost": "DELETE FROM charge_state",
    "a group's sum": "INSERT INTO member VALUES (1, 'g', 'm', 5)",
    "a scope lost": "DELETE FROM scope",
    "a stream lost": "DELETE FROM stream",
    "an incarnation lost": "DELETE FROM incarnation",
    "a head lost": "DELETE FROM head",
    "the index of a key lost": "DELETE FROM stream_key WHERE key_index = 2",
    "the number of the next incarnation": "UPDATE stream SET next_incarnation = 7",
    "the index of the next key": "UPDATE stream SET next_key_index = 0",
    "an answer": "UPDATE answer SET body = CAST(replace(body, '\"seq\":2', '\"seq\":1') AS BLOB)",
    "whose an answer is": "UPDATE answer SET principal = 'me'",
    "the key of an answer": "UPDATE answer SET idempotency_key = 'twice'",
    "an answer as text": "UPDATE answer SET body = CAST(body AS TEXT)",
    "an answer without an HMAC": "UPDATE answer SET mac = NULL",
    "a row of no shard": "INSERT INTO released VALUES (1, 5, 9, 77, '1', '1', 5)",
    "a tick of no stream": "INSERT INTO tick VALUES (9, 0, 5, zeroblob(32))",
}


def alter(path: Path, change: str) -> None:
    """Change rows as somebody does who has the file and no respect for its triggers."""
    with contextlib.closing(apsw.Connection(str(path))) as raw:
        for (name,) in raw.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            raw.execute(f"DROP TRIGGER {name}")
        raw.execute(change)
        assert raw.changes() > 0


@pytest.mark.parametrize("change", TAMPERINGS.values(), ids=TAMPERINGS.keys())
def test_altered_rows_are_found(tmp_path: Path, change: str) -> None:
    path = tmp_path / "l.sqlite"
    written(path)
    alter(path, change)
    with contextlib.closing(open_ledger(path)) as store:
        assert not store.verify().ok


NOT_PUBLISHED = tuple(what for what, change in TAMPERINGS.items() if " t = 11" in change)
FOREIGN = """
    DELETE FROM tick WHERE incarnation_pk = 1 AND t < 30;
    INSERT INTO tick SELECT 1, shard, t, chain FROM tick WHERE incarnation_pk = 2 AND t < 30;
    DELETE FROM released WHERE incarnation_pk = 1;
    INSERT INTO released SELECT 1, t, key_index, shard, value, stderr, tick_end_ms FROM released
        WHERE incarnation_pk = 2;
"""


@pytest.mark.parametrize("what", NOT_PUBLISHED)
def test_altered_rows_are_not_handed_out(tmp_path: Path, what: str) -> None:
    """What is read here is published: a value that is not the released one would be a second one."""
    path = tmp_path / "l.sqlite"
    written(path)
    with contextlib.closing(open_ledger(path)) as store:
        honest = store.releases(SHARD, 11, 10_000)
    alter(path, TAMPERINGS[what])
    with contextlib.closing(open_ledger(path)) as store:
        for after in (0, 10):
            with pytest.raises(IntegrityError, match="tick 11"):
                store.releases(SHARD, after, 10_000)
        if what != "a link":  # tick 12 follows on it
            assert store.releases(SHARD, 11, 10_000) == honest


def test_rows_and_links_of_another_stream_are_not_handed_out(tmp_path: Path) -> None:
    path = tmp_path / "l.sqlite"
    written(path)
    other = ShardRef("other", 1, 0)
    with contextlib.closing(open_ledger(path)) as store:
        store.open_stream(StreamRecord("other", tuple(f"k{i}" for i in range(KEYS)), 1, {}), PAID)
        rows = [ReleaseRow(k, t, 5, "1.5", t) for t in range(1, 31) for k in range(KEYS)]
        store.commit_ticks(other, store.acquire(other, "test"), 1, rows, 30, b"state")
    alter(path, FOREIGN)
    with contextlib.closing(open_ledger(path)) as store:
        assert len(store.releases(other, 10, 10_000)) == 20 * KEYS
        with pytest.raises(IntegrityError, match="tick 1 were altered"):
            store.releases(SHARD, 0, 10_000)
        with pytest.raises(IntegrityError, match="tick 30 were altered"):  # its link is that of the head
            store.releases(SHARD, 10, 10_000)


class _Circle:
    """A damaged table whose end leads back to its start: the same rows, whatever is asked for."""

    def __init__(self, row: tuple[object, ...]) -> None:
        self.row = row

    def rows(self, sql: str, *_: object) -> list[tuple[object, ...]]:
        return [(1,)] if "count(*)" in sql else [self.row]


@pytest.mark.parametrize(
    "row", [(None, *"abcd", 1, 0, 0, 0), (5, *"abcd", None, 0, 0, 0), (5, *"abc", b"", 1, 0, 0, 0)]
)
def test_a_row_of_other_types_is_refused_where_the_history_is_read(row: tuple[object, ...]) -> None:
    with pytest.raises(IntegrityError, match="cannot be read"):
        charge_rows(cast("Transaction", _Circle(row)), "c", 0, 10)


def test_a_history_that_leads_back_is_refused() -> None:
    row: tuple[Any, ...] = (5, "id", "committed", "local", "{}", 1, 0, 0, 0)
    circle = cast("Transaction", _Circle(row))
    assert charge_rows(circle, "c", 4, 10) == [
        ChargeRow("c", 5, "id", "committed", "local", "{}", 1, 0, 0, 0)
    ]
    with pytest.raises(IntegrityError, match="in no order"):
        charge_rows(circle, "c", 5, 10)


def test_kept_answers_that_lead_back_are_refused() -> None:
    circle = cast("Transaction", _Circle(("local", "once", b"", b"", b"")))
    with pytest.raises(IntegrityError, match="in no order"):
        kept_answers.altered(circle, b"k" * 32)


HORIZONS: dict[str, str] = {
    "a longer horizon": "UPDATE horizon SET slack_horizon = 2147483648 WHERE number = 1",
    "a horizon that was not paid": "INSERT INTO horizon VALUES (1, 2, 2147483648, zeroblob(32))",
    "a horizon lost": "DELETE FROM horizon WHERE number = 1",
    "the first horizon lost": "DELETE FROM horizon WHERE number = 0",
    "the line of the charge": "UPDATE charge_state SET line = replace(line, ':1073741824}', ':1073741825}')",
    "an extension lost": "DELETE FROM charge WHERE event = 'extended'",
    "an extension made cheaper": "UPDATE charge SET main = 0 WHERE event = 'extended'",
}


@pytest.mark.parametrize("change", HORIZONS.values(), ids=HORIZONS.keys())
def test_altered_horizons_are_found(tmp_path: Path, change: str) -> None:
    path = tmp_path / "l.sqlite"
    with contextlib.closing(open_ledger(path)) as store:
        store.create_scope(Scope("c", "event", "add-remove", "4", "1e-6"))
        line = CounterLine(CounterParameters("rational:W32", q=2**24, keys=1, slack_horizon=4))
        request = ChargeRequest("c", "event", "add-remove", line)
        store.open_stream(StreamRecord("s", ("k",), 1, {}), request)
        store.extend_horizon("s", 1, 2**30)
        assert store.verify().problems == ()
    with contextlib.closing(apsw.Connection(str(path))) as raw:
        for statement in ("UPDATE horizon SET slack_horizon = 99", "DELETE FROM horizon"):
            with pytest.raises(apsw.ConstraintError, match="append-only"):
                raw.execute(statement)
    alter(path, change)
    with contextlib.closing(open_ledger(path)) as store:
        assert not store.verify().ok


def test_a_grant_that_nothing_paid_for_is_refused_where_it_is_read(tmp_path: Path) -> None:
    """An answer written by hand, one moved to another key, and one whose charge was taken out."""
    path = tmp_path / "l.sqlite"
    written(path)
    moved = "SELECT principal, 'other', digest, body, mac FROM answer WHERE idempotency_key = 'once'"
    forged = "SELECT principal, 'forged', digest, body, zeroblob(32) FROM answer LIMIT 1"
    with contextlib.closing(apsw.Connection(str(path))) as raw:
        raw.execute(f"INSERT INTO answer {moved}")
        raw.execute(f"INSERT INTO answer {forged}")
    with contextlib.closing(open_ledger(path)) as store:
        spent = store.scope_status("c").spent
        for name in ("other", "forged"):
            with pytest.raises(IntegrityError, match="altered"):
                store.charge(replace(PAID, idempotency_key=name))
            with pytest.raises(IntegrityError, match="altered"):
                store.open_stream(StreamRecord("t", ("k",), 1, {}), replace(PAID, idempotency_key=name))
        assert len(store.verify().problems) == 2
        assert store.charge(PAID).status == "committed"
    alter(path, "DELETE FROM charge_state")
    with contextlib.closing(open_ledger(path)) as store:
        with pytest.raises(IntegrityError, match="not in the ledger"):
            store.charge(PAID)
        assert store.scope_status("c").spent == spent


def test_no_tick_is_released_past_a_horizon_that_was_taken_out(tmp_path: Path) -> None:
    """A stream without horizons is not one without an end: its charge says what was paid for."""
    path = tmp_path / "l.sqlite"
    with contextlib.closing(open_ledger(path)) as store:
        store.create_scope(Scope("c", "event", "add-remove", "4", "1e-6"))
        line = CounterLine(CounterParameters("rational:W32", q=2**24, keys=1, slack_horizon=4))
        store.open_stream(StreamRecord("s", ("k",), 1, {}), ChargeRequest("c", "event", "add-remove", line))
    alter(path, "DELETE FROM horizon")
    with contextlib.closing(open_ledger(path)) as store:
        epoch = store.acquire(SHARD, "one")
        rows = [ReleaseRow(0, t, t, "1.5", t) for t in range(1, 6)]
        with pytest.raises(UnsupportedMechanism, match="past the horizon 4"):
            store.commit_ticks(SHARD, epoch, 1, rows, 5, b"x")
        store.commit_ticks(SHARD, epoch, 1, rows[:4], 4, b"x")
        assert store.verify().problems == ()


def test_two_scopes_that_change_names_are_refused_where_they_are_read(tmp_path: Path) -> None:
    """Else a request would be admitted under the other one's caps."""
    path = tmp_path / "l.sqlite"
    with contextlib.closing(open_ledger(path)) as store:
        for name, epsilon in (("strict", "0.5"), ("lax", "100")):
            store.create_scope(Scope(name, "event", "add-remove", epsilon, "1e-6"))
    with contextlib.closing(apsw.Connection(str(path))) as raw:
        for before, after in (("strict", "other"), ("lax", "strict"), ("other", "lax")):
            raw.execute("UPDATE scope SET name = ? WHERE name = ?", (after, before))
    with contextlib.closing(open_ledger(path)) as store:
        with pytest.raises(IntegrityError, match="altered"):
            store.charge(ChargeRequest("strict", "event", "add-remove", GaussianLine("1", "0.5")))
        assert len(store.verify().problems) == 2


def test_dropped_tail_is_refused_at_start(tmp_path: Path) -> None:
    path = tmp_path / "l.sqlite"
    written(path)
    alter(path, "DELETE FROM tick WHERE t > 25")
    with contextlib.closing(open_ledger(path)) as store, pytest.raises(IntegrityError, match="lost rows"):
        store.head(SHARD)


def test_history_is_append_only_in_the_database_itself(tmp_path: Path) -> None:
    path = tmp_path / "l.sqlite"
    written(path)
    with contextlib.closing(apsw.Connection(str(path))) as raw:
        for statement in (
            "DELETE FROM charge",
            "UPDATE charge SET main = 0",
            "UPDATE released SET value = '1'",
        ):
            with pytest.raises(apsw.ConstraintError, match="append-only"):
                raw.execute(statement)


def test_restored_old_copy_is_behind_what_is_public(tmp_path: Path) -> None:
    path, old = tmp_path / "l.sqlite", tmp_path / "old"
    written(path)
    shutil.copy(path, old)
    store = open_ledger(path)
    epoch = store.acquire(SHARD, "next")
    commit(store, epoch, 31)
    anchor = store.chain_at(SHARD, 31)
    store.close()
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    shutil.copy(old, path)
    with contextlib.closing(open_ledger(path)) as restored:
        assert restored.verify().ok  # whole in itself: only the public side can tell
        with pytest.raises(IntegrityError, match="ahead"):
            restored.check_anchor(SHARD, 31, anchor)


@pytest.mark.parametrize(
    "change",
    [
        "status = 'reserved', expires_ms = 9000000000000000",
        "expires_ms = 9000000000000000",
        "main = main + 5",
    ],
)
def test_altered_state_of_a_charge_is_refused_where_it_is_read(tmp_path: Path, change: str) -> None:
    """No reservation is made to live longer, to come back or to return more by whoever edits the file."""
    path = tmp_path / "l.sqlite"
    request = ChargeRequest("s", "event", "add-remove", GaussianLine("1", "10"))
    with contextlib.closing(open_ledger(path)) as store:
        store.create_scope(Scope("s", "event", "add-remove", "4", "1e-6"))
        kept, gone = store.reserve(request, 3_600_000), store.reserve(request, 3_600_000)
        store.expire(gone.charge_id)
    alter(path, f"UPDATE charge_state SET {change}")
    with contextlib.closing(open_ledger(path)) as store:
        spent = store.scope_status("s").spent
        for charge in (kept, gone):
            for work in (store.commit_charge, store.expire):
                with pytest.raises(IntegrityError, match="altered"):
                    work(charge.charge_id)
        assert store.scope_status("s").spent == spent
