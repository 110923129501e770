"""A read-only view of a ledger's public columns.

It needs no chain key and no key file, selects no sealed state, position or line of a charge, and has no
way to write: SQLite is opened read-only, PostgreSQL in read-only transactions, best under a role that may
select these columns only (deploy/postgres/exporter-role.sql).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, Protocol

import apsw

from evertally.errors import EvertallyError, IntegrityError, InvalidParameter, ServiceUnavailable

__all__ = ["SCHEMA_VERSIONS", "LedgerView", "Rows", "open_view"]

SCHEMA_VERSIONS: Final = ("1", "2", "3", "4")
"""Versions of the ledger's tables whose public columns are known here."""

_BUSY_MS: Final = 2000
_CONNECT_S: Final = 5
_STATEMENT_MS: Final = 20_000
_SCHEMES: Final = ("postgresql://", "postgres://")
Rows = Callable[..., list[tuple[Any, ...]]]


class LedgerView(Protocol):
    """Reads inside one consistent snapshot."""

    @property
    def openings(self) -> int:
        """How often the ledger was opened; what was read before the last time may be another ledger's."""
        ...

    def snapshot(self) -> contextlib.AbstractContextManager[Rows]:
        """A function `rows(sql, *parameters)` that reads; parameters stand as `?`.

        Raises:
            ServiceUnavailable: the ledger cannot be reached.
            IntegrityError: it is no ledger, or one of a version that is not known here.
        """
        ...

    def close(self) -> None:
        """Release the connection; again is a no-op."""
        ...


def open_view(location: str) -> LedgerView:
    """A view of a SQLite file, or of a postgresql:// address; nothing is opened before the first look.

    Raises InvalidParameter for an empty location.
    """
    if not location:
        raise InvalidParameter("ledger", location, "path of a SQLite ledger, or a postgresql:// address")
    return _PostgresView(location) if location.startswith(_SCHEMES) else _SqliteView(Path(location))


def _check_version(rows: Rows) -> None:
    found = rows("SELECT value FROM meta WHERE name = 'schema_version'")
    version = str(found[0][0]) if found else "none"
    if version not in SCHEMA_VERSIONS:
        raise IntegrityError(f"the ledger's schema version is {version}; known are {SCHEMA_VERSIONS}")


class _SqliteView:
    def __init__(self, path: Path) -> None:
        self._path: Final = path
        self._connection: apsw.Connection | None = None
        self._file: tuple[int, int] | None = None
        self.openings = 0

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[Rows]:
        """See `LedgerView`."""
        try:
            self._leave_other_file()
            connection = self._connection or self._connect()
            connection.execute("BEGIN")
            try:

                def rows(sql: str, *parameters: object) -> list[tuple[Any, ...]]:
                    return connection.execute(sql, parameters).fetchall()

                _check_version(rows)
                yield rows
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
        except apsw.Error as error:
            self.close()
            raise _sqlite_failure(error, self._path) from None

    def close(self) -> None:
        """See `LedgerView`."""
        if self._connection is not None:
            with contextlib.suppress(apsw.Error):
                self._connection.close(True)
            self._connection = None

    def _leave_other_file(self) -> None:
        """A file that was moved away, or replaced by a backup, would be read for ever through its handle."""
        if self._connection is not None and _identity(self._path) != self._file:
            self.close()

    def _connect(self) -> apsw.Connection:
        self._file = _identity(self._path)
        self._connection = connection = apsw.Connection(str(self._path), flags=apsw.SQLITE_OPEN_READONLY)
        self.openings += 1
        connection.set_busy_timeout(_BUSY_MS)
        connection.pragma("query_only", True)
        connection.pragma("trusted_schema", False)
        return connection


def _identity(path: Path) -> tuple[int, int] | None:
    """Which file stands at a path; None for none."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _sqlite_failure(error: apsw.Error, path: Path) -> EvertallyError:
    if isinstance(error, apsw.NotADBError | apsw.CorruptError | apsw.SQLError):
        return IntegrityError(f"{path} is no ledger that can be read: {type(error).__name__}")
    if isinstance(error, apsw.CantOpenError):
        return ServiceUnavailable(f"no ledger is there, or it may not be read: {path}")
    return ServiceUnavailable(f"the ledger {path} cannot be read: {type(error).__name__}")


class _PostgresView:
    def __init__(self, address: str) -> None:
        self._address: Final = address
        self._connection: Any = None
        self.openings = 0

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[Rows]:
        """See `LedgerView`."""
        import psycopg  # noqa: PLC0415 - an extra

        try:
            if self._connection is None or self._connection.closed:
                self._connection = self._connect()
            connection = self._connection
            connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            try:

                def rows(sql: str, *parameters: object) -> list[tuple[Any, ...]]:
                    found: list[tuple[Any, ...]] = connection.execute(
                        sql.replace("?", "%s"), parameters or None
                    ).fetchall()
                    return found

                _check_version(rows)
                yield rows
            finally:
                with contextlib.suppress(psycopg.Error):
                    connection.execute("ROLLBACK")
        except (psycopg.errors.UndefinedTable, psycopg.errors.UndefinedColumn) as error:
            raise IntegrityError(f"the database holds no known ledger: {type(error).__name__}") from None
        except psycopg.Error as error:
            self.close()
            raise ServiceUnavailable(f"the ledger cannot be read: {type(error).__name__}") from None

    def close(self) -> None:
        """See `LedgerView`."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connect(self) -> Any:
        import psycopg  # noqa: PLC0415 - an extra

        connection = psycopg.connect(
            self._address, autocommit=True, connect_timeout=_CONNECT_S, application_name="evertally-exporter"
        )
        self.openings += 1
        connection.execute("SET default_transaction_read_only = on")
        connection.execute(f"SET statement_timeout = {_STATEMENT_MS:d}")
        return connection

    def __repr__(self) -> str:
        return "_PostgresView(<address redacted>)"
