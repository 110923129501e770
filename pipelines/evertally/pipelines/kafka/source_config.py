"""The form of the events on the topic: format, fields, value rule. All public and declared."""

from __future__ import annotations

import datetime
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from evertally.pipelines.config_parts import EVENT, read_value_rule
from evertally.pipelines.config_table import ConfigTable, Mistakes
from evertally.pipelines.events import ValueRule
from evertally.pipelines.timestamps import load_timezone

__all__ = ["FORMATS", "EventFormat", "read_format"]

FORMATS: Final = ("json", "avro")
_SCHEMA_ID: Final = re.compile(r"[0-9]{1,10}", re.ASCII)


@dataclass(frozen=True, slots=True)
class EventFormat:
    """How a record's value becomes an event.

    Attributes:
        format: "json", or "avro" in Confluent framing (a zero byte, a 4-byte schema id, the body).
        key, value, unit, timestamp: names of fields; value None counts 1 an event, timestamp None is
            the time of arrival, unit None is event level.
        timezone: what a time stamp without an offset means, None to refuse it.
        rule: how a value becomes an integer contribution.
        schemas: Avro only: schema id to its file.
    """

    format: str
    key: str
    value: str | None
    unit: str | None
    timestamp: str | None
    timezone: datetime.tzinfo | None
    rule: ValueRule
    schemas: Mapping[int, Path] = field(default_factory=dict)


def read_format(
    source: ConfigTable,
    folder: Path,
    unit: str,
    bounds: tuple[int, int],
    mistakes: Mistakes,
    *,
    by_arrival: bool,
) -> EventFormat | None:
    """The table [source]; `bounds` are the lower and upper end of one contribution."""
    form = source.choice("format", FORMATS, "json")
    key = source.text("key", "the field with the event's key")
    value = source.text("value", "the field with the event's value", required=False)
    unit_field = source.text("unit", "the field that identifies the privacy unit", required=unit != EVENT)
    timestamp = source.text("timestamp", "the field with the event's time", required=not by_arrival)
    if unit_field is not None and unit == EVENT:
        mistakes.add("source.unit", unit_field, "no such field where privacy.unit is event")
    if timestamp is not None and by_arrival:
        mistakes.add("source.timestamp", timestamp, "no such field where stream.closing is arrival")
    zone_name = source.text("timezone", "an IANA time zone", required=False)
    zone = None if zone_name is None else mistakes.attempt(lambda: load_timezone(zone_name))
    rule = read_value_rule(source, value, bounds, mistakes)
    schemas = _schemas(source, folder, form, mistakes)
    if key is None or rule is None:
        return None
    return EventFormat(form, key, value, unit_field, timestamp, zone, rule, schemas)


def _schemas(source: ConfigTable, folder: Path, form: str, mistakes: Mistakes) -> dict[int, Path]:
    expected = 'a table from schema id to file, for example { 7 = "event.avsc" }'
    table = source.raw("schemas", expected, required=form == "avro")
    if table is None:
        return {}
    if form != "avro":
        mistakes.add("source.schemas", "a table", "no such key where source.format is json")
        return {}
    if not isinstance(table, dict) or not table:
        mistakes.add("source.schemas", table, expected)
        return {}
    schemas = {}
    for number, file in table.items():
        if not _SCHEMA_ID.fullmatch(number) or not isinstance(file, str) or not os.path.isfile(folder / file):
            mistakes.add(f"source.schemas.{number}", file, "a numeric schema id and a readable file")
        else:
            schemas[int(number)] = folder / file
    return schemas
