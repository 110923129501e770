"""JSON-lines input: one object a line, UTF-8."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from evertally.pipelines.dead_letters import Reason
from evertally.pipelines.events import Field, Mark, RawBatch, Refusal
from evertally.pipelines.local.csv_source import FieldNames
from evertally.pipelines.local.lines import MAX_LINE_BYTES, LineBlock, LineReader

__all__ = ["JsonLinesSource"]


class _Number(str):
    """The text of a JSON number that is not an integer: no digit of it is lost to a float."""

    __slots__ = ()


_DECODER: Final = json.JSONDecoder(parse_float=_Number, parse_constant=_Number)
_Scan = Callable[[str, int], tuple[Any, int]]
_SCAN: Final[_Scan] = _DECODER.scan_once  # type: ignore[attr-defined]  # typeshed leaves it out
_BOM: Final = b"\xef\xbb\xbf"


class JsonLinesSource:
    """Reads events from JSON objects. Where a name stands twice in an object the last one counts."""

    def __init__(self, reader: LineReader, fields: FieldNames) -> None:
        self._reader = reader
        self._fields = fields

    def position(self) -> bytes:
        """Digest of the input read so far."""
        return self._reader.digest()

    def batches(self) -> Iterator[RawBatch]:
        """The objects of the input. Raises InvalidParameter for an input that cannot be used at all."""
        for block in self._reader.blocks():
            yield self._batch(block)

    def _batch(self, block: LineBlock) -> RawBatch:
        lines = block.lines
        if block.first_line == 1:
            lines = [lines[0].removeprefix(_BOM), *lines[1:]]
        objects = _whole_block(lines)
        numbers: Sequence[int] | None = None
        refused: list[Refusal] = []
        if objects is None:
            objects, numbers, refused = _line_by_line(block, lines)

        def position(row: int) -> tuple[int, int]:
            return block.position(row if numbers is None else numbers[row])

        names = self._fields
        return RawBatch(
            _texts([item.get(names.timestamp) for item in objects]),
            _texts([item.get(names.key) for item in objects]),
            None if names.value is None else _numbers([item.get(names.value) for item in objects]),
            None if names.unit is None else _texts([item.get(names.unit) for item in objects]),
            position,
            refused,
        )


def _whole_block(lines: list[bytes]) -> list[dict[str, Any]] | None:
    """All objects, where every line is exactly one object without space around; None where any is not."""
    if len(max(lines, key=len)) > MAX_LINE_BYTES:
        return None
    if (flat := _flat_block(b",\n".join(lines), len(lines))) is not None:
        return flat
    scan, objects = _SCAN, []
    try:
        for line in b"\n".join(lines).decode().split("\n"):
            item, end = scan(line, 0)
            if end != len(line) or item.__class__ is not dict:
                return None
            objects.append(item)
    except (ValueError, StopIteration, RecursionError):
        return None
    return objects


def _flat_block(joined: bytes, rows: int) -> list[dict[str, Any]] | None:
    """All objects of lines joined to one array, read in one step; None unless each line is one object.

    No value can reach over a line's end: a string may hold no newline, within an object a comma is
    followed by a string and not by the brace each line begins with, and there are no arrays.
    """
    if b"[" in joined or not joined.startswith(b"{") or joined.count(b"\n{") != rows - 1:
        return None
    try:
        text = f"[{joined.decode()}]"
        objects, end = _SCAN(text, 0)
    except (ValueError, StopIteration, RecursionError):
        return None
    return objects if end == len(text) and len(objects) == rows else None


def _line_by_line(
    block: LineBlock, lines: list[bytes]
) -> tuple[list[dict[str, Any]], list[int], list[Refusal]]:
    """The meaning of a block: each line on its own. `_whole_block` is only a faster way there."""
    objects: list[dict[str, Any]] = []
    numbers: list[int] = []
    refused: list[Refusal] = []
    for number, line in enumerate(lines):
        if not line.strip(b" \t\r"):
            continue
        item = _object_or_reason(line)
        if isinstance(item, Reason):
            refused.append((*block.position(number), item))
        else:
            objects.append(item)
            numbers.append(number)
    return objects, numbers, refused


def _object_or_reason(line: bytes) -> dict[str, Any] | Reason:
    if len(line) > MAX_LINE_BYTES:
        return Reason.LINE_TOO_LONG
    try:
        item = _DECODER.decode(line.decode())
    except UnicodeDecodeError:
        return Reason.NOT_UTF8
    except (ValueError, RecursionError):  # deep nesting and integers of thousands of digits included
        return Reason.MALFORMED
    return item if isinstance(item, dict) else Reason.MALFORMED


def _texts(items: list[Any]) -> Sequence[Field]:
    """Names and times: strings, or integers as their digits."""
    if set(map(type, items)) <= {str}:
        return items
    return [item if type(item) is str else _text(item) for item in items]


def _text(item: object) -> Field:
    if item is None:
        return Mark.MISSING
    return str(item) if type(item) is int else Mark.WRONG_TYPE


def _numbers(items: list[Any]) -> Sequence[Field]:
    """Values: JSON numbers as their text; a string is not a number."""
    return [_number(item) for item in items]


def _number(item: object) -> Field:
    if type(item) is int:
        return str(item)
    if type(item) is _Number:
        return str(item)
    return Mark.MISSING if item is None else Mark.WRONG_TYPE
