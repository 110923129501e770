"""The dialect of JSON in which events come, from files and from topics alike: one object an event, UTF-8.

Numbers that are no integers keep their text, so that no digit is lost to a float. What is not an object
is a refusal with its reason; nothing here raises on data.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from evertally.pipelines.dead_letters import Reason
from evertally.pipelines.raw_records import Field, Mark

__all__ = ["Number", "decode_json", "numbers", "object_or_reason", "objects_of_lines", "scan", "texts"]

_RECORD_BYTES_MAX: Final = 1 << 20
_INTEGER_DIGITS_MAX: Final = 1000


class Number(str):
    """The text of a number that is not an integer: no digit of it is lost to a float."""

    __slots__ = ()


def _integer(digits: str) -> int | Number:
    """An integer; as its text where it is longer than Python would read."""
    return int(digits) if len(digits) <= _INTEGER_DIGITS_MAX else Number(digits)


_DECODER: Final = json.JSONDecoder(parse_float=Number, parse_constant=Number)
_ANY_LENGTH: Final = json.JSONDecoder(parse_float=Number, parse_int=_integer, parse_constant=Number)
scan: Final[Callable[[str, int], tuple[Any, int]]] = _DECODER.scan_once  # type: ignore[attr-defined]  # typeshed leaves it out
"""The value that begins at an index, and where it ends."""


def decode_json(values: Sequence[bytes | None]) -> list[dict[str, Any] | Reason]:
    """The object in each record's value, or why there is none.

    >>> decode_json([b'{"key": 1}', b"[]", None])
    [{'key': 1}, <Reason.MALFORMED: 'malformed'>, <Reason.RECORD_EMPTY: 'record_empty'>]
    """
    objects = _one_a_line(values)
    if objects is not None:
        return [*objects]
    return [
        Reason.RECORD_EMPTY if value is None else object_or_reason(value, _RECORD_BYTES_MAX)
        for value in values
    ]


def _one_a_line(values: Sequence[bytes | None]) -> list[dict[str, Any]] | None:
    """All objects, where every value is exactly one on one line; None where any is not."""
    try:
        lines = b"\n".join(values).decode().split("\n")  # type: ignore[arg-type]  # None is the TypeError below
    except (TypeError, UnicodeDecodeError):
        return None
    if len(lines) != len(values) or len(max(lines, key=len)) > _RECORD_BYTES_MAX:
        return None
    return objects_of_lines(lines)


def object_or_reason(text: bytes, longest: int) -> dict[str, Any] | Reason:
    """The object in a text of at most `longest` bytes, or why there is none.

    This is the meaning of a text; `objects_of_lines` is only a faster way there.

    >>> object_or_reason(b'{"v": 1.10}', 100), object_or_reason(b"[]", 100)
    ({'v': '1.10'}, <Reason.MALFORMED: 'malformed'>)
    """
    if len(text) > longest:
        return Reason.LINE_TOO_LONG
    try:
        line = text.decode()
    except UnicodeDecodeError:
        return Reason.NOT_UTF8
    for decoder in (_DECODER, _ANY_LENGTH):  # the first is faster, and has a limit of its own on digits
        try:
            item = decoder.decode(line)
        except (ValueError, RecursionError):  # deep nesting included
            continue
        return item if isinstance(item, dict) else Reason.MALFORMED
    return Reason.MALFORMED


def objects_of_lines(lines: Iterable[str]) -> list[dict[str, Any]] | None:
    """All objects, where every line is exactly one without space around; None where any is not."""
    objects = []
    try:
        for line in lines:
            item, end = scan(line, 0)
            if end != len(line) or item.__class__ is not dict:
                return None
            objects.append(item)
    except (ValueError, StopIteration, RecursionError):
        return None
    return objects


def texts(items: list[Any]) -> Sequence[Field]:
    """Names and times: strings, or integers as their digits."""
    if set(map(type, items)) <= {str}:
        return items
    return [item if type(item) is str else _text(item) for item in items]


def numbers(items: list[Any]) -> Sequence[Field]:
    """Values: numbers as their text; a string is not a number."""
    return [_number(item) for item in items]


def _text(item: object) -> Field:
    if item is None:
        return Mark.MISSING
    return str(item) if type(item) is int else Mark.WRONG_TYPE


def _number(item: object) -> Field:
    if type(item) is int:
        return str(item)
    if type(item) is Number:
        return str(item)
    return Mark.MISSING if item is None else Mark.WRONG_TYPE
