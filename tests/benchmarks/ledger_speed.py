"""How fast is the durable ledger? Rows in a backfill, grants with group commit, against bare SQLite.

    python tests/benchmarks/ledger_speed.py [FOLDER]

Ratios are against what SQLite itself does in the same run: one table, the same rows and transactions for
the backfill, one fsynced row a transaction for the grants. CPU times are this process's own, which a busy
machine changes less than the wall time.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from pathlib import Path

import apsw

from evertally.accountants.budget import (
    ChargeRequest,
    GaussianLine,
    LedgerStore,
    ReleaseRow,
    Scope,
    StreamRecord,
    open_ledger,
)

TICKS, KEYS, BATCH = 8761, 16, 512
CLIENTS, REQUESTS = 32, 150


def request(name: str = "") -> ChargeRequest:
    return ChargeRequest("s", "event", "add-remove", GaussianLine(1, 10_000), idempotency_key=name)


def backfill(store: LedgerStore, rows: list[ReleaseRow]) -> tuple[float, float]:
    """(seconds, CPU seconds)."""
    stream = store.open_stream(StreamRecord("x", tuple(f"k{i}" for i in range(KEYS)), 1, {}), request())
    shard = stream.shard(0)
    epoch = store.acquire(shard, "benchmark")
    began, cpu = time.perf_counter(), time.process_time()
    for first in range(1, TICKS + 1, BATCH):
        last = min(first + BATCH - 1, TICKS)
        store.commit_ticks(shard, epoch, first, rows[(first - 1) * KEYS : last * KEYS], last, bytes(2000))
    return time.perf_counter() - began, time.process_time() - cpu


def grants(store: LedgerStore) -> tuple[float, float]:
    """(grants a second, CPU seconds a grant)."""

    def client(number: int) -> None:
        for i in range(REQUESTS):
            store.charge(request(f"{number}-{i}"))

    threads = [threading.Thread(target=client, args=(i,)) for i in range(CLIENTS)]
    began, cpu = time.perf_counter(), time.process_time()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    count = CLIENTS * REQUESTS
    return count / (time.perf_counter() - began), (time.process_time() - cpu) / count


def bare(path: Path, rows: list[ReleaseRow]) -> tuple[float, float, float]:
    """(seconds and CPU seconds of the same backfill, commits a second) of SQLite alone, same settings."""
    connection = apsw.Connection(str(path))
    connection.pragma("journal_mode", "wal")
    connection.pragma("synchronous", "full")
    connection.execute("CREATE TABLE r (k, t, v TEXT, e, ms, PRIMARY KEY (t, k)) WITHOUT ROWID")
    began, cpu = time.perf_counter(), time.process_time()
    for first in range(1, TICKS + 1, BATCH):
        chunk = rows[(first - 1) * KEYS : (first + BATCH - 1) * KEYS]
        with connection:
            connection.executemany("INSERT INTO r VALUES (?, ?, ?, ?, ?)", chunk)
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    began = time.perf_counter()
    for i in range(300):
        connection.execute("INSERT INTO r VALUES (0, ?, '1', '1', 1)", (-1 - i,))
    return seconds, cpu, 300 / (time.perf_counter() - began)


def main(folder: Path) -> None:
    rows = [ReleaseRow(k, t, 1000 * t + k, "20.4567", t) for t in range(1, TICKS + 1) for k in range(KEYS)]
    alone_s, alone_cpu, commits = bare(folder / "bare", rows)
    store = open_ledger(folder / "ledger")
    store.create_scope(Scope("s", "event", "add-remove", "10", "1e-6"))
    seconds, cpu = backfill(store, rows)
    rate, grant_cpu = grants(store)
    began = time.perf_counter()
    assert store.verify().ok
    verified = time.perf_counter() - began
    store.close()
    print("| what | measured | bar | ratio |")
    print("| --- | --- | --- | --- |")
    print(f"| backfill {TICKS} x {KEYS} | {seconds:.2f} s | 0.5 s | {seconds / alone_s:.2f}x bare SQLite |")
    print(f"| rows | {TICKS * KEYS / seconds:,.0f}/s | 100,000/s | |")
    micro = 1e6 / (TICKS * KEYS)
    print(f"| CPU a row | {cpu * micro:.2f} us | 10 us | {cpu / alone_cpu:.2f}x bare SQLite |")
    print(f"| CPU a grant | {grant_cpu * 1e6:.0f} us | 1,000 us | |")
    print(f"| grants, {CLIENTS} clients | {rate:,.0f}/s | 1,000/s | {rate / commits:.2f}x bare commits |")
    print(f"| verify | {verified:.2f} s | | |")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else None) as name:
        main(Path(name))
