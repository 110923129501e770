"""Readers of ledgers: damaged pages of the file, and rows that say something else.

Rows are changed through SQLite itself, so that the file stays whole and only what a row says is wrong:
that is what somebody writes who has the file and not the chain key.
"""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path

import apsw
import numpy as np
from tests.fuzz.attack import Reader

from evertally.accountants.budget.charges import ChargeRequest
from evertally.accountants.budget.ledger import LedgerStore
from evertally.accountants.budget.lines import GaussianLine
from evertally.accountants.budget.opening import KEY_SUFFIX, open_ledger
from evertally.accountants.budget.scopes import Scope
from evertally.pipelines.closings import ClosingBlock
from evertally.pipelines.keyfile import KeyFile
from evertally.pipelines.metrics.ledger_reader import LedgerReader, read_heads
from evertally.pipelines.metrics.ledger_view import open_view
from evertally.pipelines.releaser import Releaser, stored_positions
from evertally.pipelines.stream_spec import StreamSpec

_QUERY = ChargeRequest("queries", "event", "add-remove", GaussianLine("1", "10"))
_BESIDE = ("-wal", "-shm", "-journal")


def _make(folder: Path) -> Path:
    """A ledger with a stream of three released ticks, two scopes and charges in both."""
    path = folder / "good.sqlite"
    scope = Scope("visits", "event", "add-remove", 1.0, 1e-6)
    spec = StreamSpec("visits", ("a", "b"), 0, 1000, scope, mu=0.1)
    store = open_ledger(path)
    releaser = Releaser.open(store, spec, KeyFile.open_or_create(folder / "key"), holder="h")
    releaser.release(
        ClosingBlock("visits", ("a", "b"), 1, np.ones((3, 2), np.int64), b"here", (1000, 2000, 3000))
    )
    other = Scope("queries", "event", "add-remove", 2.0, 1e-6)
    store.create_scope(other)
    store.charge(_QUERY)
    store.reserve(_QUERY, 60_000)
    store.close()
    return path


class _Reads:
    """All that is ever read of a ledger, one part an input in turn."""

    def __init__(self, path: Path, key_file: KeyFile) -> None:
        self._path = path
        self._key_file = key_file
        self._parts = itertools.cycle(
            (self._walk, self._streams, self._scopes, self._exporter, self._take_over)
        )

    def __call__(self, store: LedgerStore) -> None:
        next(self._parts)(store)

    def _walk(self, store: LedgerStore) -> None:
        store.verify()

    def _streams(self, store: LedgerStore) -> None:
        for opened in store.streams():
            for shard in range(opened.shards):
                store.head(opened.shard(shard))
                store.releases(opened.shard(shard), 0, 100)
                stored_positions(store, opened, self._key_file, shard)

    def _scopes(self, store: LedgerStore) -> None:
        for status in store.scopes():
            store.charges(status.scope.name)

    def _exporter(self, _: LedgerStore) -> None:
        view = open_view(str(self._path))
        reader = LedgerReader(view, {"2s": 2000})
        try:
            reader.read()
            read_heads(view, "visits")
        finally:
            reader.close()

    def _take_over(self, store: LedgerStore) -> None:
        """What writes reads what stands there before."""
        opened = store.find_stream("visits")
        if opened is not None:
            store.quote_horizon("visits", opened.incarnation, 2**31)
        store.quote(_QUERY)


def ledger_pages(folder: Path) -> Reader:
    """The bytes of a ledger's file."""
    good = _make(folder).read_bytes()
    path, key_file = folder / "ledger.sqlite", KeyFile.open(folder / "key")
    shutil.copy(folder / f"good.sqlite{KEY_SUFFIX}", folder / f"ledger.sqlite{KEY_SUFFIX}")
    path.touch(0o600)
    reads = _Reads(path, key_file)

    def read(data: bytes) -> None:
        for suffix in _BESIDE:
            path.with_name(path.name + suffix).unlink(missing_ok=True)
        path.write_bytes(data)
        if not data:
            return
        store = open_ledger(path, create=False)
        try:
            reads(store)
        finally:
            store.close()

    return Reader((good,), read, text=False)


def ledger_rows(folder: Path) -> Reader:
    """One cell of one row, changed. The first two bytes choose it, the third its type."""
    good, path, key_file = _make(folder), folder / "ledger.sqlite", KeyFile.open(folder / "key")
    shutil.copy(good, path)
    shutil.copy(folder / f"good.sqlite{KEY_SUFFIX}", folder / f"ledger.sqlite{KEY_SUFFIX}")
    store, reads = open_ledger(path, create=False), _Reads(path, key_file)
    connection = apsw.Connection(str(path))
    connection.pragma("synchronous", "off")
    for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
        connection.execute(f"DROP TRIGGER {name}")
    cells, corpus = _cells(connection)

    def read(data: bytes) -> None:
        if len(data) < 3:
            return
        table, column, where, keys = cells[int.from_bytes(data[:2], "big") % len(cells)]
        before = connection.execute(f"SELECT {column} FROM {table} WHERE {where}", keys).fetchall()
        try:
            connection.execute(f"UPDATE {table} SET {column} = ? WHERE {where}", (_value(data[2:]), *keys))
        except apsw.ConstraintError:
            return
        try:
            reads(store)
        finally:
            connection.execute(f"UPDATE {table} SET {column} = ? WHERE {where}", (before[0][0], *keys))

    return Reader(corpus, read, text=True)


def _value(data: bytes) -> object:
    """Null, an integer, a text or bytes, as the first byte says; the corpus has each of them."""
    kind, body = data[:1], data[1:]
    if kind == b"n":
        return None
    if kind == b"i":
        try:
            return max(-(2**63), min(2**63 - 1, int(body)))
        except ValueError:
            return int.from_bytes(body[:7], "big")
    return body.decode("utf-8", "replace") if kind == b"t" else body


def _cells(connection: apsw.Connection) -> tuple[list[tuple[str, str, str, tuple[object, ...]]], list[bytes]]:
    """Every cell that is no part of its row's primary key, and for each an input that leaves it as it is."""
    cells: list[tuple[str, str, str, tuple[object, ...]]] = []
    corpus = []
    tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    for (table,) in tables:
        about = connection.execute(f"PRAGMA table_info({table})").fetchall()
        columns = [row[1] for row in about]
        primary = [row[1] for row in about if row[5]]
        for row in connection.execute(f"SELECT * FROM {table}").fetchall():
            values = dict(zip(columns, row, strict=True))
            where = " AND ".join(f"{name} = ?" for name in primary)
            for column in columns:
                if column in primary:
                    continue
                number = len(cells).to_bytes(2, "big")
                cells.append((str(table), str(column), where, tuple(values[name] for name in primary)))
                corpus.append(number + _told(values[column]))
    return cells, corpus


def _told(value: object) -> bytes:
    if value is None:
        return b"n"
    if isinstance(value, int):
        return b"i" + str(value).encode()
    return b"t" + value.encode() if isinstance(value, str) else b"b" + bytes(value)  # type: ignore[call-overload]  # bytes
