"""Making a new file and its name durable: a file that is fsynced may still lose its name at a power cut."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

__all__ = ["sync_file", "sync_folder", "write_private"]


def sync_file(path: Path) -> None:
    """Fsync a file that was written and closed. Raises OSError."""
    _sync(path, os.O_CLOEXEC)


def sync_folder(folder: Path) -> None:
    """Fsync a folder, so that the names in it survive a power cut. Raises OSError."""
    _sync(folder, os.O_CLOEXEC | os.O_DIRECTORY)


def write_private(path: Path, data: bytes, put: Callable[[Path, Path], object]) -> None:
    """Make a durable file that only its owner can read; nobody ever sees a part of it under its name.

    Args:
        path: its name.
        data: all of it.
        put: gives the written file its name: `os.link` fails where the path exists, `os.replace` does not.

    Raises OSError.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        put(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, os.O_RDONLY | flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
