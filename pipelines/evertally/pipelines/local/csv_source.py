"""CSV input: a header line, then one event a line. Quoted fields may not contain line breaks.

A record is a line: a quote that is never closed costs its own line and no other one.
"""

from __future__ import annotations

import csv
import difflib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Final

import numpy as np

from evertally.errors import InvalidParameter
from evertally.pipelines.dead_letters import Reason
from evertally.pipelines.local.lines import MAX_LINE_BYTES, LineBlock, LineReader
from evertally.pipelines.raw_records import Column, FieldNames, RawBatch, Refusal
from evertally.pipelines.text_columns import PackedColumn

__all__ = ["CsvSource"]

_SPECIAL: Final = (b'"', b"\r", b"\0")


class CsvSource:
    """Reads events from CSV (RFC 4180, UTF-8, comma)."""

    def __init__(self, reader: LineReader, fields: FieldNames) -> None:
        self._reader = reader
        self._fields = fields

    def position(self) -> bytes:
        """Digest of the input read so far."""
        return self._reader.digest()

    def batches(self) -> Iterator[RawBatch]:
        """The records after the header. Raises InvalidParameter for an input that cannot be used at all."""
        columns: _Columns | None = None
        for block in self._reader.blocks():
            body = block
            if columns is None:
                columns = _Columns.of_header(block.lines[0], self._fields)
                _, newline, rest = block.data.partition(b"\n")
                if not newline:
                    continue
                body = LineBlock(2, len(block.data) - len(rest), rest)
            yield columns.batch(body)


@dataclass(frozen=True, slots=True)
class _Columns:
    """Width of a record and the indices of the used columns."""

    width: int
    timestamp: int
    key: int
    value: int | None
    unit: int | None

    @classmethod
    def of_header(cls, line: bytes, fields: FieldNames) -> _Columns:
        if len(line) > MAX_LINE_BYTES:
            raise InvalidParameter(
                "source.path", "a longer first line", f"at most {MAX_LINE_BYTES} bytes of it"
            )
        try:
            names = _record(line.removeprefix(b"\xef\xbb\xbf").decode())
        except (UnicodeDecodeError, csv.Error):
            raise InvalidParameter("source.path", "a first line that is no CSV header", "UTF-8 CSV") from None
        return cls(
            len(names),
            _index(names, "timestamp", fields.timestamp),
            _index(names, "key", fields.key),
            None if fields.value is None else _index(names, "value", fields.value),
            None if fields.unit is None else _index(names, "unit", fields.unit),
        )

    def batch(self, block: LineBlock) -> RawBatch:
        numbers: Sequence[int] | None = None
        refused: list[Refusal] = []
        column = _packed(block.data, self.width) or _whole_block(block.lines, self.width)
        if column is None:
            rows, numbers, refused = self._line_by_line(block)
            column = _column_of(rows)

        def position(row: int) -> tuple[int, int]:
            return block.position(row if numbers is None else numbers[row])

        return RawBatch(
            column(self.timestamp),
            column(self.key),
            None if self.value is None else column(self.value),
            None if self.unit is None else column(self.unit),
            position,
            refused,
        )

    def _line_by_line(self, block: LineBlock) -> tuple[list[list[str]], list[int], list[Refusal]]:
        """The meaning of a block: each line on its own. The two functions below are faster ways there."""
        rows: list[list[str]] = []
        numbers: list[int] = []
        refused: list[Refusal] = []
        for number, line in enumerate(block.lines):
            record = _record_or_reason(line, self.width)
            if isinstance(record, Reason):
                refused.append((*block.position(number), record))
            elif record:
                rows.append(record)
                numbers.append(number)
        return rows, numbers, refused


def _packed(data: bytes, width: int) -> Callable[[int], Column] | None:
    """The columns of a plain block: ASCII, no quote, every line one record. None for any other block."""
    if b"\r" in data:
        data = data.replace(b"\r\n", b"\n").removesuffix(b"\r")
    if width < 2 or not data.isascii() or any(special in data for special in _SPECIAL):
        return None
    block = np.frombuffer(data, np.uint8)
    separators = np.flatnonzero((block == ord(",")) | (block == ord("\n")))
    rows = data.count(b"\n") + 1
    if len(separators) != rows * width - 1:
        return None
    ends = np.append(separators, len(data)).reshape(rows, width)
    starts = np.concatenate(([0], separators + 1)).reshape(rows, width)
    if (block[ends[:-1, -1]] != ord("\n")).any() or (ends[:, -1] - starts[:, 0]).max() >= MAX_LINE_BYTES:
        return None
    return lambda index: PackedColumn(block, starts[:, index], ends[:, index] - starts[:, index])


def _whole_block(lines: list[bytes], width: int) -> Callable[[int], Column] | None:
    """The columns of a block in which every line is exactly one good record; None for any other."""
    if len(max(lines, key=len)) > MAX_LINE_BYTES:
        return None
    try:
        rows = list(csv.reader(b"\n".join(lines).decode().split("\n"), strict=True))
    except (UnicodeDecodeError, csv.Error):
        return None
    # as many records as lines: no quote reached over a line's end
    return _column_of(rows) if len(rows) == len(lines) and set(map(len, rows)) == {width} else None


def _column_of(rows: list[list[str]]) -> Callable[[int], Column]:
    return lambda index: list(map(itemgetter(index), rows))


def _record_or_reason(line: bytes, width: int) -> list[str] | Reason:
    if len(line) > MAX_LINE_BYTES:
        return Reason.LINE_TOO_LONG
    try:
        record = _record(line.decode())
    except UnicodeDecodeError:
        return Reason.NOT_UTF8
    except csv.Error:
        return Reason.MALFORMED
    return record if len(record) in (0, width) else Reason.WRONG_COLUMN_COUNT


def _record(text: str) -> list[str]:
    """One line's fields; none for a blank line."""
    return next(csv.reader([text], strict=True), [])


def _index(names: list[str], role: str, name: str) -> int:
    if names.count(name) != 1:
        # only names like this one are shown: the first line of a file without a header is somebody's data
        near = difflib.get_close_matches(name, names, 3)
        expected = "a column that stands once in the first line"
        if near and name not in names:
            expected += f"; did you mean {' or '.join(near)}?"
        raise InvalidParameter(f"source.{role}", name, expected)
    return names.index(name)
