"""Readers of events: files of CSV and JSON lines, plain and gzip, and records of JSON and Avro."""

from __future__ import annotations

import datetime
import gzip
import io
import json
import struct
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fastavro
from tests.fuzz.attack import Reader

from evertally.accountants.budget.scopes import Scope
from evertally.pipelines.bounding import UnitNumbers
from evertally.pipelines.events import EventParser, ValueRule
from evertally.pipelines.kafka.aggregation import TickRule
from evertally.pipelines.kafka.event_batches import EventReader
from evertally.pipelines.kafka.source_config import EventFormat
from evertally.pipelines.kafka.unit_events import unit_numbers
from evertally.pipelines.local.csv_source import CsvSource
from evertally.pipelines.local.jsonl_source import JsonLinesSource
from evertally.pipelines.local.lines import LineReader
from evertally.pipelines.raw_records import FieldNames
from evertally.pipelines.stream_spec import StreamSpec
from evertally.pipelines.ticks import TickGrid

START_MS = 1_704_067_200_000
FIELDS = FieldNames("at", "key", "amount", "who")
RULE = ValueRule(Decimal("0.01"), -500, 500)
CSV = (
    b"at,key,amount,who\n2024-01-01T00:00:01Z,a,1.25,p1\n2024-01-01T01:00:00+01:00,b,-3,p2\n",
    b'\xef\xbb\xbfat,key,amount,who\r\n1704067201000,"a",1e2,"p ""x"""\r\n\r\n1704067,c,0.005,\xc3\xa9\r\n',
    b"who,at,note,key,amount\n" + b"p,2024-01-01 00:00:05.123Z,,a,7\n" * 20,
)
JSON = (
    b'{"at":"2024-01-01T00:00:01Z","key":"a","amount":1.25,"who":"p1"}\n{"at":1704067201000,"key":"b","amount":3,"who":7}',
    b'{"key":"a","who":"\\u00e9","amount":-1e2,"at":"2024-01-01T02:00:00+02:00","more":{"x":[1,2,null]}}\n\n',
    b'{"at":"2024-01-01T00:00:01Z","key":"a","amount":0.004,"who":"p"}\n' * 20,
)
SCHEMA: dict[str, Any] = {
    "type": "record",
    "name": "Event",
    "fields": [
        {"name": "at", "type": ["null", "string", "long"]},
        {"name": "key", "type": ["null", "string"]},
        {"name": "amount", "type": ["double", "long", "null", "string"]},
        {"name": "who", "type": "string"},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "facts", "type": {"type": "map", "values": "bytes"}},
        {
            "name": "price",
            "type": ["null", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}],
        },
        {"name": "when", "type": ["null", {"type": "long", "logicalType": "timestamp-millis"}]},
    ],
}


def _parser() -> EventParser:
    grid = TickGrid(START_MS, 3_600_000, 24)
    return EventParser(grid, ("a", "b"), "b", datetime.UTC, RULE, UnitNumbers(bytes(32)))


def csv_lines(folder: Path) -> Reader:
    """A whole file of CSV, as `evertally run` reads it."""
    path, parser = folder / "events.csv", _parser()

    def read(data: bytes) -> None:
        path.write_bytes(data)
        for batch in CsvSource(LineReader(str(path)), FIELDS).batches():
            parser.parse(batch)

    return Reader((*CSV, gzip.compress(CSV[0], mtime=0)), read, text=True)


def json_lines(folder: Path) -> Reader:
    """A whole file of JSON lines."""
    path, parser = folder / "events.jsonl", _parser()

    def read(data: bytes) -> None:
        path.write_bytes(data)
        for batch in JsonLinesSource(LineReader(str(path)), FIELDS).batches():
            parser.parse(batch)

    return Reader((*JSON, gzip.compress(JSON[0], mtime=0)), read, text=True)


def _topic_reader(form: str, schemas: dict[int, Path], timestamp: str | None) -> EventReader:
    rule = TickRule(START_MS, 3_600_000, 0, None if timestamp is None else 60_000)
    spec = StreamSpec(
        name="s",
        keys=("a", "b"),
        start_ms=rule.start_ms,
        tick_ms=rule.tick_ms,
        scope=Scope("s", "person", "replace-value", 1.0, 1e-6),
        clip=500,
        lower=-500,
    )
    source = EventFormat(form, "key", "amount", "who", timestamp, datetime.UTC, RULE, schemas)
    return EventReader(spec, source, rule, "b", unit_numbers(bytes(32)))


def _take(reader: EventReader, values: list[bytes | None]) -> None:
    """A batch whose good records must come out whatever stands between them."""
    records = [SimpleNamespace(value=value, offset=row) for row, value in enumerate(values)]
    events, refusals = reader.read(0, records, START_MS + 10_000_000)
    reader.candidates(records, refusals)
    assert len(events.keys) >= 2, "a good record was lost to its neighbour"


def json_records(folder: Path) -> Reader:
    """A record of a topic between two good ones."""
    reader = _topic_reader("json", {}, "at")
    good = JSON[0].split(b"\n")[0]
    corpus = (good, JSON[1].strip(), b'{"at":"2024-01-01T00:00:00Z","key":"a","amount":1,"who":"w"}')
    return Reader(corpus, lambda data: _take(reader, [good, data, None, good]), text=True)


def avro_records(folder: Path) -> Reader:
    """A record of a topic between two good ones, in Confluent framing."""
    path = folder / "event.avsc"
    path.write_text(json.dumps(SCHEMA))
    schema = fastavro.parse_schema(SCHEMA)
    reader = _topic_reader("avro", {7: path}, None)
    rows: tuple[dict[str, Any], ...] = (
        {"at": None, "key": "a", "amount": 1.5, "who": "p", "tags": ["x", "y"], "facts": {"k": b"v"},
         "price": Decimal("1.25"), "when": 1_704_067_200_000},
        {"at": 1_704_067_200_000, "key": "b", "amount": 3, "who": "q", "tags": [], "facts": {}, "price": None,
         "when": None},
        {"at": "2024-01-01T00:00:00Z", "key": None, "amount": "x", "who": "", "tags": ["z" * 50], "facts": {},
         "price": None, "when": None},
    )  # fmt: skip
    corpus = []
    for row in rows:
        body = io.BytesIO()
        fastavro.schemaless_writer(body, schema, row)
        corpus.append(struct.pack(">BI", 0, 7) + body.getvalue())
    good = corpus[0]
    return Reader(corpus, lambda data: _take(reader, [good, data, None, good]), text=False)
