"""Dead letters: where an event that cannot be counted is noted. Operators' plane, never published.

A dead letter says where the event stood and why it was refused. It holds nothing of the event.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections import Counter
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import Self

from evertally.errors import InvalidParameter, ServiceUnavailable, StorageFull

__all__ = ["DeadLetterFile", "Reason"]


class Reason(Enum):
    """Why an event is not counted; the value is the code in the dead-letter line."""

    NOT_UTF8 = "not_utf8"
    LINE_TOO_LONG = "line_too_long"
    MALFORMED = "malformed"
    WRONG_COLUMN_COUNT = "wrong_column_count"
    TIMESTAMP_MISSING = "timestamp_missing"
    TIMESTAMP_WRONG_TYPE = "timestamp_wrong_type"
    TIMESTAMP_MALFORMED = "timestamp_malformed"
    TIMESTAMP_WITHOUT_OFFSET = "timestamp_without_offset"
    BEFORE_START = "before_start"
    IN_THE_FUTURE = "in_the_future"
    AT_OR_AFTER_END = "at_or_after_end"
    KEY_MISSING = "key_missing"
    KEY_WRONG_TYPE = "key_wrong_type"
    KEY_UNDECLARED = "key_undeclared"
    VALUE_MISSING = "value_missing"
    VALUE_WRONG_TYPE = "value_wrong_type"
    VALUE_MALFORMED = "value_malformed"
    VALUE_NOT_FINITE = "value_not_finite"
    VALUE_NEGATIVE = "value_negative"
    VALUE_TOO_LARGE = "value_too_large"
    UNIT_MISSING = "unit_missing"
    UNIT_WRONG_TYPE = "unit_wrong_type"
    RECORD_EMPTY = "record_empty"
    SCHEMA_UNKNOWN = "schema_unknown"


class DeadLetterFile:
    """A JSON-lines file, mode 0600, written anew by every run: {"line":3,"offset":97,"code":"malformed"}.

    `line` counts from 1 and `offset` is the line's first byte in the uncompressed input. One run writes
    it at a time: opening raises ServiceUnavailable while another does.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.counts: Counter[Reason] = Counter()
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            self._file = os.fdopen(os.open(path, flags, 0o600), "wb")
            if stat.S_ISREG(os.fstat(self._file.fileno()).st_mode):
                self._take()
        except BlockingIOError:
            raise ServiceUnavailable(
                f"{path} is being written by another run; wait for its end, or name another file"
            ) from None
        except OSError as error:
            raise InvalidParameter(
                "output.dead_letters", str(path), f"a writable file ({error.strerror})"
            ) from None

    def _take(self) -> None:
        """Empty a file that no other process writes: two runs would cut and overwrite each other's lines."""
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.fchmod(self._file.fileno(), 0o600)  # a file that was there keeps its mode otherwise
            self._file.truncate(0)
        except OSError:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def write(self, line: int, offset: int, reason: Reason) -> None:
        """Note one event. Raises StorageFull where it cannot be written."""
        self.counts[reason] += 1
        try:
            self._file.write(b'{"line":%d,"offset":%d,"code":"%s"}\n' % (line, offset, reason.value.encode()))
        except OSError as failure:
            raise self._full(failure) from None

    def close(self) -> None:
        """Write out what is buffered and close. Raises StorageFull where it cannot be written."""
        try:
            self._file.close()
        except OSError as failure:
            raise self._full(failure) from None

    def _full(self, failure: OSError) -> StorageFull:
        name = errno.errorcode.get(failure.errno or 0, "EIO")
        return StorageFull(f"{self._path}: a dead letter could not be written ({name})")
