"""Coefficients on disk: checksummed, versioned, written atomically, and never needed.

A file that is missing, damaged, too short or owned by somebody else is recomputed; a directory that
cannot be written costs time and nothing else. Coefficients are public numbers.
"""

from __future__ import annotations

import hashlib
import os
import struct
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

__all__ = ["cache_directory", "cached_coefficients"]

_MAGIC: Final = b"EVTALCO1"
_VERSION: Final = 1  # of the algorithm: raise it when the coefficients' last bits change
_HEADER: Final = struct.Struct("<8sIQ32s")
_SMALLEST_STORED: Final = 1 << 14  # below this computing is as fast as reading


def cache_directory() -> Path | None:
    """$EVERTALLY_CACHE, else $XDG_CACHE_HOME/evertally, else ~/.cache/evertally; None without a home."""
    own = os.environ.get("EVERTALLY_CACHE")
    if own:
        return Path(own)
    xdg = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(xdg) if xdg else Path("~/.cache").expanduser()) / "evertally"
    except RuntimeError:  # no HOME, and a user that the system does not know, as in many containers
        return None


def cached_coefficients(
    name: str, n: int, compute: Callable[[int], NDArray[np.float64]]
) -> NDArray[np.float64]:
    """First `n` coefficients of the series called `name`, read from disk or computed and stored.

    Args:
        name: canonical text of everything the coefficients depend on.
        n: how many, at least 1.
        compute: gives coefficients 0 .. m-1, a prefix of those for any larger m.

    Returns:
        A read-only float64 array of shape (n,).
    """
    folder = cache_directory()
    if n < _SMALLEST_STORED or folder is None:
        return _frozen(compute(n))
    size = 1 << (n - 1).bit_length()  # one file a size: a short stream never reads a long file
    stem = hashlib.sha256(name.encode()).hexdigest()[:40]
    path = folder / f"{stem}-{size}.coefficients"
    found = _read(path, name, size)
    if found is None:
        found = compute(size)
        _write(path, name, found)
    return _frozen(found[:n])


def _frozen(x: NDArray[np.float64]) -> NDArray[np.float64]:
    x.setflags(write=False)
    return x


def _digest(name: str, payload: bytes | memoryview) -> bytes:
    text = name.encode()
    h = hashlib.sha256(struct.pack("<IQ", _VERSION, len(text)))
    h.update(text)
    h.update(payload)
    return h.digest()


def _read(path: Path, name: str, size: int) -> NDArray[np.float64] | None:
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_uid not in {os.getuid(), 0}:
                return None
            blob = file.read()
    except OSError:
        return None
    if len(blob) < _HEADER.size:
        return None
    magic, version, count, digest = _HEADER.unpack_from(blob)
    payload = memoryview(blob)[_HEADER.size :]
    if magic != _MAGIC or version != _VERSION or len(payload) != 8 * count or count != size:
        return None
    if _digest(name, payload) != digest:
        return None
    return np.frombuffer(payload, dtype="<f8").astype(np.float64, copy=False)


def _write(path: Path, name: str, coefficients: NDArray[np.float64]) -> None:
    payload = coefficients.astype("<f8").tobytes()
    header = _HEADER.pack(_MAGIC, _VERSION, len(coefficients), _digest(name, payload))
    temporary = None
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=".", suffix=".tmp", dir=path.parent)
        with os.fdopen(handle, "wb") as file:
            file.write(header)
            file.write(payload)
        os.replace(temporary, path)
    except OSError:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
