"""The keys that aggregation needs, apart from the key file: an engine's worker holds no noise key.

Whoever starts a job derives them from the key file and writes them for the workers, mode 0600. Who reads
them can open closings and recognise units, but cannot draw noise.
"""

from __future__ import annotations

import hashlib
import os
import stat
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn, Self

from evertally.accountants.budget.ledger import OpenedStream
from evertally.durable import write_private
from evertally.errors import IntegrityError, InvalidParameter, StorageFull
from evertally.pipelines.keyfile import KeyFile

__all__ = ["AggregationKeys"]

_MAGIC: Final = b"evertally-aggregation-keys-1\n"
_BODY: Final = struct.Struct(">16sQ32s32s32s")
_CHECKSUM_BYTES: Final = 8
_SIZE: Final = len(_MAGIC) + _BODY.size + _CHECKSUM_BYTES


@dataclass(frozen=True, slots=True, repr=False)
class AggregationKeys:
    """Keys of one stream incarnation, for its aggregation alone.

    Attributes:
        stream_id, incarnation: of what they are keys.
        closing: seals closings and the job's state.
        unit: numbers privacy units.
        dead_letter: for HMACs of refused payloads.
    """

    stream_id: bytes
    incarnation: int
    closing: bytes
    unit: bytes
    dead_letter: bytes

    @classmethod
    def derive(cls, key_file: KeyFile, opened: OpenedStream) -> Self:
        """The keys of the running incarnation."""
        place = (opened.name, opened.stream_id, opened.incarnation)
        keys = [key_file.derive(label, *place) for label in ("closing", "unit", "dead-letter")]
        return cls(opened.stream_id, opened.incarnation, *keys)

    @staticmethod
    def beside(key_file: Path) -> Path:
        """Where they are written unless another place is said."""
        return key_file.with_name(key_file.name + ".aggregation")

    @classmethod
    def open(cls, path: Path) -> Self:
        """Read the file.

        Raises:
            InvalidParameter: not there, not a regular file, or readable by others than its owner.
            IntegrityError: its bytes are those of another file, or damaged.
        """
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            with os.fdopen(descriptor, "rb") as file:
                status = os.fstat(file.fileno())
                if not stat.S_ISREG(status.st_mode) or status.st_mode & 0o077:
                    raise InvalidParameter(
                        "aggregation keys", str(path), "a regular file of mode 0600 (chmod 600)"
                    )
                data = file.read(_SIZE + 1)
        except OSError as error:
            raise InvalidParameter(
                "aggregation keys", str(path), f"a file that the worker can read ({error.strerror})"
            ) from None
        body = data[len(_MAGIC) : -_CHECKSUM_BYTES]
        if len(data) != _SIZE or data != _MAGIC + body + _checksum(body):
            raise IntegrityError(f"{path} holds no aggregation keys, or is damaged")
        return cls(*_BODY.unpack(body))

    def write(self, path: Path) -> None:
        """Write the file, in place of an older one. Raises InvalidParameter, StorageFull."""
        body = _BODY.pack(self.stream_id, self.incarnation, self.closing, self.unit, self.dead_letter)
        try:
            write_private(path, _MAGIC + body + _checksum(body), os.replace)
        except FileNotFoundError:
            raise InvalidParameter("aggregation keys", str(path), "a path in an existing folder") from None
        except PermissionError:
            raise InvalidParameter("aggregation keys", str(path), "a path in a writable folder") from None
        except OSError as error:
            raise StorageFull(f"the aggregation keys could not be written: {error.strerror}") from None

    def __repr__(self) -> str:
        return f"AggregationKeys(incarnation={self.incarnation}, <secret>)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("aggregation keys are not pickled; pass their path")


def _checksum(body: bytes) -> bytes:
    return hashlib.sha256(_MAGIC + body).digest()[:_CHECKSUM_BYTES]
