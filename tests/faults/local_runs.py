"""Runs of the local pipeline, to be killed, stopped and starved: a server that forks one at each request.

A request is one line of JSON (`Request`); the answer is the child's pid. "wait PID" is answered with its exit
code, which is that of `evertally run`, or minus the signal that ended it. The server itself never opens a
ledger: SQLite's locks do not survive a fork.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple

import apsw
from tests.faults.failing_files import STORAGE, Disk, DiskVfs

from evertally.accountants.budget import LedgerStore, open_ledger
from evertally.accountants.budget.sqlite import SQLITE_DIALECT, SqliteBackend
from evertally.accountants.budget.store import SqlLedger
from evertally.errors import EvertallyError
from evertally.pipelines.config import load_config
from evertally.pipelines.local import runner
from evertally.pipelines.sinks import FileSink, Sink
from evertally.testing import CrashingSink, CrashingStore, CrashPoints

__all__ = ["Request"]


class Request(NamedTuple):
    """What a child does.

    Attributes:
        config: of the stream.
        kind: of the fault: "" for none, "crash" and "stop" at the n-th step of the release protocol (SIGKILL
            and SIGSTOP to itself), or one of `STORAGE` from the n-th write or sync on.
        at: n.
        full: False is the control: commits are not synced.
    """

    config: str
    kind: str = ""
    at: int = 0
    full: bool = True


class _StopPoints(CrashPoints):
    """Stops this process at the n-th step; when it wakes up, it goes on."""

    def will_crash(self, name: str) -> bool:
        """Nothing is torn by a stop."""
        return name != "sink.append:torn" and super().will_crash(name)

    def reach(self, name: str) -> None:
        """Pass a step, or stop before it."""
        stop = self.will_crash(name)
        self.reached.append(name)
        if stop:
            os.kill(os.getpid(), signal.SIGSTOP)


class _Careless(SqliteBackend):
    """The control: a commit that is acknowledged before it is durable."""

    def _open(self) -> apsw.Connection:
        connection = super()._open()
        connection.pragma("synchronous", "off")
        return connection


def run(request: Request) -> None:
    """One run, as far as it comes."""
    config = load_config(Path(request.config))
    kinds = {"crash": CrashPoints(request.at, kill=True), "stop": _StopPoints(request.at)}
    points = kinds.get(request.kind, CrashPoints())
    disk = Disk(request.kind if request.kind in STORAGE else "", request.at)
    _kept = DiskVfs(disk)  # SQLite knows it by its name

    def open_store(path: Path, create: bool) -> LedgerStore:
        store = open_ledger(path, create=create)
        if disk.kind or not request.full:
            store.close()
            backend = (SqliteBackend if request.full else _Careless)(path, vfs="disk")
            key = path.with_name(path.name + ".chainkey").read_bytes()
            store = SqlLedger(backend, SQLITE_DIALECT, key)
        return CrashingStore.wrap(store, points)

    def open_sink(path: Path, header: bytes) -> AbstractContextManager[Sink]:
        sink = disk.sink(path, header) if disk.kind else FileSink(path, header)
        return CrashingSink(sink, points)

    runner._TICKS_A_BLOCK = 4  # type: ignore[misc]  # many small transactions, in this process alone
    resume = runner.stream_exists(config)
    runner.run_local(config, resume=resume, open_store=open_store, open_sink=open_sink)


def serve() -> None:
    """Fork a run for each request; "wait PID" is answered with how that one ended."""
    for line in sys.stdin:
        if line.startswith("wait "):
            _, status = os.waitpid(int(line.split()[1]), 0)
            print(os.waitstatus_to_exitcode(status), flush=True)
            continue
        request = Request(**json.loads(line))
        load_config(Path(request.config))  # what it computes once is there for every child
        pid = os.fork()
        if pid:
            print(pid, flush=True)
            continue
        code = 0
        try:
            run(request)
        except EvertallyError as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
            code = error.exit_code
        os._exit(code)


if __name__ == "__main__":
    serve()
