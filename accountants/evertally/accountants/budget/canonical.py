"""Canonical JSON: one text for one value, so that digests and idempotency keys bind to content."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Final

from evertally.errors import InvalidParameter

__all__ = ["canonical_json", "is_name", "is_storable", "name", "plain_json"]

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}", re.ASCII)
_UNSTORABLE: Final = re.compile("[\x00\ud800-\udfff]")
_DEPTH: Final = 16
_ENCODE: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode


def canonical_json(field: str, value: object) -> str:
    """Sorted keys, no spaces, ASCII. Raises InvalidParameter for floats: write them as decimal text.

    >>> canonical_json("descriptor", {"b": [1, "x"], "a": None})
    '{"a":null,"b":[1,"x"]}'
    """
    return _ENCODE(_plain(field, value, 0))


def plain_json(value: Mapping[str, object] | list[object]) -> str:
    """The same text for a value that this package has made itself, or checked, from text and integers."""
    return _ENCODE(value)


def name(field: str, value: object) -> str:
    """A name of 1 to 128 characters from letters, digits and ._:/- that starts with a letter or digit."""
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        got = value[:64] if isinstance(value, str) else value
        raise InvalidParameter(field, got, "1 to 128 letters, digits or ._:/-, a letter or digit first")
    return value


def is_name(value: str) -> bool:
    """Whether this is such a name; what is none names nothing in a ledger."""
    return _NAME.fullmatch(value) is not None


def is_storable(value: object) -> bool:
    """Whether this is text that each database holds: not NUL, no half of a surrogate pair."""
    return isinstance(value, str) and not _UNSTORABLE.search(value)


def _plain(field: str, value: object, depth: int) -> object:
    if depth > _DEPTH:
        raise InvalidParameter(field, "a deeper nesting", f"at most {_DEPTH} levels")
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise InvalidParameter(field, key, "text as a key")
        return {key: _plain(f"{field}.{key}", item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(f"{field}[{i}]", item, depth + 1) for i, item in enumerate(value)]
    raise InvalidParameter(field, value, "text, integers, booleans, null, lists and objects (no floats)")
