"""SQLite behind the ledger: one host, WAL, synchronous=FULL, files 0600.

Never on a network file system: its locks and syncs are not those SQLite relies on.
"""

from __future__ import annotations

import contextlib
import os
import stat
import threading
import time
from collections.abc import Callable, Iterable
from itertools import chain, islice
from pathlib import Path
from typing import Any, Final, TypeVar

import apsw

from evertally.accountants.budget.schema import Dialect
from evertally.accountants.budget.sql import Row, StorageError, Transaction
from evertally.errors import IntegrityError, InvalidParameter, ServiceUnavailable, StorageFull

__all__ = ["SQLITE_DIALECT", "SqliteBackend", "check_version"]

T = TypeVar("T")
OLDEST: Final = (3, 51, 3)
BUSY_MS: Final = 10_000
_FULL: Final = 2
_ROWS_A_STATEMENT: Final = 64
_STARTERS_S: Final = 0.005


def _guard(name: str, verb: str, table: str) -> str:
    return f"CREATE TRIGGER {name} BEFORE {verb} ON {table} BEGIN SELECT RAISE(ABORT, 'append-only'); END"


SQLITE_DIALECT: Final = Dialect(
    integer="INTEGER",
    blob="BLOB",
    identity="INTEGER PRIMARY KEY",
    table_end=" WITHOUT ROWID",
    append_only={
        1: (
            _guard("charge_kept", "DELETE", "charge"),
            _guard("charge_fixed", "UPDATE", "charge"),
            _guard("row_fixed", "UPDATE", "released"),
        ),
        2: (_guard("horizon_kept", "DELETE", "horizon"), _guard("horizon_fixed", "UPDATE", "horizon")),
    },
)


def check_version(version: str) -> None:
    """Refuse SQLite older than 3.51.3, whose WAL reset could corrupt a database."""
    if tuple(int(part) for part in version.split(".")[:3]) < OLDEST:
        raise IntegrityError(
            f"SQLite {version} may corrupt a write-ahead log; {'.'.join(map(str, OLDEST))} or newer is needed"
        )


class SqliteBackend:
    """One SQLite file with a writing and a reading connection."""

    def __init__(self, path: Path, *, busy_ms: int = BUSY_MS, vfs: str = "") -> None:
        check_version(apsw.sqlite_lib_version())
        self._path = path
        self._busy_ms = busy_ms
        self._vfs = vfs
        self._writer: apsw.Connection | None = None
        self._reader: apsw.Connection | None = None
        self._reading = threading.Lock()
        self._closed = False
        self._file = _create_private(path)

    def begin(self, locks: tuple[str, ...]) -> Transaction:  # noqa: ARG002 - IMMEDIATE excludes every writer
        """See `Backend`."""
        try:
            self._require_same_file()
            if self._writer is None:
                self._writer = self._open()
            self._writer.execute("BEGIN IMMEDIATE")
        except apsw.Error as error:
            raise _failure(error, self) from None
        return _SqliteTransaction(self._writer, self)

    def commit(self) -> None:
        """See `Backend`."""
        try:
            self._connected().execute("COMMIT")
        except apsw.Error as error:
            raise _failure(error, self) from None

    def rollback(self) -> None:
        """See `Backend`."""
        if self._writer is not None and self._writer.in_transaction:
            with contextlib.suppress(apsw.Error):
                self._writer.execute("ROLLBACK")

    def read(self, work: Callable[[Transaction], T]) -> T:
        """See `Backend`."""
        with self._reading:
            try:
                return self._snapshot(work)
            except apsw.Error as error:
                failure = _failure(error, self)
            except StorageError as error:
                failure = error
            raise failure.error if isinstance(failure, StorageError) else failure

    def check(self) -> list[str]:
        """See `Backend`."""
        found = self.read(lambda tx: tx.rows("PRAGMA integrity_check(16)"))
        return [f"SQLite: {row[0]}" for row in found if row[0] != "ok"]

    def close(self) -> None:
        """See `Backend`."""
        self._closed = True
        self.reset()

    def reset(self) -> None:
        """Drop the connections; the next use opens the file again and recovers what is durable."""
        for connection in (self._writer, self._reader):
            if connection is not None:
                with contextlib.suppress(apsw.Error):
                    connection.close(True)
        self._writer = self._reader = None

    def _require_same_file(self) -> None:
        """What is charged to a file that was moved away, nobody who opens the ledger would ever see."""
        try:
            status = os.stat(self._path)
        except OSError:
            status = None
        if status is None or (status.st_dev, status.st_ino) != self._file:
            raise StorageError(
                IntegrityError(
                    "the ledger's file was moved or replaced while it was open; put the right one back"
                )
            )

    def _snapshot(self, work: Callable[[Transaction], T]) -> T:
        self._require_same_file()
        if self._reader is None:
            self._reader = self._open()
        self._reader.execute("BEGIN")
        try:
            return work(_SqliteTransaction(self._reader, self))
        finally:
            if self._reader is not None and self._reader.in_transaction:
                self._reader.execute("ROLLBACK")

    def _connected(self) -> apsw.Connection:
        if self._writer is None:
            raise StorageError(StorageFull("the ledger's file was closed inside a transaction"))
        return self._writer

    def _open(self) -> apsw.Connection:
        if self._closed:
            raise StorageError(ServiceUnavailable("the ledger is closed"))
        connection = apsw.Connection(str(self._path), flags=apsw.SQLITE_OPEN_READWRITE, vfs=self._vfs or None)
        connection.set_busy_timeout(self._busy_ms)
        mode = self._enter_wal(connection)
        connection.pragma("synchronous", "full")
        connection.pragma("foreign_keys", True)
        connection.pragma("trusted_schema", False)
        connection.pragma("cell_size_check", True)
        require_durable(mode, connection.pragma("synchronous"))
        return connection

    def _enter_wal(self, connection: apsw.Connection) -> str:
        """Two starters of one new file may each hold what the other waits for: SQLite refuses one at once."""
        deadline = time.monotonic() + self._busy_ms / 1000
        while True:
            try:
                return str(connection.pragma("journal_mode", "wal"))
            except (apsw.BusyError, apsw.LockedError):
                if time.monotonic() >= deadline:
                    raise
                time.sleep(_STARTERS_S)


def require_durable(journal_mode: str, synchronous: object) -> None:
    """Refuse settings that may lose a committed row at a power loss."""
    if journal_mode != "wal" or synchronous != _FULL:
        raise IntegrityError(
            f"journal_mode=wal with synchronous=FULL (2) is needed, got {journal_mode} with {synchronous}"
        )


class _SqliteTransaction:
    __slots__ = ("_backend", "_connection", "memo")

    def __init__(self, connection: apsw.Connection, backend: SqliteBackend) -> None:
        self._connection = connection
        self._backend = backend
        self.memo: dict[tuple[str, str], Any] = {}

    def rows(self, sql: str, *parameters: object) -> list[Row]:
        try:
            return self._connection.execute(sql, parameters).fetchall()
        except apsw.Error as error:
            raise _failure(error, self._backend) from None
        except UnicodeDecodeError:  # text in the file that is none, also in what SQLite says of damage
            raise StorageError(IntegrityError("the ledger's file holds damaged text")) from None

    def run(self, sql: str, *parameters: object) -> None:
        self.rows(sql, *parameters)

    def insert(self, table: str, columns: tuple[str, ...], rows: Iterable[Row]) -> None:
        row, remaining = f"({','.join('?' * len(columns))})", iter(rows)
        try:
            while batch := list(islice(remaining, _ROWS_A_STATEMENT)):
                places = ",".join([row] * len(batch))
                # table and column names are literals of this package
                statement = f"INSERT INTO {table} ({','.join(columns)}) VALUES {places}"  # noqa: S608  # nosec B608  # see above
                self._connection.execute(statement, tuple(chain.from_iterable(batch)))
        except apsw.Error as error:
            raise _failure(error, self._backend) from None

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000


def _create_private(path: Path) -> tuple[int, int]:
    """Which file it is: device and number.

    A file that is there is not opened: closing it would end the locks that SQLite holds on it for us.
    """
    try:
        if not os.path.exists(path):
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        status = os.stat(path)
    except FileNotFoundError:
        raise InvalidParameter("ledger", str(path), "a file in an existing directory") from None
    except OSError as error:
        raise StorageFull(f"the ledger's file cannot be written: {error.strerror}") from None
    if not stat.S_ISREG(status.st_mode):
        raise InvalidParameter("ledger", str(path), "a file")
    if not os.access(path, os.R_OK | os.W_OK):
        raise StorageFull("the ledger's file cannot be written: it may not be, or its disk is read-only")
    if status.st_mode & 0o077:
        mode = f"mode {status.st_mode & 0o777:04o} of {path}"
        raise InvalidParameter("ledger", mode, "mode 0600, since nobody else may read it: chmod 600")
    return status.st_dev, status.st_ino


def _failure(error: apsw.Error, backend: SqliteBackend) -> Exception:
    """What callers get for a driver's error; StorageError where the whole transaction is over."""
    if isinstance(error, apsw.FullError | apsw.ReadOnlyError | apsw.CantOpenError | apsw.PermissionsError):
        return StorageError(StorageFull("the ledger's disk is full or read-only; nothing was recorded"))
    if isinstance(error, apsw.IOError):
        backend.reset()  # after a failed sync only the file itself knows what is durable
        return StorageError(StorageFull("the ledger's disk failed; nothing was acknowledged"))
    if isinstance(error, apsw.BusyError | apsw.LockedError | apsw.ProtocolError):
        return StorageError(ServiceUnavailable("the ledger stayed locked by another process"))
    if isinstance(error, apsw.ConstraintError):
        return IntegrityError(f"the row contradicts the ledger: {error}")
    if isinstance(error, apsw.CorruptError | apsw.NotADBError | apsw.FormatError):
        return StorageError(IntegrityError(f"the ledger's file contradicts itself: {error}"))
    if isinstance(error, apsw.SQLError):
        return StorageError(IntegrityError(f"the ledger's tables are not as expected: {error}"))
    return StorageError(ServiceUnavailable(f"the ledger failed: {type(error).__name__}"))
