"""The ledger's outbox: released rows as the public lines they are, and a lost file of them written again.

What is public is a function of the ledger's rows, so the same rows give the same bytes whoever asks, and
a releases file that was lost, torn or changed is no loss: it is published again, byte for byte.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import IO, Final, NamedTuple

from evertally.accountants.budget.ledger import LedgerStore, OpenedStream, ReleaseRow, ShardRef
from evertally.durable import sync_folder
from evertally.errors import IntegrityError, InvalidParameter, ServiceUnavailable, StorageFull
from evertally.pipelines.releases import Release, standing_header
from evertally.pipelines.sinks import stands_at
from evertally.pipelines.stream_spec import header_of

__all__ = ["Republished", "publish_again", "release_lines"]

_ROWS_A_READ: Final = 65_536


class Republished(NamedTuple):
    """What was done.

    Attributes:
        t: last tick of the file.
        written: False where the file was whole already.
    """

    t: int
    written: bool


def release_lines(opened: OpenedStream, rows: Iterable[ReleaseRow]) -> Iterator[bytes]:
    """Rows of the ledger as lines of JSON."""
    names = dict(zip(opened.key_indices, opened.keys, strict=True))
    mechanism = str(opened.descriptor["mechanism"])
    for row in rows:
        yield Release(
            stream=opened.name,
            key=names[row.key_index],
            incarnation=opened.incarnation,
            t=row.t,
            tick_end_ms=row.tick_end_ms,
            value=row.value,
            stderr=float(row.stderr),
            mechanism=mechanism,
        ).encode()


def publish_again(
    store: LedgerStore, opened: OpenedStream, path: Path, *, shard: int = 0, replace: bool = False
) -> Republished:
    """Write a stream's releases file from the ledger: all released ticks, the bytes a sink was given.

    A file that is missing, or is a beginning of the right one, is completed. It takes its place at once
    and whole. Nothing in the ledger changes, and nothing is drawn.

    Args:
        store: the ledger.
        opened: the stream's incarnation.
        path: the releases file.
        shard: whose keys.
        replace: also replace a file that says something else than the ledger.

    Raises:
        IntegrityError: the file says something else (unless `replace`), or holds a later tick than the
            ledger, which was then rolled back; rows that were folded can not be written again.
        ServiceUnavailable: a running releaser has the file open.
        StorageFull: the file cannot be written.
    """
    ref = opened.shard(shard)
    header = header_of(opened, store.scope_status(opened.scope).scope).encode()
    # a process's number is no name: in containers all have the same one, and a killed one left its file
    temporary = path.with_name(f".{path.name}.{os.urandom(8).hex()}.new")
    with _reserved(path) as old:
        head = store.head(ref)  # once nobody publishes there any more
        _refuse_rollback(old, opened, head.t, path)
        if old is not None:
            old.seek(0)
            header = standing_header(old.readline(2 * len(header)), header)
        try:
            with temporary.open("xb") as new:
                os.fchmod(new.fileno(), 0o644)
                new.writelines(chain([header] if head.t else [], _lines(store, opened, ref, head.t)))
                new.flush()
                os.fsync(new.fileno())
            whole, same = _compare(old, temporary)
            if not (same or replace):
                raise IntegrityError(f"{path} says something else than the ledger; --replace writes it anew")
            if not whole:
                _put(temporary, path, new=old is None)
                sync_folder(path.parent)
        except OSError as error:
            raise StorageFull(f"{path} could not be written: {error.strerror}") from None
        finally:
            temporary.unlink(missing_ok=True)
    return Republished(head.t, written=not whole)


def _put(temporary: Path, path: Path, *, new: bool) -> None:
    """Give the written file its name; one that a releaser has made meanwhile is not taken from it."""
    if not new:
        temporary.replace(path)
        return
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise _held_by_another(path) from None


def _held_by_another(path: Path) -> ServiceUnavailable:
    return ServiceUnavailable(f"{path} is open in a running releaser; stop it first")


def _lines(store: LedgerStore, opened: OpenedStream, ref: ShardRef, last: int) -> Iterator[bytes]:
    t = 0
    while t < last:
        rows = [row for row in store.releases(ref, t, _ROWS_A_READ) if row.t <= last]
        yield from release_lines(opened, rows)
        t = rows[-1].t


@contextlib.contextmanager
def _reserved(path: Path) -> Iterator[IO[bytes] | None]:
    """The file that is there, locked against a sink that holds it; None where there is none."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        if not os.path.isdir(path.parent):
            raise InvalidParameter("output.releases", str(path), "a file in an existing folder") from None
        yield None
        return
    except OSError as error:
        raise InvalidParameter("output.releases", str(path), f"a readable file ({error.strerror})") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise _held_by_another(path) from None
        if not stands_at(path, file):  # another `publish` has just replaced it
            raise _held_by_another(path)
        yield file


def _refuse_rollback(old: IO[bytes] | None, opened: OpenedStream, t: int, path: Path) -> None:
    """A line for a later tick than the ledger's is proof that an older ledger was put back."""
    for line in old or ():
        try:
            release = Release.decode(line)
        except InvalidParameter:
            continue  # the header, or a torn line
        mine = (release.stream, release.incarnation) == (opened.name, opened.incarnation)
        if mine and isinstance(release.t, int) and release.t > t:
            raise IntegrityError(
                f"{path} holds tick {release.t}, the ledger ends at {t}: an older ledger was put back"
            )


def _compare(old: IO[bytes] | None, new: Path) -> tuple[bool, bool]:
    """(the old file is the new one, it is the new one or a beginning of it)."""
    if old is None:
        return False, True
    old.seek(0)
    with new.open("rb") as file:
        while True:
            theirs = old.read(1 << 20)
            ours = file.read(len(theirs) or 1)
            if not theirs:
                return not ours, True
            if ours != theirs:
                return False, False
