"""A PostgreSQL server that dies inside a commit, or is not there: nothing lost, doubled or different."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest
from tests.faults.postgres_server import Server

from evertally.accountants.budget import (
    ChargeRequest,
    GaussianLine,
    LedgerStore,
    ReleaseRow,
    Scope,
    ShardRef,
    StreamRecord,
    open_ledger,
    postgres,
)
from evertally.accountants.budget.sql import StorageError
from evertally.errors import IntegrityError, ServiceUnavailable

pytestmark = [pytest.mark.faults, pytest.mark.postgres]
SHARD = ShardRef("s", 1, 0)
KEYS = 4
T = TypeVar("T")


def new_ledger(server: Server, key_file: Path) -> LedgerStore:
    store = open_ledger(server.address, key_file=key_file)
    store.create_scope(Scope("c", "event", "add-remove", "8", "1e-6"))
    request = ChargeRequest("c", "event", "add-remove", GaussianLine(1, 10))
    store.open_stream(StreamRecord("s", tuple(f"k{i}" for i in range(KEYS)), 1, {}), request)
    return store


class Releaser(threading.Thread):
    """Commits tick after tick, each attempt with other values, and charges once a tick.

    After a failure it asks the ledger where it stands, as a releaser does: a tick that is there keeps
    its value, one that is not is tried again.
    """

    def __init__(self, store: LedgerStore) -> None:
        super().__init__()
        self._store = store
        self.acknowledged: dict[int, int] = {}
        self.granted: dict[str, bytes] = {}
        self.failures = 0
        self.wrong: list[str] = []
        self.done = threading.Event()

    def run(self) -> None:
        """Go on until told to stop, whatever the server does."""
        attempt, epoch = 0, self._patiently(lambda: self._store.acquire(SHARD, "test"))
        t = 1
        while not self.done.is_set():
            attempt += 1
            rows = [ReleaseRow(k, t, 10_000 * attempt + k, "1.5", t) for k in range(KEYS)]
            try:
                self._store.commit_ticks(SHARD, epoch, t, rows, t, b"state")
            except ServiceUnavailable:
                self.failures += 1
                t = self._patiently(lambda: self._store.head(SHARD).t) + 1
                continue
            except IntegrityError as error:
                self.wrong.append(str(error))
                return
            self.acknowledged[t] = 10_000 * attempt
            key = f"tick-{t}"
            self.granted[key] = self._patiently(partial(self._store.charge, self.request(key))).body
            t += 1

    @staticmethod
    def request(key: str) -> ChargeRequest:
        """A charge that may be repeated."""
        return ChargeRequest("c", "event", "add-remove", GaussianLine(1, 1000), idempotency_key=key)

    def _patiently(self, work: Callable[[], T]) -> T:
        while True:
            try:
                return work()
            except ServiceUnavailable:
                self.failures += 1
                time.sleep(0.02)


def crash_loop(server: Server, key_file: Path, crashes: int) -> None:
    store, rng = new_ledger(server, key_file), random.Random(crashes)
    releaser = Releaser(store)
    releaser.start()
    try:
        for crash in range(crashes):
            before = len(releaser.acknowledged)
            until = time.monotonic() + 30
            while len(releaser.acknowledged) < before + 3 and time.monotonic() < until:
                time.sleep(0.002)
            time.sleep(rng.random() * 0.02)
            if crash % 3 == 2:
                server.stop("immediate")
                server.start()
            else:
                while not server.kill_a_backend():
                    time.sleep(0.05)
    finally:
        time.sleep(0.5)
        releaser.done.set()
        releaser.join(60)
    assert releaser.wrong == []
    assert releaser.failures >= crashes
    again = open_ledger(server.address, key_file=key_file)
    rows = again.releases(SHARD, 0, 10**6)
    ticks = [row.t for row in rows[::KEYS]]
    assert ticks == list(range(1, len(ticks) + 1))
    stored = {row.t: row.value for row in rows if row.key_index == 0}
    assert len(rows) == KEYS * len(stored)
    assert {t: stored[t] for t in releaser.acknowledged} == releaser.acknowledged
    assert len({value // 10_000 for value in stored.values()}) == len(stored)
    spent = again.scope_status("c").spent.main
    assert spent == 10_000_000 + 1000 * len(releaser.granted)
    for key, body in releaser.granted.items():  # every answer is still the first one's bytes
        assert again.charge(Releaser.request(key)).body == body
    assert again.scope_status("c").spent.main == spent
    assert again.verify().problems == ()
    again.close()
    store.close()


def test_killed_backends_and_crashes_lose_double_and_change_nothing(server: Server, tmp_path: Path) -> None:
    crash_loop(server, tmp_path / "chainkey", crashes=6)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_three_hundred_crashes(server: Server, tmp_path: Path) -> None:
    crash_loop(server, tmp_path / "chainkey", crashes=300)


def test_a_writer_that_is_stopped_inside_a_transaction_holds_nobody_up(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It wakes up to an error that says nothing of the ledger, and its work is not there."""
    key_file = tmp_path / "chainkey"
    store = new_ledger(server, key_file)
    zombie = postgres.PostgresBackend(server.address)
    store.close()
    locks = ("scope:c", "stream:s")
    with monkeypatch.context() as patched:  # its alone: a busy machine stops any of them for so long
        patched.setattr(postgres, "IDLE_MS", 2000)
        transaction = zombie.begin(locks)
    transaction.run("UPDATE head SET holder = 'zombie'")
    successor = postgres.PostgresBackend(server.address)
    began = time.monotonic()
    successor.begin(locks)  # waits for the zombie's locks
    assert time.monotonic() - began < postgres.LOCK_MS / 1000
    successor.commit()
    for act in (zombie.commit, partial(transaction.rows, "SELECT 1")):
        with pytest.raises(StorageError) as caught:
            act()
        assert isinstance(caught.value.error, ServiceUnavailable)
    holders = successor.read(lambda tx: tx.rows("SELECT holder FROM head"))
    assert "zombie" not in {holder for (holder,) in holders}
    zombie.begin(locks)  # connected again
    zombie.commit()
    for backend in (zombie, successor):
        backend.close()


def test_an_unreachable_server_grants_nothing_and_comes_back(server: Server, tmp_path: Path) -> None:
    key_file = tmp_path / "chainkey"
    store = new_ledger(server, key_file)
    epoch = store.acquire(SHARD, "test")
    before = store.scope_status("c")
    request = ChargeRequest("c", "event", "add-remove", GaussianLine(1, 10), idempotency_key="while-away")
    rows = [ReleaseRow(k, 1, k, "1.5", 1) for k in range(KEYS)]
    server.stop("fast")
    for act in (
        lambda: store.charge(request),
        lambda: store.reserve(request, 1000),
        lambda: store.quote(request),
        lambda: store.commit_ticks(SHARD, epoch, 1, rows, 1, b"state"),
        lambda: store.scope_status("c"),
        lambda: open_ledger(server.address, key_file=key_file),
    ):
        began = time.monotonic()
        with pytest.raises(ServiceUnavailable):
            act()
        assert time.monotonic() - began < 10  # a refusal, not a hang
    server.start()
    assert store.scope_status("c") == before
    assert store.head(SHARD).t == 0
    assert store.charge(request).status == "committed"
    store.commit_ticks(SHARD, epoch, 1, rows, 1, b"state")
    assert store.verify().problems == ()
    store.close()
