"""A disk that fails at its n-th operation, under SQLite and under the releases file of this process."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final, NoReturn

import apsw

from evertally.pipelines.sinks import FileSink

__all__ = ["STORAGE", "Disk", "DiskVfs", "die"]

STORAGE: Final = ("enospc", "eio", "read-only", "fsync error", "torn page", "power cut")
"""Kinds of trouble a disk has. The last two end the process: half of a write, or all that was not synced."""


def die() -> NoReturn:
    """kill -9 of this process."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


class Disk:
    """Counts what is written and synced, and fails from the n-th operation on.

    Args:
        kind: of `STORAGE`; "" for a good disk.
        at: which operation fails first, from 1.
    """

    def __init__(self, kind: str = "", at: int = 0) -> None:
        self.kind = kind
        self._left = at
        self._undo: dict[Path, list[tuple[int, bytes, int]]] = {}

    def due(self, operation: str) -> bool:
        """Count an operation; whether it fails."""
        if not self.kind or (self.kind == "fsync error") != (operation == "sync"):
            return False
        self._left -= 1
        return self._left <= 0

    def remember(self, path: Path, offset: int, length: int) -> None:
        """Keep what a write is going to replace, until it is synced."""
        if self.kind == "power cut":
            size = path.stat().st_size
            with path.open("rb") as file:
                file.seek(offset)
                self._undo.setdefault(path, []).append((offset, file.read(length), size))

    def synced(self, path: Path) -> None:
        """What was written is durable."""
        self._undo.pop(path, None)

    def cut(self) -> NoReturn:
        """The power fails: what was not synced never was."""
        for path, writes in self._undo.items():
            for offset, old, size in reversed(writes):
                with path.open("r+b") as file:
                    file.seek(offset)
                    file.write(old)
                    file.truncate(size)
        die()

    def sink(self, path: Path, header: bytes) -> FileSink:
        """A releases file on this disk."""
        sink = FileSink(path, header)
        sink._file = _Written(sink._file, path, self)  # type: ignore[assignment]  # stands for a file
        os.fsync = self._fsync(os.fsync, path)  # type: ignore[assignment]  # in this process alone
        return sink

    def _fsync(self, whole: Callable[[int], None], path: Path) -> Callable[[int], None]:
        def fsync(descriptor: int) -> None:
            if self.due("sync"):
                raise OSError(errno.EIO, "a seeded fault")
            whole(descriptor)
            if os.path.samestat(os.fstat(descriptor), path.stat()):
                self.synced(path)

        return fsync


class _Written:
    """A file whose writes reach the disk."""

    def __init__(self, file: Any, path: Path, disk: Disk) -> None:
        self._file, self._path, self._disk = file, path, disk

    def writelines(self, lines: Iterable[bytes]) -> None:
        """Write the lines, or half of them."""
        data = b"".join(lines)
        self._file.flush()
        self._disk.remember(self._path, self._file.tell(), len(data))
        if self._disk.due("write"):
            if self._disk.kind == "power cut":
                self._disk.cut()
            self._file.write(data[: len(data) // 2])
            self._file.flush()
            if self._disk.kind == "torn page":
                die()
            number = errno.EIO if self._disk.kind == "eio" else errno.ENOSPC
            raise OSError(number, "a seeded fault")
        self._file.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


_ERRORS: Final = {"enospc": apsw.FullError, "read-only": apsw.ReadOnlyError}


class _DiskFile(apsw.VFSFile):
    def __init__(self, disk: Disk, name: object, flags: list[int]) -> None:
        self._disk = disk
        self._path = Path(name.filename() if isinstance(name, apsw.URIFilename) else str(name))
        super().__init__("", name, flags)  # type: ignore[arg-type]  # handed through as received

    def xWrite(self, data: bytes, offset: int) -> None:
        if self._disk.due("write"):
            if self._disk.kind == "power cut":
                self._disk.cut()
            if self._disk.kind == "torn page":
                super().xWrite(data[: len(data) // 2], offset)
                die()
            raise _ERRORS.get(self._disk.kind, apsw.IOError)
        self._disk.remember(self._path, offset, len(data))
        super().xWrite(data, offset)

    def xSync(self, flags: int) -> None:
        if self._disk.due("sync"):
            raise apsw.IOError
        super().xSync(flags)
        self._disk.synced(self._path)


class DiskVfs(apsw.VFS):
    """SQLite's files on a disk; they are known by the name "disk"."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        super().__init__("disk", "", iVersion=1)

    def xOpen(self, name: object, flags: list[int]) -> _DiskFile:
        return _DiskFile(self._disk, name, flags)
