"""JSON-lines input: one object a line, UTF-8."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from evertally.pipelines.dead_letters import Reason
from evertally.pipelines.json_values import numbers, object_or_reason, objects_of_lines, scan, texts
from evertally.pipelines.local.lines import MAX_LINE_BYTES, LineBlock, LineReader
from evertally.pipelines.raw_records import FieldNames, RawBatch, Refusal

__all__ = ["JsonLinesSource"]

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
        kept: Sequence[int] | None = None
        refused: list[Refusal] = []
        if objects is None:
            objects, kept, refused = _line_by_line(block, lines)

        def position(row: int) -> tuple[int, int]:
            return block.position(row if kept is None else kept[row])

        names = self._fields
        return RawBatch(
            texts([item.get(names.timestamp) for item in objects]),
            texts([item.get(names.key) for item in objects]),
            None if names.value is None else numbers([item.get(names.value) for item in objects]),
            None if names.unit is None else texts([item.get(names.unit) for item in objects]),
            position,
            refused,
        )


def _whole_block(lines: list[bytes]) -> list[dict[str, Any]] | None:
    """All objects, where every line is exactly one object without space around; None where any is not."""
    if len(max(lines, key=len)) > MAX_LINE_BYTES:
        return None
    if (flat := _flat_block(b",\n".join(lines), len(lines))) is not None:
        return flat
    try:
        return objects_of_lines(b"\n".join(lines).decode().split("\n"))
    except UnicodeDecodeError:
        return None


def _flat_block(joined: bytes, rows: int) -> list[dict[str, Any]] | None:
    """All objects of lines joined to one array, read in one step; None unless each line is one object.

    No value can reach over a line's end: a string may hold no newline, within an object a comma is
    followed by a string and not by the brace each line begins with, and there are no arrays.
    """
    if b"[" in joined or not joined.startswith(b"{") or joined.count(b"\n{") != rows - 1:
        return None
    try:
        text = f"[{joined.decode()}]"
        objects, end = scan(text, 0)
    except (ValueError, StopIteration, RecursionError):
        return None
    return objects if end == len(text) and len(objects) == rows else None


def _line_by_line(
    block: LineBlock, lines: list[bytes]
) -> tuple[list[dict[str, Any]], list[int], list[Refusal]]:
    """The meaning of a block: each line on its own. `_whole_block` is only a faster way there."""
    objects: list[dict[str, Any]] = []
    kept: list[int] = []
    refused: list[Refusal] = []
    for number, line in enumerate(lines):
        if not line.strip(b" \t\r"):
            continue
        item = object_or_reason(line, MAX_LINE_BYTES)
        if isinstance(item, Reason):
            refused.append((*block.position(number), item))
        else:
            objects.append(item)
            kept.append(number)
    return objects, kept, refused
