from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import apsw
import pytest

from evertally.accountants.budget import (
    ChargeRequest,
    CounterLine,
    CounterParameters,
    GaussianLine,
    LedgerStore,
    Scope,
    StreamRecord,
    book,
    charge_states,
    kept_answers,
    open_ledger,
    schema,
    streams,
)
from evertally.accountants.budget.sql import Transaction, blob
from evertally.accountants.budget.sqlite import SQLITE_DIALECT, SqliteBackend, check_version, require_durable
from evertally.accountants.budget.store import SqlLedger
from evertally.errors import (
    BudgetExceeded,
    EvertallyError,
    IntegrityError,
    InvalidParameter,
    ServiceUnavailable,
)

SCOPE = Scope("s", "event", "add-remove", "4", "1e-6")


@pytest.mark.parametrize("version", ["3.40.1", "3.51.2", "3.7.17"])
def test_versions_with_the_wal_reset_bug_are_refused(version: str) -> None:
    with pytest.raises(IntegrityError, match=version):
        check_version(version)


def test_bundled_version_is_new_enough() -> None:
    check_version("3.51.3")
    check_version(apsw.sqlite_lib_version())


@pytest.mark.parametrize(("journal", "synchronous"), [("wal", 1), ("wal", 0), ("delete", 2), ("memory", 2)])
def test_settings_that_may_lose_a_commit_are_refused(journal: str, synchronous: int) -> None:
    with pytest.raises(IntegrityError, match="FULL"):
        require_durable(journal, synchronous)


def test_every_connection_is_wal_and_full(tmp_path: Path) -> None:
    open_ledger(tmp_path / "l").close()
    backend = SqliteBackend(tmp_path / "l")
    settings = ("journal_mode", "synchronous", "foreign_keys", "trusted_schema", "busy_timeout")

    def look(tx: Transaction) -> list[object]:
        return [tx.rows(f"PRAGMA {name}")[0][0] for name in settings]

    assert backend.read(look) == look(backend.begin(())) == ["wal", 2, 1, 0, 10_000]
    backend.rollback()
    backend.close()


def test_files_are_the_owners_alone(tmp_path: Path) -> None:
    store = open_ledger(tmp_path / "l")
    store.create_scope(SCOPE)
    assert {path.name: oct(path.stat().st_mode & 0o777) for path in tmp_path.iterdir()} == dict.fromkeys(
        ("l", "l-wal", "l-shm", "l.chainkey"), "0o600"
    )
    store.close()


def test_a_ledger_in_a_folder_that_is_not_there_names_the_folder(tmp_path: Path) -> None:
    with pytest.raises(InvalidParameter, match="a folder that exists") as refused:
        open_ledger(tmp_path / "nowhere" / "l")
    assert (refused.value.field, refused.value.got) == ("ledger", str(tmp_path / "nowhere"))


def test_a_ledger_others_can_read_is_named(tmp_path: Path) -> None:
    open_ledger(tmp_path / "l").close()
    (tmp_path / "l").chmod(0o644)
    with pytest.raises(InvalidParameter, match="chmod 600") as refused:
        open_ledger(tmp_path / "l")
    assert refused.value.got == f"mode 0644 of {tmp_path / 'l'}"


def test_newer_schema_is_refused_by_name(tmp_path: Path) -> None:
    open_ledger(tmp_path / "l").close()
    raw = apsw.Connection(str(tmp_path / "l"))
    raw.execute("UPDATE meta SET value = '99' WHERE name = 'schema_version'")
    raw.close()
    with pytest.raises(IntegrityError, match=r"99.*downgrade"):
        open_ledger(tmp_path / "l")


def insert_without_mac(tx: Transaction, key: bytes, scope_id: int, state: charge_states.ChargeState) -> None:
    """How a charge's state was written before it had an HMAC."""
    assert key
    tx.run(
        "INSERT INTO charge_state (scope_id, charge_id, status, principal, line, main, epsilon, delta,"
        " expires_ms) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        *(scope_id, state.charge_id, state.status, state.principal, state.line),
        *(state.main, state.epsilon, state.delta, state.expires_ms),
    )


def keep_without_mac(
    tx: Transaction, key: bytes, request: ChargeRequest, content: bytes, body: bytes
) -> None:
    """How an answer was kept before it had an HMAC."""
    assert key
    if request.idempotency_key:
        tx.run(
            "INSERT INTO answer (principal, idempotency_key, digest, body) VALUES (?, ?, ?, ?)",
            *(request.principal, request.idempotency_key, content, body),
        )


def test_a_stream_from_before_horizons_were_kept_can_be_extended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = CounterLine(CounterParameters("rational:W32", q=2**24, keys=1, slack_horizon=4))
    request = ChargeRequest("s", "event", "add-remove", line)
    with monkeypatch.context() as former:
        former.setattr(schema, "MIGRATIONS", schema.MIGRATIONS[:1])
        former.setattr(charge_states, "insert", insert_without_mac)
        former.setattr(kept_answers, "keep", keep_without_mac)
        former.setattr(streams, "add_horizon", lambda *_: None)
        former.setattr(streams, "read_horizons", lambda *_: [])
        store = open_ledger(tmp_path / "l")
        store.create_scope(SCOPE)
        store.open_stream(StreamRecord("x", ("k",), 1, {}), request)
        store.close()
    store = open_ledger(tmp_path / "l")
    found = store.find_stream("x")
    assert found is not None
    assert found.slack_horizon == 4  # what its charge says
    assert store.extend_horizon("x", 1, 2**30).main > 0
    found = store.find_stream("x")
    assert found is not None
    assert found.slack_horizon == 2**30
    assert store.verify().problems == ()
    store.close()


@pytest.mark.parametrize("version", range(1, len(schema.MIGRATIONS) + 1))
def test_ledgers_of_every_earlier_version_are_migrated(
    tmp_path: Path, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "l"
    monkeypatch.setattr(schema, "MIGRATIONS", schema.MIGRATIONS[:version])
    if version < 3:
        monkeypatch.setattr(charge_states, "insert", insert_without_mac)
    if version < 4:
        monkeypatch.setattr(kept_answers, "keep", keep_without_mac)
        monkeypatch.setattr(kept_answers, "find", lambda *_: None)
    store = open_ledger(path)
    store.create_scope(SCOPE)
    request = ChargeRequest("s", "event", "add-remove", GaussianLine(1, 10), idempotency_key="once")
    reserved = store.reserve(request, 600_000)
    before = store.scope_status("s")
    store.close()
    monkeypatch.undo()
    more = "CREATE TABLE later (id {integer} PRIMARY KEY)"
    monkeypatch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, more))
    store = open_ledger(path)
    assert store.scope_status("s") == before
    assert store.verify().ok
    assert store.reserve(request, 600_000) == reserved
    assert store.commit_charge(reserved.charge_id).status == "committed"
    assert store.verify().ok
    store.close()
    raw = apsw.Connection(str(path))
    assert raw.execute("SELECT value FROM meta WHERE name = 'schema_version'").fetchall() == [
        (str(len(schema.MIGRATIONS)),)
    ]
    assert raw.execute("SELECT count(*) FROM later").fetchall() == [(0,)]
    raw.close()


class CountingBackend(SqliteBackend):
    """Counts transactions and can hold a commit back."""

    commits = 0
    gate: threading.Event | None = None

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.held = threading.Event()

    def commit(self) -> None:
        """Wait for the gate, then commit."""
        if self.gate is not None:
            self.held.set()
            self.gate.wait()
        type(self).commits += 1
        super().commit()


def counting_store(tmp_path: Path) -> tuple[SqlLedger, CountingBackend]:
    open_ledger(tmp_path / "l").close()
    backend = CountingBackend(tmp_path / "l")
    store = SqlLedger(backend, SQLITE_DIALECT, (tmp_path / "l.chainkey").read_bytes())
    store.create_scope(SCOPE)
    CountingBackend.commits = 0
    return store, backend


def in_threads(count: int, work: Callable[[int], object]) -> list[threading.Thread]:
    threads = [threading.Thread(target=work, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    return threads


def one_held_and_the_rest_waiting(
    store: SqlLedger, backend: CountingBackend, count: int, work: Callable[[int], object]
) -> None:
    """Run `work` on so many threads: the first one's transaction is held until all others wait."""
    backend.gate = threading.Event()
    threads = in_threads(1, work)
    assert backend.held.wait(60)  # else it would take along who comes before it begins
    threads += in_threads(count - 1, lambda i: work(i + 1))
    while store._writer.waiting < count - 1:
        threading.Event().wait(0.01)
    backend.gate.set()
    for thread in threads:
        thread.join()


def test_waiting_requests_share_one_durable_transaction(tmp_path: Path) -> None:
    store, backend = counting_store(tmp_path)
    answers: list[str] = []

    def client(_: int) -> None:
        try:
            answers.append(store.charge(ChargeRequest("s", "event", "add-remove", GaussianLine(1, 3))).status)
        except BudgetExceeded:
            answers.append("refused")

    one_held_and_the_rest_waiting(store, backend, 40, client)
    assert CountingBackend.commits == 2  # the first alone, then all that waited
    status = store.scope_status("s")
    assert answers.count("committed") == status.spent.main // 111_111_112 == status.caps.main // 111_111_112
    assert answers.count("refused") == 40 - answers.count("committed") > 0
    assert store.verify().ok
    store.close()


def test_a_stored_row_that_cannot_be_read_is_a_damaged_ledger(tmp_path: Path) -> None:
    """Whatever error it leads to, and whether it is met while reading or while writing."""
    store, _ = counting_store(tmp_path)
    for error in (KeyError(1), AttributeError("x"), OverflowError(), TypeError("x"), ValueError("x")):

        def work(tx: Transaction, error: Exception = error) -> int:
            raise error

        with pytest.raises(IntegrityError, match=f"cannot be read: {type(error).__name__}"):
            store._writer.run(work)
        with pytest.raises(IntegrityError, match=f"cannot be read: {type(error).__name__}"):
            store._read(work)
    store.close()


def test_text_that_is_none_is_a_damaged_ledger(tmp_path: Path) -> None:
    """SQLite keeps any bytes as text, and quotes them in what it says of a damaged page."""
    store, backend = counting_store(tmp_path)
    with pytest.raises(IntegrityError, match="damaged text"):
        backend.read(lambda tx: tx.rows("SELECT CAST(x'80' AS TEXT)"))
    store.close()


def test_stored_bytes_are_never_made_from_a_number() -> None:
    """`bytes(2**40)` is a terabyte of zeros."""
    assert (blob(b"ab"), blob(memoryview(b"ab"))) == (b"ab", b"ab")
    for other in (2**40, "ab", None, [1, 2]):
        with pytest.raises(TypeError):
            blob(other)


def test_one_refusal_undoes_only_its_own_work(tmp_path: Path) -> None:
    store, backend = counting_store(tmp_path)
    results: dict[int, object] = {}

    def client(i: int) -> None:
        def work(tx: Transaction) -> int:
            tx.run("INSERT INTO meta (name, value) VALUES (?, 'x')", f"job{i}")
            if i % 3 == 2:
                raise InvalidParameter("job", i, "another one")
            return i

        try:
            results[i] = store._writer.run(work)
        except InvalidParameter as error:
            results[i] = error

    one_held_and_the_rest_waiting(store, backend, 12, client)
    kept = {
        row[0] for row in backend.read(lambda tx: tx.rows("SELECT name FROM meta WHERE name LIKE 'job%'"))
    }
    assert kept == {f"job{i}" for i in range(12) if i % 3 != 2}
    assert all(results[i] == i if i % 3 != 2 else isinstance(results[i], InvalidParameter) for i in range(12))
    store.close()


def test_forked_child_may_not_write(tmp_path: Path) -> None:
    store = open_ledger(tmp_path / "l")
    store.create_scope(SCOPE)
    pid = os.fork()
    if pid == 0:
        try:
            store.charge(ChargeRequest("s", "event", "add-remove", GaussianLine(1, 10)))
        except IntegrityError:
            os._exit(7)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    store.close()


class StatementCounter:
    """Counts what a connection is asked to do."""

    def __init__(self, backend: SqliteBackend) -> None:
        self.steps = 0
        assert backend._writer is not None
        backend._writer.set_progress_handler(self._step, 1)

    def _step(self) -> bool:
        self.steps += 1
        return False


@pytest.mark.slow
def test_decisions_stay_flat_as_history_grows(tmp_path: Path) -> None:
    # opendp#2909: a filter quadratic in its queries; counted in SQLite's own instructions, not in time
    store, backend = counting_store(tmp_path)
    request = ChargeRequest("s", "event", "add-remove", GaussianLine(1, 10_000))
    steps: list[int] = []
    for size in (10, 2_000):
        while store.scope_status("s").rows < size:
            store._writer.run(lambda tx: _charges(store, tx, request))
        counter = StatementCounter(backend)
        store.charge(request)
        steps.append(counter.steps)
        assert backend._writer is not None
        backend._writer.set_progress_handler(None)
    assert steps[1] <= steps[0] * 1.1 + 20
    store.close()


def _charges(store: SqlLedger, tx: Transaction, request: ChargeRequest) -> None:
    for _ in range(200):
        book.record(tx, store._key, request, store._price(request), None)


@pytest.mark.parametrize("put_back", [True, False])
def test_a_file_that_was_moved_away_takes_no_more_charges(tmp_path: Path, put_back: bool) -> None:
    """They would be written to where nobody looks: a backup in its place would admit them all again."""
    path = tmp_path / "l.db"
    store, request = open_ledger(path), ChargeRequest("s", "event", "add-remove", GaussianLine(1, 10))
    store.create_scope(SCOPE)
    backup = path.read_bytes()
    store.charge(request)
    spent = store.scope_status(SCOPE.name).spent
    path.rename(tmp_path / "away.db")
    if put_back:
        path.touch(0o600)
        path.write_bytes(backup)
    for use in (lambda: store.charge(request), lambda: store.scope_status(SCOPE.name)):
        with pytest.raises(IntegrityError, match="moved or replaced"):
            use()
    path.unlink(missing_ok=True)
    (tmp_path / "away.db").rename(path)
    assert store.scope_status(SCOPE.name).spent == spent, "the right file again: it goes on"
    store.charge(request)
    store.close()


def test_two_starters_at_once_make_one_ledger(tmp_path: Path) -> None:
    stores: list[LedgerStore] = []
    failures: list[EvertallyError] = []

    def start(_: int) -> None:
        try:
            stores.append(open_ledger(tmp_path / "l"))
            stores[-1].create_scope(SCOPE)
        except EvertallyError as error:
            failures.append(error)

    for thread in in_threads(6, start):
        thread.join()
    assert failures == []
    assert {store.scope_status("s").scope for store in stores} == {SCOPE}
    for store in stores:
        store.close()


@pytest.mark.parametrize("gives_way", [True, False])
def test_a_file_another_starter_is_writing_is_waited_for(tmp_path: Path, gives_way: bool) -> None:
    """SQLite refuses the change to a write-ahead log at once there, whatever its busy timeout says."""
    backend = SqliteBackend(tmp_path / "l", busy_ms=20_000 if gives_way else 50)
    other = apsw.Connection(str(tmp_path / "l"))
    other.execute("BEGIN IMMEDIATE; CREATE TABLE of_the_other(x)")
    later = threading.Timer(0.2, other.execute, ["COMMIT"])
    if gives_way:
        later.start()
        assert SqlLedger(backend, SQLITE_DIALECT, b"k" * 32).scopes() == []
        later.join()
        backend.close()
    else:
        with pytest.raises(ServiceUnavailable, match="stayed locked"):
            SqlLedger(backend, SQLITE_DIALECT, b"k" * 32)
    other.close()


@pytest.mark.slow
def test_a_second_opening_takes_no_lock_from_the_first(tmp_path: Path) -> None:
    """A process loses its POSIX locks on a file when it closes any descriptor of it."""
    path = tmp_path / "l"
    ledger, tables = open_ledger(path), SqliteBackend(path)
    program = (
        "import fcntl, sys; file = open(sys.argv[1], 'r+b');"
        "fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 510, 2**30 + 2)"  # SQLite's shared bytes
    )
    taken = subprocess.run([sys.executable, "-c", program, path], capture_output=True, check=False)
    assert b"BlockingIOError" in taken.stderr
    tables.close()
    ledger.close()


@pytest.mark.parametrize("named", ["nobody", "committed"])
def test_an_index_that_names_what_has_not_lapsed_returns_nothing(
    named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A damaged index named a charge for ever: its amounts would come back, or the loop never end."""
    store = SqlLedger(SqliteBackend(tmp_path / "l"), SQLITE_DIALECT, b"k" * 32)
    store.create_scope(Scope("s", "event", "add-remove", "4", "1e-6"))
    request = ChargeRequest("s", "event", "add-remove", GaussianLine(1, "10"))
    receipt = store.charge(request)
    ids = [receipt.charge_id if named == "committed" else named]
    monkeypatch.setattr(charge_states, "due", lambda *_: ids)
    before = store.scope_status("s").spent
    with pytest.raises(IntegrityError, match="damaged"):
        store.quote(request)
    assert store.scope_status("s").spent == before
    store.close()
