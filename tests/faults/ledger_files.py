"""A small ledger with released ticks, for tests of what may happen to its file."""

from __future__ import annotations

import os
from pathlib import Path

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


PAID = ChargeRequest("c", "event", "add-remove", GaussianLine("1", "40"), idempotency_key="once")


def written(path: Path, ticks: int = 30) -> None:
    store = open_ledger(path)
    epoch = fill(store)
    store.charge(PAID)
    commit(store, epoch, 1, ticks)
    store.mark_published(SHARD, epoch, ticks - 5, 99)
    store.close()
