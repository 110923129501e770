"""Lines of a file or of standard input, plain or gzip, in blocks, up to a verified end."""

from __future__ import annotations

import functools
import gzip
import hashlib
import itertools
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final, NoReturn

from evertally.errors import InvalidParameter

__all__ = ["MAX_LINE_BYTES", "LineBlock", "LineReader"]

MAX_LINE_BYTES: Final = 131_072
_BLOCK_BYTES: Final = 1 << 17
_GZIP_MAGIC: Final = b"\x1f\x8b"
_PROBE_BYTES: Final = 4096
_CONTROL: Final = bytes(set(range(32)) - set(b"\t\n\r"))


class LineBlock:
    """Consecutive lines; one longer than MAX_LINE_BYTES may be cut and is to be refused by its length.

    Attributes:
        first_line: number of the first line, from 1.
        first_offset: its first byte in the uncompressed input.
        data: the lines, joined by newlines.
    """

    def __init__(self, first_line: int, first_offset: int, data: bytes) -> None:
        self.first_line: Final = first_line
        self.first_offset: Final = first_offset
        self.data: Final = data

    def __repr__(self) -> str:
        return f"LineBlock(first_line={self.first_line}, <redacted>)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("raw lines are not pickled")

    @functools.cached_property
    def lines(self) -> list[bytes]:
        """The lines, without their newline; there is always at least one."""
        return self.data.split(b"\n")

    @functools.cached_property
    def _starts(self) -> list[int]:
        return [0, *itertools.accumulate(len(line) + 1 for line in self.lines)]

    def position(self, row: int) -> tuple[int, int]:
        """Line number and byte offset, in the uncompressed input, of line `row` of this block."""
        return self.first_line + row, self.first_offset + self._starts[row]


class LineReader:
    """Reads an input once, from its start.

    Args:
        path: a file, plain or gzip (told by its first bytes); "-" is standard input.

    Raises:
        InvalidParameter: at construction, the file cannot be read; while iterating, it is empty, no
            text, a broken or truncated gzip, or reading failed. What came before is then not to be used.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._digest = hashlib.sha256()
        if path == "-" and sys.stdin is None:
            raise InvalidParameter("source.path", path, "an open standard input")
        try:
            self._file: BinaryIO = sys.stdin.buffer if path == "-" else Path(path).open("rb")  # noqa: SIM115 - closed at the end of blocks()
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "the path holds a NUL"
            raise InvalidParameter("source.path", path, f"a readable file ({reason})") from None

    def digest(self) -> bytes:
        """SHA-256 of the uncompressed bytes read so far."""
        return self._digest.digest()

    def blocks(self) -> Iterator[LineBlock]:
        """Every line in blocks of about 1 MiB; ends normally only after the verified end of the input."""
        try:
            yield from self._split(self._verified(self._file))
        except EOFError:
            raise InvalidParameter("source.path", self._path, "a complete gzip file; it ends early") from None
        except (gzip.BadGzipFile, zlib.error):
            # what these say may quote bytes of the input, or the checksum of what was counted
            raise InvalidParameter("source.path", self._path, "a complete gzip file; it is damaged") from None
        except OSError as error:
            raise InvalidParameter("source.path", self._path, f"a readable file ({error.strerror})") from None
        finally:
            if self._path != "-":
                self._file.close()

    def _verified(self, file: BinaryIO) -> Iterator[bytes]:
        """Uncompressed blocks. The gzip reader checks length and CRC of every member, the last included."""
        empty = InvalidParameter("source.path", self._path, "a file of at least one line; this one is empty")
        head = file.read(_PROBE_BYTES)
        if not head:
            raise empty
        stream = _Prefixed(head, file)
        source: _Prefixed | gzip.GzipFile = stream
        if head.startswith(_GZIP_MAGIC):
            source = gzip.GzipFile(fileobj=stream, mode="rb")  # type: ignore[call-overload]  # only read() is used
        elif self._path.endswith(".gz"):
            raise InvalidParameter("source.path", self._path, "a gzip file, as its name says")
        first = True
        while block := source.read(_BLOCK_BYTES):
            if first and _is_binary(block[:_PROBE_BYTES]):
                raise InvalidParameter("source.path", self._path, "a text file; this one is binary")
            first = False
            self._digest.update(block)
            yield block
        if first:
            raise empty

    @staticmethod
    def _split(blocks: Iterator[bytes]) -> Iterator[LineBlock]:
        line, offset, carry, dropped = 1, 0, b"", 0
        for block in blocks:
            text = block
            if (
                dropped and b"\n" in text
            ):  # an over-long line ends; it stands alone, so that offsets stay true
                rest, _, text = text.partition(b"\n")
                yield LineBlock(line, offset, carry)
                line, offset = line + 1, offset + len(carry) + dropped + len(rest) + 1
                carry, dropped = b"", 0
            head, newline, tail = text.rpartition(b"\n")
            if newline:
                whole = carry + head
                yield LineBlock(line, offset, whole)
                line, offset = line + whole.count(b"\n") + 1, offset + len(whole) + 1
                carry = tail
            else:
                carry += tail
                excess = max(0, len(carry) - MAX_LINE_BYTES - 1)
                carry, dropped = carry[: len(carry) - excess], dropped + excess
        if carry:
            yield LineBlock(line, offset, carry)


class _Prefixed:
    """A stream that gives back bytes already read from it; standard input cannot be rewound."""

    def __init__(self, head: bytes, file: BinaryIO) -> None:
        self._head = head
        self._file = file

    def read(self, size: int = -1) -> bytes:
        if self._head and size >= 0:
            part, self._head = self._head[:size], self._head[size:]
            return part
        return self._file.read(size)


def _is_binary(head: bytes) -> bool:
    """More than one control character in 20 bytes; a single stray one is a matter for a dead letter."""
    return 20 * (len(head) - len(head.translate(None, _CONTROL))) > len(head)
