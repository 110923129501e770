"""Releasers with other data each, over one ledger and one file: killed, and stopped while another goes on."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.faults.fault_schedule import Fault
from tests.faults.raw_reading import FileReader, LedgerReader
from tests.faults.recorded_history import Asked, Declared, Instant, Operation, Saw

from evertally.accountants.budget import (
    ChargeRequest,
    GaussianLine,
    LedgerStore,
    Scope,
    ShardRef,
    StreamRecord,
    open_ledger,
)
from evertally.pipelines.releases import Release

__all__ = ["SHARD", "WriterTarget", "Writers", "new_ledger"]

SHARD = ShardRef("s", 1, 0)
FOR_EVER = 10**9
SALT = 1_000_000


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


class WriterTarget:
    """Every writer has other data, so that each tick tells who wrote it."""

    def __init__(self, writers: Writers, folder: Path, *, fenced: bool = True) -> None:
        self._writers, self._fenced = writers, fenced
        self._ledger, self._output = folder / "ledger.sqlite", folder / "out"
        self._store = new_ledger(self._ledger)
        self._salt = 0
        self._file = FileReader(self._output, "s", _decode, headers=0)
        self._rows = LedgerReader(str(self._ledger))
        self._begun = False

    def close(self) -> None:
        """Close the ledger."""
        self._store.close()

    def inflict(self, fault: Fault) -> Iterator[Operation]:
        """One writer killed, or stopped and overtaken."""
        if not self._begun:
            self._begun = True
            yield Declared("s", ("k",))
            yield Asked("open s")
        if fault.kind == "kill":
            writer = self._start()
            self._past(1)
            time.sleep(fault.chance.uniform(0.0, 0.03))
            self._writers.end(writer)
        else:
            assert fault.kind == "zombie"
            yield from self._overtake(fault)
        yield from self._observe()

    def finish(self) -> Iterator[Operation]:
        """A last writer gets to an end."""
        last = self._head() + 5
        writer = self._start(last)
        assert wait_until(lambda: not self._writers.runs(writer))
        assert self._head() == last
        assert self._store.verify().problems == ()
        yield from self._file.reread()
        yield from map(_by_its_writer, self._rows.reread("s"))

    def _overtake(self, fault: Fault) -> Iterator[Operation]:
        zombie = self._start()
        self._past(3)
        time.sleep(fault.chance.uniform(0.0, 0.01))
        os.kill(zombie, signal.SIGSTOP)
        yield from self._observe()
        successor = self._start()
        # a zombie stopped inside its transaction holds the write lock until it goes on
        self._past(3, patience_s=1.0)
        os.kill(zombie, signal.SIGCONT)
        self._past(11, patience_s=5.0)
        self._writers.end(zombie)
        self._writers.end(successor)

    def _observe(self) -> Iterator[Operation]:
        yield from self._file.read()
        yield from map(_by_its_writer, self._rows.read())
        yield Instant()

    def _start(self, last: int = FOR_EVER) -> int:
        self._salt += 1
        return self._writers.start(self._ledger, self._salt, last, self._output, fenced=self._fenced)

    def _head(self) -> int:
        return self._store.head(SHARD).t

    def _past(self, ticks: int, patience_s: float = 60.0) -> None:
        wanted = self._head() + ticks
        wait_until(lambda: self._head() >= wanted, patience_s)


def new_ledger(path: Path) -> LedgerStore:
    """A ledger with one stream of one key."""
    store = open_ledger(path)
    store.create_scope(Scope("c", "event", "add-remove", "4", "1e-6"))
    request = ChargeRequest("c", "event", "add-remove", GaussianLine(1, 10))
    store.open_stream(StreamRecord("s", ("k",), 1, {}), request)
    return store


def wait_until(condition: Callable[[], bool], patience_s: float = 60.0) -> bool:
    until = time.monotonic() + patience_s
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.002)
    return True


def _decode(line: bytes) -> Release:
    t, value = map(int, line.split())
    return Release("s", "k", 1, t, 1000 * t, value, 1.5, "")


def _by_its_writer(operation: Operation) -> Operation:
    if isinstance(operation, Saw):
        return operation._replace(holder=operation.release.value // SALT)
    return operation
