"""Processes that die or hang in the middle of the release path: nothing lost, doubled or different."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from evertally.accountants.budget import (
    ChargeRequest,
    GaussianLine,
    LedgerStore,
    ReleaseRow,
    Scope,
    ShardRef,
    StreamRecord,
    open_ledger,
)
from evertally.errors import Fenced

pytestmark = pytest.mark.faults
SHARD = ShardRef("s", 1, 0)
FOR_EVER = 10**9


class Writers:
    """Starts writers; ends those that are still there when it is closed."""

    def __init__(self) -> None:
        program = Path(__file__).with_name("ledger_writer.py")
        self._server = subprocess.Popen(
            [sys.executable, str(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._pids: list[int] = []

    def start(self, ledger: Path, salt: int, last: int, output: Path, *, fenced: bool = True) -> int:
        """Start a writer and return its pid."""
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(f"{ledger} {salt} {last} {output} {fenced}\n")
        self._server.stdin.flush()
        self._pids.append(int(self._server.stdout.readline()))
        return self._pids[-1]

    @staticmethod
    def runs(pid: int) -> bool:
        """Whether the writer is still there."""
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        return True

    def end(self, pid: int, with_signal: int = signal.SIGKILL) -> None:
        """Send a deadly signal and wait until the writer is gone."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, with_signal)
        wait_until(lambda: not self.runs(pid))

    def close(self) -> None:
        """End everything."""
        for pid in self._pids:
            self.end(pid)
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.close()
        self._server.stdout.close()
        self._server.wait()


@pytest.fixture(scope="module")
def writers() -> Iterator[Writers]:
    started = Writers()
    yield started
    started.close()


def wait_until(condition: object, patience_s: float = 30.0) -> bool:
    assert callable(condition)
    until = time.monotonic() + patience_s
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.002)
    return True


def new_ledger(path: Path) -> LedgerStore:
    store = open_ledger(path)
    store.create_scope(Scope("c", "event", "add-remove", "4", "1e-6"))
    request = ChargeRequest("c", "event", "add-remove", GaussianLine(1, 10))
    store.open_stream(StreamRecord("s", ("k",), 1, {}), request)
    return store


def published(output: Path) -> list[tuple[int, int]]:
    """Complete lines of a sink, as (t, value)."""
    text = output.read_text() if output.exists() else ""
    lines = [line.split() for line in text[: text.rfind("\n") + 1].splitlines()]
    return [(int(t), int(value)) for t, value in lines]


def kill_loop(writers: Writers, tmp_path: Path, kills: int, seed: int) -> None:
    path, output = tmp_path / "ledger.sqlite", tmp_path / "out"
    store = new_ledger(path)
    rng, seen = random.Random(seed), dict[int, int]()
    for _ in range(kills):
        before = store.head(SHARD).t
        pid = writers.start(path, 1, FOR_EVER, output)
        assert wait_until(lambda before=before: store.head(SHARD).t > before)
        time.sleep(rng.random() * 0.03)
        writers.end(pid)
        now = published(output)
        assert [t for t, _ in now] == list(range(1, len(now) + 1))
        for t, value in now:
            assert seen.setdefault(t, value) == value
    last = store.head(SHARD).t + 5
    pid = writers.start(path, 1, last, output)
    assert wait_until(lambda: not writers.runs(pid))
    rows = [(row.t, row.value) for row in store.releases(SHARD, 0, 10**7)]
    assert published(output) == rows == [(t, 1_000_000 + t) for t in range(1, last + 1)]
    assert store.verify().problems == ()
    store.close()


def test_killed_writers_lose_double_and_change_nothing(writers: Writers, tmp_path: Path) -> None:
    kill_loop(writers, tmp_path, kills=6, seed=6)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_a_thousand_kills(writers: Writers, tmp_path: Path) -> None:
    kill_loop(writers, tmp_path, kills=1000, seed=1000)


def zombie_steps(writers: Writers, tmp_path: Path, cycles: int, *, fenced: bool) -> tuple[int, int, int]:
    """(ticks with two values, ticks of a holder after its successor's first, ticks).

    A writer is stopped anywhere, a successor with other data takes over, then the stopped one wakes up.
    """
    path, output = tmp_path / "ledger.sqlite", tmp_path / "out"
    store = new_ledger(path)
    rng, values, stale = random.Random(cycles), dict[int, set[int]](), 0
    for cycle in range(cycles):
        start = store.head(SHARD).t
        zombie = writers.start(path, 2 * cycle + 1, FOR_EVER, output, fenced=fenced)
        assert wait_until(lambda start=start: store.head(SHARD).t > start + 2)
        time.sleep(rng.random() * 0.01)
        os.kill(zombie, signal.SIGSTOP)
        stopped = store.head(SHARD).t
        successor = writers.start(path, 2 * cycle + 2, FOR_EVER, output, fenced=fenced)
        # a zombie stopped inside its transaction holds the write lock until it goes on
        wait_until(lambda stopped=stopped: store.head(SHARD).t > stopped + 2, patience_s=1.0)
        os.kill(zombie, signal.SIGCONT)
        resumed = store.head(SHARD).t
        wait_until(lambda resumed=resumed: store.head(SHARD).t > resumed + 10, patience_s=5.0)
        writers.end(zombie)
        writers.end(successor)
        rows = store.releases(SHARD, start, 10**7)
        holders = [row.value // 1_000_000 for row in rows]
        taken_over = holders.index(2 * cycle + 2) if 2 * cycle + 2 in holders else len(holders)
        stale += holders[taken_over:].count(2 * cycle + 1)
        for t, value in [*published(output), *((row.t, row.value) for row in rows)]:
            values.setdefault(t, set()).add(value)
    store.close()
    return sum(len(seen) > 1 for seen in values.values()), stale, len(values)


def test_zombies_never_give_a_tick_a_second_value(writers: Writers, tmp_path: Path) -> None:
    doubled, stale, ticks = zombie_steps(writers, tmp_path, 3, fenced=True)
    assert ticks > 10
    assert (doubled, stale) == (0, 0)


def test_zombies_would_go_on_without_fencing(writers: Writers, tmp_path: Path) -> None:
    # a zombie stopped inside its transaction keeps its successor out: such a cycle proves nothing
    for attempt in range(10):
        (tmp_path / str(attempt)).mkdir()
        if zombie_steps(writers, tmp_path / str(attempt), 2, fenced=False)[1] > 0:
            return
    pytest.fail("no zombie went on, though nothing fenced it")


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_two_hundred_zombies(writers: Writers, tmp_path: Path) -> None:
    assert zombie_steps(writers, tmp_path, 200, fenced=True)[:2] == (0, 0)


def test_former_holder_is_refused_and_would_go_on_without_fencing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = new_ledger(tmp_path / "ledger.sqlite")
    former = store.acquire(SHARD, "former")
    store.commit_ticks(SHARD, former, 1, [ReleaseRow(0, 1, 7, "1.5", 1)], 1, b"x")
    store.acquire(SHARD, "successor")
    with pytest.raises(Fenced):
        store.commit_ticks(SHARD, former, 2, [ReleaseRow(0, 2, 8, "1.5", 2)], 2, b"x")
    monkeypatch.setattr("evertally.accountants.budget.releases.require_current", lambda _head, _epoch: None)
    store.commit_ticks(SHARD, former, 2, [ReleaseRow(0, 2, 8, "1.5", 2)], 2, b"x")
    assert store.head(SHARD).t == 2
    store.close()
