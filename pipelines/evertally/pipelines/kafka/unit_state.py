"""What each privacy unit has contributed: on local disk, with a sealed changelog on a compacted topic.

Nothing is ever evicted: a unit that is forgotten could contribute again. The local file is only a
copy; a worker that takes a partition over applies the changelog from where its copy ends.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import apsw
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCMSIV

from evertally.errors import IntegrityError, InvalidParameter, ServiceUnavailable, StorageFull
from evertally.pipelines.kafka.broker import Broker, TopicPartition
from evertally.pipelines.kafka.changelog import read_changelog
from evertally.pipelines.kafka.unit_bound import Contributed

__all__ = ["ChangelogSealer", "UnitStore", "replay"]

_NONCE_BYTES: Final = 12
_BUSY_MS: Final = 10_000
_VALUE: Final = struct.Struct(">QQ")
_UNIT: Final = struct.Struct(">Q")


class ChangelogSealer:
    """Keys and sealed values of the changelog of one incarnation and partition."""

    def __init__(self, key: bytes, life: str, incarnation: int, partition: int) -> None:
        self._cipher: Final = AESGCMSIV(key)
        self._place: Final = bytes.fromhex(life) + struct.pack(">QI", incarnation, partition)

    def seal(self, unit: int, state: Contributed) -> tuple[bytes, bytes]:
        """Key and value of a record."""
        key = self._place + _UNIT.pack(unit)
        nonce = os.urandom(_NONCE_BYTES)
        return key, nonce + self._cipher.encrypt(nonce, _VALUE.pack(*state), key)

    def open(self, key: bytes | None, value: bytes | None) -> tuple[int, Contributed] | None:
        """The unit's state in a record, None where it is of another incarnation.

        Raises IntegrityError for a record that does not open, or that deletes.
        """
        if key is None or value is None or len(key) != len(self._place) + _UNIT.size:
            raise IntegrityError("the changelog of units holds a record of another form")
        if not key.startswith(self._place):
            return None
        try:
            plain = self._cipher.decrypt(value[:_NONCE_BYTES], value[_NONCE_BYTES:], key)
            state = Contributed(*_VALUE.unpack(plain))
        except (InvalidTag, ValueError, struct.error):
            raise IntegrityError("a record of the changelog of units does not open") from None
        return _UNIT.unpack(key[len(self._place) :])[0], state

    def __repr__(self) -> str:
        return "ChangelogSealer(<secret>)"


class UnitStore:
    """The local copy of one partition: a SQLite file, mode 0600, named by incarnation and partition.

    The folder is made, mode 0700, where there is none: a copy can always be filled again from the changelog.
    Workers of one machine may share it: an owner that was stopped and wakes up when the next one works on
    the same file takes nothing back.
    """

    def __init__(self, folder: Path, life: str, incarnation: int, partition: int) -> None:
        path = folder / f"units-{life}-{incarnation}-{partition}.sqlite"
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        except FileNotFoundError:
            raise InvalidParameter("state.folder", str(folder), "a path in an existing folder") from None
        except OSError as error:
            raise StorageFull(f"the state of units cannot be written: {error.strerror}") from None
        with _full_disk_stops():
            self._file: Final = apsw.Connection(str(path))
            self._file.transaction_mode = "IMMEDIATE"  # what is compared stays so until it is written
            self._file.set_busy_timeout(_BUSY_MS)
            self._file.pragma("journal_mode", "wal")
            self._file.pragma("synchronous", "full")
            self._file.execute(
                "CREATE TABLE IF NOT EXISTS unit (id INTEGER PRIMARY KEY, last INTEGER, used INTEGER)"
            )
            self._file.execute("CREATE TABLE IF NOT EXISTS applied (one INTEGER PRIMARY KEY, stop INTEGER)")

    def applied(self) -> int:
        """Offset of the changelog up to which this copy is complete."""
        rows = self._file.execute("SELECT stop FROM applied WHERE one = 1").fetchall()
        return int(str(rows[0][0])) if rows else 0

    def get(self, units: Iterable[int]) -> dict[int, Contributed]:
        """What these units have contributed; units that have not are left out."""
        found = {}
        for unit in units:
            for last, used in self._file.execute("SELECT last, used FROM unit WHERE id = ?", (unit,)):
                found[unit] = Contributed(last, used)
        return found

    def apply(self, changes: Mapping[int, Contributed], stop: int) -> None:
        """Apply changes that the changelog holds before offset `stop`.

        Raises:
            StorageFull: they cannot be written.
            ServiceUnavailable: the file is further already, or stays locked: another worker has it.
        """
        with _full_disk_stops(), self._file:
            applied = self.applied()
            if changes and applied > stop:
                raise ServiceUnavailable("another worker has gone on with the state of these units")
            self._file.executemany(
                "INSERT OR REPLACE INTO unit VALUES (?, ?, ?)",
                ((unit, state.last, state.used) for unit, state in changes.items()),
            )
            self._file.execute("INSERT OR REPLACE INTO applied VALUES (1, ?)", (max(applied, stop),))

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def replay(
    broker: Broker, place: TopicPartition, sealer: ChangelogSealer, store: UnitStore, at_least: int
) -> None:
    """Bring the local copy up to the changelog's end.

    Raises IntegrityError where the changelog ends before `at_least`, or before the copy: it was emptied.
    """
    for records, stop in read_changelog(broker, place, store.applied(), at_least):
        opened = (sealer.open(record.key, record.value) for record in records)
        store.apply(dict(change for change in opened if change is not None), stop)


class _full_disk_stops:  # noqa: N801 - reads as a statement in a `with`
    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, apsw.BusyError):
            raise ServiceUnavailable("the state of units stayed locked by another worker") from None
        if isinstance(error, apsw.Error):
            raise StorageFull(
                f"the state of units could not be written ({type(error).__name__}); nothing more is counted"
            ) from None
