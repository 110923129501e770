"""Disks that fill up, fail, or change what was written: nothing is acknowledged that is not durable."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import apsw
import pytest
from tests.faults.failing_files import Disk, DiskVfs

from evertally.accountants.budget import (
    ChargeRequest,
    CounterLine,
    CounterParameters,
    GaussianLine,
    LedgerStore,
    ReleaseRow,
    Scope,
    ShardRef,
    StreamRecord,
    open_ledger,
)
from evertally.accountants.budget.sqlite import SQLITE_DIALECT, SqliteBackend
from evertally.accountants.budget.store import SqlLedger
from evertally.errors import (
    EvertallyError,
    IntegrityError,
    InvalidParameter,
    ServiceUnavailable,
    StorageFull,
    UnsupportedMechanism,
)

pytestmark = pytest.mark.faults
SHARD = ShardRef("s", 1, 0)
KEYS = 8


def fill(store: LedgerStore) -> int:
    """Scope, stream and epoch."""
    store.create_scope(Scope("c", "event", "add-remove", "4", "1e-6"))
    request = ChargeRequest("c", "event", "add-remove", GaussianLine(1, 10))
    store.open_stream(StreamRecord("s", tuple(f"k{i}" for i in range(KEYS)), 1, {}), request)
    return store.acquire(SHARD, "test")


def commit(store: LedgerStore, epoch: int, t: int, ticks: int = 1) -> None:
    rows = [ReleaseRow(k, u, 10**6 * u + k, "1.5", u) for u in range(t, t + ticks) for k in range(KEYS)]
    store.commit_ticks(SHARD, epoch, t, rows, t + ticks - 1, os.urandom(2000))


def commit_until_refused(store: LedgerStore, epoch: int, ticks: int) -> tuple[int, EvertallyError]:
    t = store.head(SHARD).t
    while True:
        try:
            commit(store, epoch, t + 1, ticks)
        except EvertallyError as error:
            return t, error
        t += ticks


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte."""
    folder = tmp_path / "small"
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)],
        check=False,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        pytest.skip(f"cannot mount a tmpfs here: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_full_disk_stops_within_a_second_and_recovers(small_disk: Path) -> None:
    store = open_ledger(small_disk / "l.sqlite")
    epoch = fill(store)
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(300_000))
    last, error = commit_until_refused(store, epoch, 50)
    assert isinstance(error, StorageFull)
    took = []
    for _ in range(5):  # a busy machine can hold any one of them up
        began = time.monotonic()
        with pytest.raises(StorageFull):
            commit(store, epoch, last + 1, 50)
        took.append(time.monotonic() - began)
    assert min(took) < 1.0
    assert store.head(SHARD).t == last
    ballast.unlink()
    commit(store, epoch, last + 1, 50)
    assert store.head(SHARD).t == last + 50
    assert store.verify().problems == ()
    store.close()


def test_file_size_limit_is_a_full_disk(tmp_path: Path) -> None:
    store = open_ledger(tmp_path / "l.sqlite")
    epoch = fill(store)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_500_000, hard))
        last, error = commit_until_refused(store, epoch, 200)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)
    assert isinstance(error, StorageFull)
    commit(store, epoch, last + 1)
    assert store.head(SHARD).t == last + 1
    assert store.verify().problems == ()
    store.close()


@pytest.mark.parametrize("kind", ["eio", "fsync error"])
def test_io_errors_are_refusals_and_what_was_acknowledged_stays(tmp_path: Path, kind: str) -> None:
    path, disk = tmp_path / "l.sqlite", Disk()
    open_ledger(path).close()
    key = path.with_name("l.sqlite.chainkey").read_bytes()
    vfs = DiskVfs(disk)
    try:
        store = SqlLedger(SqliteBackend(path, vfs="disk"), SQLITE_DIALECT, key)
        epoch = fill(store)
        commit(store, epoch, 1)
        disk.kind = kind
        with pytest.raises(StorageFull):
            commit(store, epoch, 2)
        disk.kind = ""
        t = store.head(SHARD).t
        assert t in (1, 2)  # after a failed sync only the file knows; both are one value a tick
        commit(store, epoch, t + 1)
        assert store.verify().problems == ()
        store.close()
    finally:
        vfs.unregister()


def test_read_only_file_system_is_refused(small_disk: Path) -> None:
    store = open_ledger(small_disk / "l.sqlite")
    epoch = fill(store)
    store.close()
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(StorageFull):
        commit(open_ledger(small_disk / "l.sqlite"), epoch, 1)


def test_locked_ledger_is_unavailable_not_waited_for_ever(tmp_path: Path) -> None:
    path = tmp_path / "l.sqlite"
    open_ledger(path).close()
    key = path.with_name("l.sqlite.chainkey").read_bytes()
    store = SqlLedger(SqliteBackend(path, busy_ms=50), SQLITE_DIALECT, key)
    other = apsw.Connection(str(path))
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(ServiceUnavailable):
        store.create_scope(Scope("c", "event", "add-remove", "4", "1e-6"))
    other.execute("ROLLBACK")
    other.close()
    fill(store)
    store.close()


# what was changed behind the ledger's back


PAID = ChargeRequest("c", "event", "add-remove", GaussianLine("1", "40"), idempotency_key="once")


def written(path: Path, ticks: int = 30) -> None:
    store = open_ledger(path)
    epoch = fill(store)
    store.charge(PAID)
    commit(store, epoch, 1, ticks)
    store.mark_published(SHARD, epoch, ticks - 5, 99)
    store.close()


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


@pytest.mark.parametrize("change", TAMPERINGS.values(), ids=TAMPERINGS.keys())
def test_altered_rows_are_found(tmp_path: Path, change: str) -> None:
    path = tmp_path / "l.sqlite"
    written(path)
    with contextlib.closing(apsw.Connection(str(path))) as raw:
        for trigger in ("charge_kept", "charge_fixed", "row_fixed"):
            raw.execute(f"DROP TRIGGER {trigger}")
        raw.execute(change)
        assert raw.changes() > 0
    with contextlib.closing(open_ledger(path)) as store:
        assert not store.verify().ok


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
        for trigger in ("charge_kept", "charge_fixed", "horizon_kept", "horizon_fixed"):
            raw.execute(f"DROP TRIGGER {trigger}")
        raw.execute(change)
        assert raw.changes() > 0
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
    with contextlib.closing(apsw.Connection(str(path))) as raw:
        raw.execute("DELETE FROM charge_state")
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
    with contextlib.closing(apsw.Connection(str(path))) as raw:
        raw.execute("DROP TRIGGER horizon_kept")
        raw.execute("DELETE FROM horizon")
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
    with contextlib.closing(apsw.Connection(str(path))) as raw:
        raw.execute("DELETE FROM tick WHERE t > 25")
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


def flip(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)
        file.seek(offset)
        file.write(bytes([byte[0] ^ 0x20]))


def test_flipped_bytes_in_used_pages_are_found_or_harmless(tmp_path: Path) -> None:
    path = tmp_path / "l.sqlite"
    written(path)
    good = path.read_bytes()
    with contextlib.closing(open_ledger(path)) as store:
        want = store.releases(SHARD, 0, 10**6), store.scope_status("c").spent
    found = 0
    for offset in range(40, len(good), 509):
        path.write_bytes(good)
        flip(path, offset)
        try:
            with contextlib.closing(open_ledger(path)) as store:
                wrong = not store.verify().ok
                same = (store.releases(SHARD, 0, 10**6), store.scope_status("c").spent) == want
        except EvertallyError:
            wrong, same = True, False
        assert wrong or same
        found += wrong
    assert found > 10


def test_torn_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "l.sqlite"
    written(path)
    os.truncate(path, path.stat().st_size - 4096 - 100)

    def whole() -> bool:
        with contextlib.closing(open_ledger(path)) as store:
            return store.verify().ok

    with pytest.raises(IntegrityError):
        whole()


def test_other_files_are_not_ledgers(tmp_path: Path) -> None:
    path = tmp_path / "l.sqlite"
    path.write_bytes(os.urandom(10_000))
    path.chmod(0o600)
    (tmp_path / "l.sqlite.chainkey").write_bytes(bytes(32))
    (tmp_path / "l.sqlite.chainkey").chmod(0o600)
    with pytest.raises(IntegrityError):
        open_ledger(path)


Spoil = Callable[[Path], object]
SPOILED: dict[str, tuple[Spoil, type[EvertallyError]]] = {
    "readable by others": (lambda path: path.chmod(0o644), InvalidParameter),
    "key readable by others": (
        lambda path: path.with_name("l.sqlite.chainkey").chmod(0o644),
        InvalidParameter,
    ),
    "key lost": (lambda path: path.with_name("l.sqlite.chainkey").unlink(), IntegrityError),
    "key cut": (lambda path: os.truncate(path.with_name("l.sqlite.chainkey"), 31), IntegrityError),
}


@pytest.mark.parametrize("spoil", SPOILED)
def test_spoiled_files_are_refused_by_name(tmp_path: Path, spoil: str) -> None:
    path = tmp_path / "l.sqlite"
    open_ledger(path).close()
    act, error = SPOILED[spoil]
    act(path)
    with pytest.raises(error):
        open_ledger(path)


def test_no_folder_and_no_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidParameter):
        open_ledger(tmp_path / "no" / "l.sqlite")
    with pytest.raises(InvalidParameter):
        open_ledger(tmp_path / "l.sqlite", create=False)
    assert not list(tmp_path.iterdir())


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
    with contextlib.closing(apsw.Connection(str(path))) as raw:
        raw.execute(f"UPDATE charge_state SET {change}")
    with contextlib.closing(open_ledger(path)) as store:
        spent = store.scope_status("s").spent
        for charge in (kept, gone):
            for work in (store.commit_charge, store.expire):
                with pytest.raises(IntegrityError, match="altered"):
                    work(charge.charge_id)
        assert store.scope_status("s").spent == spent
