"""What the judge reads, as bytes and rows and through none of the product's stores."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import apsw
import psycopg
from tests.faults.recorded_history import LEDGER, Broken, Charged, Operation, Reread, Saw, Spent

from evertally.pipelines.releases import Release

__all__ = ["FileReader", "LedgerReader"]

_SHARDS = (
    "SELECT i.incarnation_pk, s.name, i.incarnation, i.descriptor, h.shard FROM incarnation i"
    " JOIN stream s ON s.stream_pk = i.stream_pk JOIN head h ON h.incarnation_pk = i.incarnation_pk"
)
_ROWS = (
    "SELECT k.key_name, r.t, r.tick_end_ms, r.value, r.stderr FROM released r JOIN incarnation_key k"
    " ON k.incarnation_pk = r.incarnation_pk AND k.key_index = r.key_index"
    " WHERE r.incarnation_pk = {} AND r.shard = {} AND r.t > {} ORDER BY r.t, r.key_index"
)
_CHARGES = (
    "SELECT s.name, c.seq, c.charge_id, c.main FROM charge c JOIN scope s ON s.scope_id = c.scope_id"
    " WHERE s.name = '{}' AND c.seq > {} ORDER BY c.seq"
)
_SCOPES = "SELECT name, main, cap_main FROM scope ORDER BY name"


class LedgerReader:
    """Reads a ledger's tables by SQL; each reading tells what is new.

    Args:
        location: path of a SQLite file, or a postgresql:// address.
    """

    def __init__(self, location: str) -> None:
        self._location = location
        self._t: dict[tuple[int, int], int] = defaultdict(int)
        self._seq: dict[str, int] = defaultdict(int)

    def read(self) -> list[Operation]:
        """New rows, and what each scope says of itself. A ledger that is not there yet has none."""
        if "://" not in self._location and not Path(self._location).exists():
            return []
        with _Snapshot(self._location) as snapshot:
            return list(self._new(snapshot))

    def reread(self, stream: str) -> list[Operation]:
        """Every row of the ledger's one stream once more, from its start; no charges."""
        self._t.clear()
        return [Reread(LEDGER, stream), *(found for found in self.read() if isinstance(found, Saw))]

    def _new(self, snapshot: _Snapshot) -> Iterator[Operation]:
        for pk, name, incarnation, descriptor, shard in snapshot.rows(_SHARDS):
            mechanism = json.loads(descriptor).get("mechanism", "")
            last = self._t[pk, shard]
            for key, t, end_ms, value, stderr in snapshot.rows(_ROWS.format(pk, shard, last)):
                self._t[pk, shard] = t
                yield Saw(
                    LEDGER,
                    Release(name, key, incarnation, t, end_ms, int(value), float(stderr), mechanism),
                )
        scopes = snapshot.rows(_SCOPES)
        for scope, _, _ in scopes:
            for name, seq, charge, main in snapshot.rows(_CHARGES.format(scope, self._seq[scope])):
                self._seq[scope] = seq
                yield Charged(name, seq, charge, main)
        for scope, spent, cap in scopes:
            yield Spent(scope, spent, cap)


class _Snapshot:
    """One read transaction, in either database."""

    def __init__(self, location: str) -> None:
        if "://" in location:
            self._connection: Any = psycopg.connect(location, autocommit=True, connect_timeout=20)
            self._connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        else:
            self._connection = apsw.Connection(location, flags=apsw.SQLITE_OPEN_READONLY)
            self._connection.set_busy_timeout(20_000)
            self._connection.execute("BEGIN")

    def __enter__(self) -> _Snapshot:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def rows(self, sql: str) -> Sequence[tuple[Any, ...]]:
        """All rows; none where the tables are not made yet."""
        try:
            found: Sequence[tuple[Any, ...]] = self._connection.execute(sql).fetchall()
        except apsw.Error as error:
            if not_made_yet(error):
                return []
            raise
        return found


def not_made_yet(error: apsw.Error) -> bool:
    """Whether a reader was told that the ledger's tables are not there.

    A starter that was killed before its new file was a write-ahead log leaves a journal, which the next
    starter rolls back and a reader may not.
    """
    rolled_back_first = getattr(error, "extendedresult", 0) == apsw.SQLITE_READONLY_ROLLBACK
    return isinstance(error, apsw.SQLError) or rolled_back_first


class FileReader:
    """Reads a releases file as anyone may: whole lines, again and again; each reading tells what is new.

    Args:
        path: the file.
        stream: whose releases are in it.
        decode: what makes a release of a line.
        headers: lines before the first release.
    """

    def __init__(
        self,
        path: Path,
        stream: str,
        decode: Callable[[bytes], Release] = Release.decode,
        headers: int = 1,
    ) -> None:
        self._path, self._stream = path, stream
        self._decode, self._headers = decode, headers
        self._seen = b""

    def read(self) -> list[Operation]:
        """Lines that are new; all of them where the file does not begin as it did."""
        data = self._path.read_bytes() if self._path.exists() else b""
        whole = data[: data.rfind(b"\n") + 1]
        again = not whole.startswith(self._seen)
        begun = b"" if again else self._seen
        self._seen = whole
        found: list[Operation] = [Reread("file", self._stream)] if again else []
        for number, line in enumerate(whole[len(begun) :].splitlines(), start=begun.count(b"\n")):
            if number < self._headers:
                continue
            try:
                found.append(Saw("file", self._decode(line)))
            except ValueError:
                found.append(Broken("file", number + 1))
        return found

    def reread(self) -> list[Operation]:
        """Everything from the start."""
        self._seen = b""
        return [Reread("file", self._stream), *self.read()]
