"""Releasers for fault tests, to be killed and stopped: a server that forks one at each request.

A request is one line "LEDGER SALT LAST OUTPUT FENCED"; the answer is the child's pid. A child commits
ticks of stream "s" up to LAST. Each published tick is one line "t value" appended to OUTPUT once its row
is durable, as a sink would; SALT makes other data. The server itself never opens a ledger: SQLite's
locks do not survive a fork.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from evertally.accountants.budget import Head, ReleaseRow, ShardRef, heads, open_ledger, releases
from evertally.errors import EvertallyError, IntegrityError

SHARD = ShardRef("s", 1, 0)


def write(ledger: str, salt: int, last: int, output: Path, *, fenced: bool) -> None:
    """Recover the sink, then commit and publish one tick after another; an unfenced one never gives up."""
    store = open_ledger(ledger, create=False)
    epoch = store.acquire(SHARD, f"writer-{os.getpid()}")
    sink = os.open(output, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    os.ftruncate(sink, store.head(SHARD).published_mark)
    while True:
        head = store.head(SHARD)
        for row in store.releases(SHARD, head.published_t, 10_000):
            os.write(sink, f"{row.t} {row.value}\n".encode())
        os.fsync(sink)
        store.mark_published(SHARD, epoch, head.t, os.fstat(sink).st_size)
        if head.t >= last:
            return
        if not fenced:
            time.sleep(0.005)  # so that a stop mostly finds the writer outside its transaction
        t = head.t + 1
        rows = [ReleaseRow(0, t, 1_000_000 * salt + t, "1.5", 1000 * t)]
        try:
            store.commit_ticks(SHARD, epoch, t, rows, t, b"state %d" % t)
        except IntegrityError:
            if fenced:
                raise


def unfenced(head: Head, epoch: int) -> None:
    """The control: what fencing prevents."""


def serve() -> None:
    """Fork a writer for each line of standard input."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # ended children leave no zombie entry
    for line in sys.stdin:
        ledger, salt, last, output, fenced = line.split()
        pid = os.fork()
        if pid:
            print(pid, flush=True)
            continue
        if fenced == "False":
            for module in (releases, heads):
                vars(module)["require_current"] = unfenced
        try:
            write(ledger, int(salt), int(last), Path(output), fenced=fenced == "True")
        except EvertallyError:
            os._exit(4)
        os._exit(0)


if __name__ == "__main__":
    serve()
