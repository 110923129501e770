"""The service's own tables, in the ledger's database: tokens and training leases.

They stand beside the ledger's tables and are written through the same group-committing writer, so that
one file (or one PostgreSQL database) is what an operator backs up.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from evertally.accountants.budget.schema import Dialect
from evertally.accountants.budget.sql import Backend, Transaction, Writer
from evertally.errors import IntegrityError

__all__ = ["ServiceTables"]

T = TypeVar("T")
_VERSION: Final = 1
_VERSION_NAME: Final = "service_schema_version"
_TABLES: Final = (
    "CREATE TABLE service_token (token_id TEXT PRIMARY KEY, principal TEXT NOT NULL, digest {blob},"
    " certificate_cn TEXT NOT NULL, grants TEXT NOT NULL, created_ms {integer} NOT NULL,"
    " expires_ms {integer} NOT NULL, revoked_ms {integer} NOT NULL)",
    "CREATE TABLE service_lease (lease_id TEXT PRIMARY KEY, principal TEXT NOT NULL, scope TEXT NOT NULL,"
    " status TEXT NOT NULL, epoch {integer} NOT NULL, steps_max {integer} NOT NULL,"
    " steps_done {integer} NOT NULL, manifest_digest TEXT NOT NULL, expires_ms {integer} NOT NULL,"
    " body {blob} NOT NULL)",
)


class ServiceTables:
    """Reads and durable writes on the service's tables; open it after the ledger itself."""

    def __init__(self, location: str | Path) -> None:
        self._backend, dialect = _open(str(location))
        self._writer = Writer(self._backend)
        if self._backend.read(_version) != _VERSION:
            self._writer.run(lambda tx: _create(tx, dialect), "service/schema")

    def read(self, work: Callable[[Transaction], T]) -> T:
        """Run `work` in a read-only snapshot."""
        return self._backend.read(work)

    def write(self, work: Callable[[Transaction], T], lock: str) -> T:
        """Run `work` in a durable transaction under one named lock."""
        return self._writer.run(work, lock)

    def close(self) -> None:
        """Release the connections; again is a no-op."""
        self._backend.close()


def _open(location: str) -> tuple[Backend, Dialect]:
    if location.startswith(("postgresql://", "postgres://")):
        from evertally.accountants.budget.postgres import (  # noqa: PLC0415 - psycopg is an extra
            POSTGRES_DIALECT,
            PostgresBackend,
        )

        return PostgresBackend(location), POSTGRES_DIALECT
    from evertally.accountants.budget.sqlite import SQLITE_DIALECT, SqliteBackend  # noqa: PLC0415 - as above

    return SqliteBackend(Path(location)), SQLITE_DIALECT


def _version(tx: Transaction) -> int:
    found = tx.rows("SELECT value FROM meta WHERE name = ?", _VERSION_NAME)
    version = int(found[0][0]) if found else 0
    if version > _VERSION:
        raise IntegrityError(
            f"the service's tables have version {version}, this program knows {_VERSION}:"
            " a downgrade is refused"
        )
    return version


def _create(tx: Transaction, dialect: Dialect) -> None:
    if _version(tx):
        return  # another process was faster
    for statement in _TABLES:
        tx.run(statement.format(blob=dialect.blob, integer=dialect.integer))
    tx.run("INSERT INTO meta (name, value) VALUES (?, ?)", _VERSION_NAME, str(_VERSION))
