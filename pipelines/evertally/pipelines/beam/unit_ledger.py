"""In which ticks each privacy unit was counted: on disk, never evicted, cut back to the ledger's head.

A unit that is forgotten could contribute again, so the file outlives the job. What it holds beyond the
last released tick belongs to ticks that nobody has seen: a new job cuts it off and counts them anew.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, NoReturn

import apsw

from evertally.errors import IntegrityError, InvalidParameter, ServiceUnavailable, StorageFull
from evertally.pipelines.kafka.unit_bound import Contributed

__all__ = ["UnitLedger"]

_BUSY_MS: Final = 15_000  # a job that was killed lets go of the file at its end


class UnitLedger:
    """The units of one bucket of one incarnation: a SQLite file, mode 0600, held by one process at a time.

    The file knows of how many buckets it is one: of another number it would hold other units.

    Raises:
        InvalidParameter: the folder cannot be made; another number of buckets than the stream began with.
        StorageFull, ServiceUnavailable: the file cannot be written; another job holds it.
    """

    def __init__(self, folder: Path, life: str, incarnation: int, bucket: int, buckets: int) -> None:
        path = folder / f"counted-{life}-{incarnation}-{bucket}.sqlite"
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        except (FileNotFoundError, FileExistsError, NotADirectoryError):
            raise InvalidParameter(
                "state.folder", str(folder), "a path in an existing folder of every worker that bounds units"
            ) from None
        except OSError as error:
            raise StorageFull(f"the state of units cannot be written: {error.strerror}") from None
        try:
            self._file: Final = apsw.Connection(str(path))
            self._file.set_busy_timeout(_BUSY_MS)
            self._file.pragma("locking_mode", "exclusive")
            self._file.pragma("journal_mode", "wal")
            self._file.pragma("synchronous", "full")
            with self._file:
                self._file.execute(
                    "CREATE TABLE IF NOT EXISTS counted (unit INTEGER, t INTEGER, PRIMARY KEY (unit, t)) "
                    "WITHOUT ROWID"
                )
                self._file.execute("CREATE INDEX IF NOT EXISTS counted_t ON counted (t)")
                self._file.execute("CREATE TABLE IF NOT EXISTS bounded (one INTEGER PRIMARY KEY, t INTEGER)")
                self._file.execute("INSERT OR IGNORE INTO bounded VALUES (1, 0)")
            self._require_buckets(buckets)
        except apsw.BusyError:
            raise ServiceUnavailable(
                "another job holds the state of units; one job counts a stream"
            ) from None
        except apsw.Error as error:
            raise _full(error) from None

    @property
    def through(self) -> int:
        """Last tick whose units are in the file."""
        rows = self._file.execute("SELECT t FROM bounded").fetchall()
        return int(str(rows[0][0]))

    def cut_back(self, t: int) -> None:
        """Forget ticks after `t`.

        Raises IntegrityError where the file ends before t: units were counted that it does not know.
        """
        if self.through < t:
            raise IntegrityError(
                f"the state of units ends at tick {self.through}, but tick {t} is released: was its folder "
                "emptied or put back? Units could be counted again"
            )
        self._write(t, {}, cut=True)

    def get(self, units: Iterable[int], before: int) -> dict[int, Contributed]:
        """What these units have contributed before a tick; units that have not are left out."""
        found = {}
        for unit in units:
            for last, used in self._file.execute(
                "SELECT max(t), count(*) FROM counted WHERE unit = ? AND t < ?", (unit, before)
            ):
                if used:
                    found[unit] = Contributed(int(str(last)), int(str(used)))
        return found

    def counted(self, t: int) -> set[int]:
        """The units that were counted in a tick."""
        return {
            int(str(unit)) for (unit,) in self._file.execute("SELECT unit FROM counted WHERE t = ?", (t,))
        }

    def record(self, t: int, counted: Mapping[int, Contributed]) -> None:
        """Tick t is bounded, and these units were counted in it. Raises StorageFull."""
        self._write(t, counted, cut=False)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _require_buckets(self, buckets: int) -> None:
        held = int(str(self._file.pragma("user_version")))
        if held == 0:
            self._file.pragma("user_version", buckets)
        elif held != buckets:
            self._file.close()
            raise InvalidParameter(
                "buckets", buckets, f"{held}, as the stream began: units would be looked for in other files"
            )

    def _write(self, t: int, counted: Mapping[int, Contributed], *, cut: bool) -> None:
        try:
            with self._file:
                self._file.execute("DELETE FROM counted WHERE t > ?", (t if cut else t - 1,))
                self._file.executemany("INSERT INTO counted VALUES (?, ?)", ((unit, t) for unit in counted))
                self._file.execute("UPDATE bounded SET t = ?", (t,))
        except apsw.Error as error:
            raise _full(error) from None

    def __repr__(self) -> str:
        return "UnitLedger(<redacted>)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("the state of units is not pickled")


def _full(error: apsw.Error) -> StorageFull:
    return StorageFull(
        f"the state of units could not be written ({type(error).__name__}); nothing more is counted"
    )
