"""The key file: one secret from which all keys of a deployment are derived.

32 random bytes behind a magic and a checksum, readable by their owner alone. Who reads it can remove
all noise, past and future: it is as sensitive as the raw data. Keys for noise, sealing, unit ids and
input chains are separate HKDF labels of it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import struct
from pathlib import Path
from typing import Final, NoReturn, Self

from evertally.counters.keys import NoiseKey, derive_key
from evertally.durable import write_private
from evertally.errors import IntegrityError, InvalidParameter, StorageFull
from evertally.validation import one_of

__all__ = ["KeyFile"]

_MAGIC: Final = b"evertally-key-1\n"
_SECRET_BYTES: Final = 32
_CHECKSUM_BYTES: Final = 8
_LABELS: Final = ("seal", "closing", "unit", "chain", "dead-letter", "ledger")


class KeyFile:
    """The master secret in memory; its repr is redacted and it refuses pickling."""

    __slots__ = ("_secret", "path")

    def __init__(self, path: Path, secret: bytes) -> None:
        self.path: Final = path
        self._secret: Final = secret

    @classmethod
    def open_or_create(cls, path: Path) -> Self:
        """Open the key file, or make one with os.urandom, mode 0600, where there is none."""
        with contextlib.suppress(FileExistsError):
            return cls.create(path)
        return cls.open(path)

    @classmethod
    def create(cls, path: Path) -> Self:
        """Make a new key file. Raises FileExistsError where the path exists."""
        secret = os.urandom(_SECRET_BYTES)
        try:
            # a link fails where the path exists: two starters never use two secrets
            write_private(path, _MAGIC + secret + _checksum(secret), os.link)
        except FileExistsError:
            raise
        except FileNotFoundError:
            raise InvalidParameter("key_file", str(path), "a path in an existing folder") from None
        except PermissionError:
            raise InvalidParameter("key_file", str(path), "a path in a writable folder") from None
        except OSError as error:
            raise StorageFull(f"the key file could not be written: {error.strerror}") from None
        return cls(path, secret)

    @classmethod
    def open(cls, path: Path) -> Self:
        """Read a key file.

        Raises:
            InvalidParameter: not there, not a regular file, or readable by others than its owner.
            IntegrityError: its bytes are not those of a key file.
        """
        try:
            # a pipe in the key's place is refused below; without O_NONBLOCK opening it would wait for ever
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            with os.fdopen(descriptor, "rb") as file:
                status = os.fstat(file.fileno())
                if not stat.S_ISREG(status.st_mode):
                    raise InvalidParameter("key_file", str(path), "a regular file")
                if status.st_mode & 0o077:
                    mode = f"mode {stat.S_IMODE(status.st_mode):04o} of {path}"
                    raise InvalidParameter(
                        "key_file", mode, "mode 0600, since nobody else may read the key: chmod 600"
                    )
                data = file.read(len(_MAGIC) + _SECRET_BYTES + _CHECKSUM_BYTES + 1)
        except OSError as error:
            raise InvalidParameter("key_file", str(path), f"a readable file ({error.strerror})") from None
        secret = data[len(_MAGIC) : len(_MAGIC) + _SECRET_BYTES]
        if data != _MAGIC + secret + _checksum(secret) or len(secret) != _SECRET_BYTES:
            raise IntegrityError(f"{path} is not an evertally key file, or it is damaged")
        return cls(path, secret)

    def noise_key(self, stream: str, stream_id: bytes, incarnation: int) -> NoiseKey:
        """The noise key of one stream incarnation."""
        return NoiseKey(self._secret, stream=stream, stream_id=stream_id, incarnation=incarnation)

    def derive(self, label: str, stream: str, stream_id: bytes, incarnation: int) -> bytes:
        """32 bytes for one purpose of one stream incarnation.

        Args:
            label: "seal", "closing", "unit", "chain", "dead-letter" or "ledger".
            stream: the stream's name.
            stream_id: its 16 random bytes.
            incarnation: its incarnation.
        """
        tag = b"evertally/1/" + one_of("label", label, _LABELS).encode()
        return derive_key(self._secret, tag, stream.encode(), stream_id, struct.pack(">Q", incarnation))

    def __repr__(self) -> str:
        return f"KeyFile({str(self.path)!r}, <secret>)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a key file does not pickle; pass its path")


def _checksum(secret: bytes) -> bytes:
    """Tells a damaged file from a whole one; a hash of the secret under its own domain, cut to 64 bits."""
    return hashlib.sha256(b"evertally/1/key-file-checksum" + secret).digest()[:_CHECKSUM_BYTES]
