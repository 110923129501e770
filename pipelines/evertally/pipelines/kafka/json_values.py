"""JSON record values: one object a record, UTF-8. A value that is not one becomes a refusal."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, Final

from evertally.pipelines.dead_letters import Reason
from evertally.pipelines.events import Field, Mark

__all__ = ["Number", "decode_json", "numbers", "texts"]

_MAX_BYTES: Final = 1 << 20


class Number(str):
    """The text of a number that is not an integer: no digit of it is lost to a float."""

    __slots__ = ()


_DECODER: Final = json.JSONDecoder(parse_float=Number, parse_constant=Number)
_SCAN: Final[Callable[[str, int], tuple[Any, int]]] = _DECODER.scan_once  # type: ignore[attr-defined]  # typeshed leaves it out


def decode_json(values: Sequence[bytes | None]) -> list[dict[str, Any] | Reason]:
    """The object in each value, or why there is none. Never raises on data.

    >>> decode_json([b'{"key": 1}', b"[]", None])
    [{'key': 1}, <Reason.MALFORMED: 'malformed'>, <Reason.RECORD_EMPTY: 'record_empty'>]
    """
    objects = _all_good(values)
    return [_one(value) for value in values] if objects is None else objects


def texts(items: list[Any]) -> Sequence[Field]:
    """Names and times: strings, or integers as their digits."""
    if set(map(type, items)) <= {str}:
        return items
    return [item if type(item) is str else _text(item) for item in items]


def numbers(items: list[Any]) -> Sequence[Field]:
    """Values: numbers as their text; a string is not a number."""
    return [_number(item) for item in items]


def _all_good(values: Sequence[bytes | None]) -> list[dict[str, Any] | Reason] | None:
    """All objects, where every value is exactly one on one line; None where any is not."""
    try:
        lines = b"\n".join(values).decode().split("\n")  # type: ignore[arg-type]  # None is the TypeError below
    except (TypeError, UnicodeDecodeError):
        return None
    if len(lines) != len(values) or len(max(lines, key=len)) > _MAX_BYTES:
        return None
    scan = _SCAN
    objects: list[dict[str, Any] | Reason] = []
    try:
        for line in lines:
            item, end = scan(line, 0)
            if end != len(line) or item.__class__ is not dict:
                return None
            objects.append(item)
    except (ValueError, StopIteration, RecursionError):
        return None
    return objects


def _one(value: bytes | None) -> dict[str, Any] | Reason:
    if value is None:
        return Reason.RECORD_EMPTY
    if len(value) > _MAX_BYTES:
        return Reason.LINE_TOO_LONG
    try:
        item = _DECODER.decode(value.decode())
    except UnicodeDecodeError:
        return Reason.NOT_UTF8
    except (ValueError, RecursionError):  # deep nesting and integers of thousands of digits included
        return Reason.MALFORMED
    return item if isinstance(item, dict) else Reason.MALFORMED


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
