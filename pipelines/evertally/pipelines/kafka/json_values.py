"""JSON record values: one object a record, UTF-8. A value that is not one becomes a refusal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from evertally.pipelines.dead_letters import Reason
from evertally.pipelines.local.jsonl_source import _DECODER, _SCAN  # the one JSON dialect of this package

__all__ = ["decode_json"]

_MAX_BYTES: Final = 1 << 20
_Scan = Callable[[str, int], tuple[Any, int]]


def decode_json(values: Sequence[bytes | None]) -> list[dict[str, Any] | Reason]:
    """The object in each value, or why there is none. Never raises on data.

    >>> decode_json([b'{"key": 1}', b"[]", None])
    [{'key': 1}, <Reason.MALFORMED: 'malformed'>, <Reason.VALUE_ABSENT: 'value_absent'>]
    """
    objects = _all_good(values)
    return [_one(value) for value in values] if objects is None else objects


def _all_good(values: Sequence[bytes | None]) -> list[dict[str, Any] | Reason] | None:
    """All objects, where every value is exactly one on one line; None where any is not."""
    try:
        lines = b"\n".join(values).decode().split("\n")  # type: ignore[arg-type]  # None is the TypeError below
    except (TypeError, UnicodeDecodeError):
        return None
    if len(lines) != len(values) or len(max(lines, key=len)) > _MAX_BYTES:
        return None
    scan: _Scan = _SCAN
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
        return Reason.VALUE_ABSENT
    if len(value) > _MAX_BYTES:
        return Reason.LINE_TOO_LONG
    try:
        item = _DECODER.decode(value.decode())
    except UnicodeDecodeError:
        return Reason.NOT_UTF8
    except (ValueError, RecursionError):
        return Reason.MALFORMED
    return item if isinstance(item, dict) else Reason.MALFORMED


