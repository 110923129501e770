"""Sinks: where released rows go. A sink sees bytes of the ledger's outbox only, never data.

A sink may be killed at any point. What it holds up to a mark is durable; what lies behind the mark
is written again from the ledger, byte for byte, by whoever holds the shard next.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import time
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Final, Protocol, Self

from evertally.durable import sync_folder
from evertally.errors import IntegrityError, InvalidParameter, ServiceUnavailable, StorageFull
from evertally.pipelines.releases import RELEASE_SCHEMA, Release, standing_header

__all__ = ["FileSink", "Sink", "stands_at"]

_TAIL_BYTES: Final = 1 << 17
_BEGINNING: Final = f'{{"schema":"{RELEASE_SCHEMA}"'.encode()
_REPLACED_S: Final = 10.0
_AGAIN_S: Final = 0.01
_AGAIN: Final = "`evertally ledger publish` writes it again"


class Sink(Protocol):
    """A place for released rows that can say how far it is durable."""

    def last_tick(self) -> int:
        """Tick of the last whole release the sink holds, 0 where it holds none.

        A ledger whose head lies behind it was rolled back: the releaser refuses to go on.
        """
        ...

    def rewind(self, mark: int) -> None:
        """Go on from `mark`, a value that `append` returned (0 at the beginning): nothing behind it counts.

        What is behind it may be a successor's, where this releaser was stopped and is fenced by now.

        Raises IntegrityError where the sink holds less than `mark` says.
        """
        ...

    def append(self, rows: Iterable[bytes]) -> int:
        """Write rows durably and return the new mark. Raises StorageFull where that fails."""
        ...


class FileSink:
    """A file of JSON lines, mode 0644: a header line, then releases. Its mark is its length in bytes."""

    def __init__(self, path: Path, header: bytes) -> None:
        self._path = path
        try:
            self._file = _held(path)
            self._header = standing_header(self._file.readline(_TAIL_BYTES + len(header)), header)
            sync_folder(path.parent)
        except OSError as error:
            raise InvalidParameter(
                "output.releases", str(path), f"a writable file ({error.strerror})"
            ) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def last_tick(self) -> int:
        """Tick of the last whole line; a torn last line counts for nothing."""
        size = self._file.seek(0, os.SEEK_END)
        self._file.seek(0)
        if size <= len(self._header) or self._file.read(len(self._header)) != self._header:
            return 0
        self._file.seek(max(len(self._header), size - _TAIL_BYTES))
        for line in reversed(self._file.read().split(b"\n")[:-1]):
            with contextlib.suppress(InvalidParameter):
                return Release.decode(line).t
        return 0

    def rewind(self, mark: int) -> None:
        """Go back to `mark` bytes; a file that is shorter, or is not this stream's, is refused.

        Nothing is cut: what is behind the mark is written over with the same bytes. A releaser that was
        stopped here and fenced meanwhile would otherwise take away what its successor has published.
        """
        size = self._file.seek(0, os.SEEK_END)
        if size < mark:
            raise IntegrityError(
                f"{self._path} is {size} bytes long, the ledger has published {mark}; {_AGAIN}"
            )
        self._file.seek(0)
        if mark and self._file.read(len(self._header)) != self._header:
            raise IntegrityError(f"{self._path} does not begin with the header of this stream; {_AGAIN}")
        if mark == 0 and size and not self._begins_like_ours(size):
            raise InvalidParameter("output.releases", str(self._path), "a new file, or this stream's own")
        self._file.seek(mark)

    def append(self, rows: Iterable[bytes]) -> int:
        """Write rows (before the first: the header), fsync, and return the length of the file."""
        try:
            if self._file.tell() == 0:
                self._file.write(self._header)
            self._file.writelines(rows)
            end = self._file.tell()
            if not _may_be_a_release(self._file.readline()):
                self._file.truncate(end)
            self._file.seek(end)
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            name = errno.errorcode.get(error.errno or 0, "EIO")
            raise StorageFull(f"{self._path}: a release could not be written ({name})") from None
        return self._file.tell()

    def close(self) -> None:
        """Close the file; what was appended is durable already."""
        with contextlib.suppress(OSError):  # of rows that could not be written: `append` has said so
            self._file.close()

    def _begins_like_ours(self, size: int) -> bool:
        """Whether an unmarked file holds a beginning of this stream's header or more: a run killed early."""
        self._file.seek(0)
        head = self._file.read(len(self._header))
        return head == self._header[: min(size, len(self._header))]


def _held(path: Path) -> BinaryIO:
    """The file that stands at the path, made where there is none, under a shared lock.

    Shared: fencing is the ledger's work; `publish_again` asks whether anyone has the file. While that puts
    another one in its place it is waited for, and what it has replaced is no file of the path any more.
    """
    deadline = time.monotonic() + _REPLACED_S
    while True:
        file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644), "r+b")
        try:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise InvalidParameter(
                    "output.releases", str(path), "a regular file, which can be cut and appended"
                )
            if _shared(file) and stands_at(path, file):
                return file
            if time.monotonic() >= deadline:
                raise ServiceUnavailable(f"{path} is being written by `evertally ledger publish`")
        except BaseException:
            file.close()
            raise
        file.close()
        time.sleep(_AGAIN_S)


def _shared(file: BinaryIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def stands_at(path: Path, file: BinaryIO) -> bool:
    """Whether an open file is still the one at the path."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


def _may_be_a_release(line: bytes) -> bool:
    """Whether a line behind ours may be another releaser's, whole or on its way; else a crash left it."""
    if not line.endswith(b"\n"):
        return line.startswith(_BEGINNING[: len(line)])
    try:
        Release.decode(line)
    except InvalidParameter:
        return False
    return True
