"""Opening a ledger: a path is SQLite, a postgresql:// address is PostgreSQL."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path
from typing import Final

from evertally.accountants.budget.chain import KEY_BYTES
from evertally.accountants.budget.ledger import LedgerStore
from evertally.accountants.budget.sqlite import SQLITE_DIALECT, SqliteBackend
from evertally.accountants.budget.store import SqlLedger
from evertally.durable import write_private
from evertally.errors import IntegrityError, InvalidParameter, StorageFull

__all__ = ["KEY_SUFFIX", "ledger_exists", "open_ledger"]

KEY_SUFFIX: Final = ".chainkey"
_SCHEMES: Final = ("postgresql://", "postgres://")


def open_ledger(
    location: str | Path, *, key_file: str | Path | None = None, create: bool = True
) -> LedgerStore:
    """Open a ledger, creating it and its chain key where neither exists.

    Args:
        location: path of a SQLite file, or a postgresql:// address.
        key_file: 32 bytes, mode 0600; beside the SQLite file (PATH.chainkey) where not given.
        create: False refuses a ledger that does not exist.

    Raises:
        InvalidParameter: no such directory, a key file others can read, no key file for PostgreSQL.
        IntegrityError: a ledger without its key, with another ledger's key or from a newer program.
        StorageFull, ServiceUnavailable: the file cannot be written, the server cannot be reached.
    """
    text = str(location)
    if text.startswith(_SCHEMES):
        from evertally.accountants.budget.postgres import (  # noqa: PLC0415 - psycopg is an extra
            POSTGRES_DIALECT,
            PostgresBackend,
        )

        if key_file is None:
            raise InvalidParameter("ledger.key_file", key_file, "the chain key's file of a PostgreSQL ledger")
        return SqlLedger(PostgresBackend(text), POSTGRES_DIALECT, _chain_key(Path(key_file), create=create))
    try:
        text.encode()
    except UnicodeEncodeError:  # SQLite takes no other path
        raise InvalidParameter("ledger", text, "a path in UTF-8") from None
    path = Path(location)
    exists = os.path.exists(path) and path.stat().st_size > 0  # no name is too long to be asked about
    if not exists and not create:
        raise InvalidParameter("ledger", text, "an existing ledger")
    key_path = Path(key_file) if key_file is not None else path.with_name(path.name + KEY_SUFFIX)
    if not key_path.exists() and exists:
        raise IntegrityError(
            f"the ledger's chain key {key_path.name} is missing; it belongs beside the ledger"
        )
    chain_key = _chain_key(key_path, create=create and not exists)
    return SqlLedger(SqliteBackend(path), SQLITE_DIALECT, chain_key)


def ledger_exists(path: Path) -> bool:
    """Whether a SQLite ledger is there. Who is killed while making one may leave an empty file: that is none.

    A name that no file can have is no ledger either.
    """
    return os.path.isfile(path) and os.path.getsize(path) > 0


def _chain_key(path: Path, *, create: bool) -> bytes:
    try:
        if create and not path.exists():
            with contextlib.suppress(FileExistsError):  # two starters at once end up with one and the same
                write_private(path, os.urandom(KEY_BYTES), os.link)
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        if create:
            raise InvalidParameter("ledger", str(path.parent), "a folder that exists") from None
        raise InvalidParameter("ledger.key_file", str(path), "an existing file of 32 bytes") from None
    except OSError as error:
        raise StorageFull(f"the chain key cannot be read or written: {error.strerror}") from None
    with os.fdopen(descriptor, "rb") as file:
        if stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077:
            raise InvalidParameter("ledger.key_file", str(path), "a file only its owner can read: chmod 600")
        key = file.read(KEY_BYTES + 1)
    if len(key) != KEY_BYTES:
        raise IntegrityError(f"the chain key {path.name} is not {KEY_BYTES} bytes long")
    return key
