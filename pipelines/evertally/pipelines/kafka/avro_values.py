"""Avro record values in Confluent framing: a zero byte, a 4-byte schema id, the body.

Schemas come from local files, declared with their ids; an id that is not declared is a dead letter.
"""

from __future__ import annotations

import datetime
import io
import json
import math
import struct
import uuid
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import fastavro

from evertally.errors import InvalidParameter
from evertally.pipelines.dead_letters import Reason
from evertally.pipelines.json_values import Number

__all__ = ["AvroDecoder"]

_FRAME: Final = struct.Struct(">BI")
_MAX_BYTES: Final = 1 << 20
_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


class AvroDecoder:
    """Decodes records of declared schemas. Calling it never raises on data."""

    def __init__(self, schemas: Mapping[int, Path]) -> None:
        """Parse the schemas. Raises InvalidParameter for a file that holds no record schema."""
        self._schemas: Final = {number: _load(number, path) for number, path in schemas.items()}

    def __call__(self, values: Sequence[bytes | None]) -> list[dict[str, Any] | Reason]:
        """The record in each value, or why there is none."""
        return [self._one(value) for value in values]

    def _one(self, value: bytes | None) -> dict[str, Any] | Reason:
        if value is None:
            return Reason.RECORD_EMPTY
        if len(value) < _FRAME.size or value[0] != 0:
            return Reason.MALFORMED
        if len(value) > _MAX_BYTES:
            return Reason.LINE_TOO_LONG
        schema = self._schemas.get(_FRAME.unpack_from(value)[1])
        if schema is None:
            return Reason.SCHEMA_UNKNOWN
        body = io.BytesIO(value)
        body.seek(_FRAME.size)
        try:
            record = fastavro.schemaless_reader(body, schema, None)
        except Exception:  # fastavro raises whatever the bytes lead it to; none may stop the stream
            return Reason.MALFORMED
        if body.tell() != len(value) or not isinstance(record, dict):
            return Reason.MALFORMED
        return {name: _plain(item) for name, item in record.items()}


def _plain(item: object) -> object:
    """Numbers as the text of their exact value, moments as epoch milliseconds, UUIDs as they are written.

    What else there is stays, and is judged by its type.
    """
    if isinstance(item, float):
        return Number(format(Decimal(item), "f") if math.isfinite(item) else str(item))
    if isinstance(item, Decimal):
        return Number(str(item))
    if isinstance(item, datetime.datetime) and item.tzinfo is not None:
        return (item - _EPOCH) // datetime.timedelta(milliseconds=1)
    return str(item) if isinstance(item, uuid.UUID) else item


def _load(number: int, path: Path) -> Any:
    expected = "a file with an Avro record schema"
    try:
        schema = fastavro.parse_schema(json.loads(path.read_text("utf-8")))
    except Exception:  # any failure to read a schema is the same mistake to its author
        raise InvalidParameter(f"source.schemas.{number}", str(path), expected) from None
    if not isinstance(schema, dict) or schema.get("type") != "record":
        raise InvalidParameter(f"source.schemas.{number}", str(path), expected)
    return schema
