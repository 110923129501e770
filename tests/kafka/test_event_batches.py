"""Decoding and checking record values: the whole matrix of what can be wrong, without a broker."""

from __future__ import annotations

import io
import json
import struct
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fastavro
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evertally.accountants.budget.scopes import Scope
from evertally.errors import InvalidParameter
from evertally.pipelines.dead_letters import Reason
from evertally.pipelines.events import ValueRule
from evertally.pipelines.json_values import decode_json
from evertally.pipelines.kafka.aggregation import TickRule
from evertally.pipelines.kafka.avro_values import AvroDecoder
from evertally.pipelines.kafka.event_batches import EventReader, dead_letter
from evertally.pipelines.kafka.source_config import EventFormat
from evertally.pipelines.stream_spec import StreamSpec

NOW = 1_000_000_000_000
SCHEMA: dict[str, Any] = {
    "type": "record",
    "name": "Event",
    "fields": [
        {"name": "k", "type": ["null", "string"]},
        {"name": "v", "type": ["double", "long", "null", "string"]},
    ],
}


def make_reader(
    *,
    form: str = "json",
    timestamp: str | None = None,
    other: str | None = None,
    schemas: dict[int, Path] | None = None,
    value: str | None = "v",
    adjacency: str = "add-remove",
) -> EventReader:
    rule = TickRule(NOW - 10_000, 1000, 0, None if timestamp is None else 5000)
    spec = StreamSpec(
        name="s",
        keys=("a", "b"),
        start_ms=rule.start_ms,
        tick_ms=1000,
        scope=Scope("s", "event", adjacency, 1.0, 1e-6),
        clip=1000,
    )
    source = EventFormat(
        form, "k", value, None, timestamp, None, ValueRule(Decimal("0.01"), 0, 1000), schemas or {}
    )
    return EventReader(spec, source, rule, other, len)


def read(reader: EventReader, *values: bytes | None) -> tuple[list[int], list[int], list[tuple[int, Reason]]]:
    records = [SimpleNamespace(value=value, offset=50 + row) for row, value in enumerate(values)]
    events, refusals = reader.read(3, records, NOW)
    amounts = [] if events.values is None else events.values.tolist()
    assert all(partition == 3 for partition, _, _ in refusals)
    return events.keys.tolist(), amounts, [(offset, reason) for _, offset, reason in refusals]


GOOD = b'{"k": "a", "v": 1.25}'
BAD = [
    (b"\xff\xfe", Reason.NOT_UTF8),
    (b"", Reason.MALFORMED),
    (b"not json", Reason.MALFORMED),
    (b"[1, 2]", Reason.MALFORMED),
    (b'"text"', Reason.MALFORMED),
    (b'{"k": "a", "v": 1', Reason.MALFORMED),
    (b'{"k": "a", "v": 1} {}', Reason.MALFORMED),
    (b"[" * 100_000, Reason.MALFORMED),
    (b'{"k": "a", "v": ' + b"9" * 10_000 + b"}", Reason.VALUE_TOO_LARGE),
    (b'{"v": 1, "k": ' + b"9" * 10_000 + b"}", Reason.KEY_WRONG_TYPE),
    (b"{" + b" " * (1 << 20) + b"}", Reason.LINE_TOO_LONG),
    (None, Reason.RECORD_EMPTY),
    (b'{"v": 1}', Reason.KEY_MISSING),
    (b'{"k": null, "v": 1}', Reason.KEY_MISSING),
    (b'{"k": {"x": 1}, "v": 1}', Reason.KEY_WRONG_TYPE),
    (b'{"k": true, "v": 1}', Reason.KEY_WRONG_TYPE),
    (b'{"k": 1.5, "v": 1}', Reason.KEY_WRONG_TYPE),
    (b'{"k": "zzz", "v": 1}', Reason.KEY_UNDECLARED),
    (b'{"k": "a"}', Reason.VALUE_MISSING),
    (b'{"k": "a", "v": "1"}', Reason.VALUE_WRONG_TYPE),
    (b'{"k": "a", "v": true}', Reason.VALUE_WRONG_TYPE),
    (b'{"k": "a", "v": [1]}', Reason.VALUE_WRONG_TYPE),
    (b'{"k": "a", "v": NaN}', Reason.VALUE_NOT_FINITE),
    (b'{"k": "a", "v": Infinity}', Reason.VALUE_NOT_FINITE),
    (b'{"k": "a", "v": -Infinity}', Reason.VALUE_NOT_FINITE),
    (b'{"k": "a", "v": -1}', Reason.VALUE_NEGATIVE),
    (b'{"k": "a", "v": 1e400}', Reason.VALUE_TOO_LARGE),
    (b'{"k": "a", "v": 99999999999999999999999}', Reason.VALUE_TOO_LARGE),
]


@pytest.mark.parametrize("value", ["2", "null", "NaN", "1e999999", "9" * 5000, "-" + "9" * 100_000])
def test_no_value_takes_its_event_away_where_values_are_replaced(value: str) -> None:
    """Adjacency "replace-value": without its place, the unit's other events would count in its stead."""
    reader = make_reader(adjacency="replace-value")
    keys, amounts, _ = read(reader, GOOD, f'{{"k": "b", "v": {value}}}'.encode())
    assert keys == [0, 1]
    assert amounts == [125, 200 if value == "2" else 0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("value", "reason"), BAD, ids=lambda item: item.value if isinstance(item, Reason) else ""
)
def test_a_poison_record_in_the_middle_of_a_batch(value: bytes | None, reason: Reason) -> None:
    """It becomes a dead letter with its offset; its neighbours are counted; nothing is raised.

    kafka-python#1141, #545; insights-rbac#2955: deserializer errors are swallowed, bypass the dead letters.
    """
    keys, amounts, refusals = read(make_reader(), GOOD, value, GOOD)
    assert (keys, amounts) == ([0, 0], [125, 125])
    assert refusals == [(51, reason)]


@pytest.mark.slow
def test_values_are_clipped_and_the_other_bucket_takes_undeclared_keys() -> None:
    keys, amounts, refusals = read(
        make_reader(other="b"), b'{"k": "zzz", "v": 3}', b'{"k": "a", "v": 1e6}', b'{"k": "a", "v": 0.005}'
    )
    assert (keys, amounts, refusals) == ([1, 0, 0], [300, 1000, 0], [])


def test_stamps_far_in_the_future_are_refused() -> None:
    """sql-flow#358: one event with a future stamp makes all others late."""
    values = [
        json.dumps({"k": "a", "v": 1, "t": stamp}).encode()
        for stamp in (NOW, NOW + 5000, NOW + 5001, NOW + 10**11, NOW - 10_001, "2001-09-09T01:46:40")
    ]
    keys, _, refusals = read(make_reader(timestamp="t"), *values)
    assert keys == [0, 0]
    assert refusals == [
        (52, Reason.IN_THE_FUTURE),
        (53, Reason.IN_THE_FUTURE),
        (54, Reason.BEFORE_START),
        (55, Reason.TIMESTAMP_WITHOUT_OFFSET),
    ]


def test_a_bad_value_from_the_future_keeps_no_place_and_takes_none() -> None:
    """Under replace-value an event with a bad value counts as 0 in its place; its neighbours keep theirs."""
    values = [
        json.dumps({"k": key, "v": value, "t": stamp}).encode()
        for key, value, stamp in (
            *(("a", 1, NOW), ("b", "x", NOW), ("a", "x", NOW + 10**6), ("b", 2, NOW + 10**6)),
            *(("a", 3, NOW), ("b", "x", NOW + 10**6), ("b", 4, NOW)),
        )
    ]
    keys, amounts, refusals = read(make_reader(timestamp="t", adjacency="replace-value"), *values)
    assert (keys, amounts) == ([0, 1, 0, 1], [100, 0, 300, 400])
    assert refusals == [
        (51, Reason.VALUE_WRONG_TYPE),
        (52, Reason.IN_THE_FUTURE),
        (53, Reason.IN_THE_FUTURE),
        (55, Reason.IN_THE_FUTURE),
    ]


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(st.lists(st.one_of(st.binary(max_size=40), st.none()), max_size=8))
def test_json_never_raises(values: list[bytes | None]) -> None:
    assert len(decode_json(values)) == len(values)


@pytest.mark.slow
def test_values_with_newlines_are_one_object_each() -> None:
    assert decode_json([b'{\n"k": "a"\n}', GOOD]) == [{"k": "a"}, {"k": "a", "v": "1.25"}]
    assert decode_json([b'{"k":\n', b'"a"}']) == [Reason.MALFORMED, Reason.MALFORMED]


def avro(record: dict[str, Any], schema_id: int = 7) -> bytes:
    body = io.BytesIO()
    fastavro.schemaless_writer(body, fastavro.parse_schema(SCHEMA), record)
    return struct.pack(">BI", 0, schema_id) + body.getvalue()


@pytest.fixture
def schemas(tmp_path: Path) -> dict[int, Path]:
    path = tmp_path / "event.avsc"
    path.write_text(json.dumps(SCHEMA))
    return {7: path}


@pytest.mark.slow
def test_avro_in_confluent_framing(schemas: dict[int, Path]) -> None:
    reader = make_reader(form="avro", schemas=schemas)
    good = avro({"k": "a", "v": 1.25})
    keys, amounts, refusals = read(
        reader,
        good,
        avro({"k": "b", "v": 3}),
        avro({"k": "a", "v": 1.0}, 8),
        good[:-1],
        good + b"x",
        b"\x01" + good[1:],
        b"",
        None,
        avro({"k": None, "v": 1}),
        avro({"k": "a", "v": float("nan")}),
        avro({"k": "a", "v": float("-inf")}),
        avro({"k": "a", "v": None}),
        avro({"k": "a", "v": "1"}),
        avro({"k": "a", "v": 1e300}),
    )
    assert (keys, amounts) == ([0, 1], [125, 300])
    assert [reason for _, reason in refusals] == [
        Reason.SCHEMA_UNKNOWN,
        Reason.MALFORMED,
        Reason.MALFORMED,
        Reason.MALFORMED,
        Reason.MALFORMED,
        Reason.RECORD_EMPTY,
        Reason.KEY_MISSING,
        Reason.VALUE_NOT_FINITE,
        Reason.VALUE_NOT_FINITE,
        Reason.VALUE_MISSING,
        Reason.VALUE_WRONG_TYPE,
        Reason.VALUE_TOO_LARGE,
    ]


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=60))
def test_avro_never_raises(body: bytes) -> None:
    decoder = AvroDecoder({})
    decoder._schemas[7] = fastavro.parse_schema(SCHEMA)
    assert len(decoder([b"\x00\x00\x00\x00\x07" + body, body])) == 2


@pytest.mark.slow
def test_a_file_without_a_record_schema_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.avsc"
    for text in ("{", '"string"', '{"type": "record"}'):
        path.write_text(text)
        with pytest.raises(InvalidParameter, match=r"source.schemas.7"):
            AvroDecoder({7: path})


@pytest.mark.slow
def test_a_dead_letter_holds_nothing_of_the_event() -> None:
    refusal = (3, 51, Reason.KEY_UNDECLARED)
    bare = json.loads(dead_letter("topic", refusal, b"secret payload", None))
    assert bare == {
        "schema": "evertally.dead-letter/1",
        "topic": "topic",
        "partition": 3,
        "offset": 51,
        "code": "key_undeclared",
    }
    first = json.loads(dead_letter("topic", refusal, b"secret payload", b"k" * 32))
    assert len(first["hmac"]) == 64
    assert "secret" not in json.dumps(first)


@pytest.mark.parametrize(("logical", "factor"), [("timestamp-millis", 1), ("timestamp-micros", 1000)])
def test_avro_moments_and_uuids_are_what_they_say(tmp_path: Path, logical: str, factor: int) -> None:
    schema = {
        "type": "record",
        "name": "Event",
        "fields": [
            {"name": "k", "type": {"type": "string", "logicalType": "uuid"}},
            {"name": "at", "type": {"type": "long", "logicalType": logical}},
        ],
    }
    (tmp_path / "7.avsc").write_text(json.dumps(schema))
    body = io.BytesIO()
    key = "3f333df6-90a4-4fda-8dd3-9485d27cee36"
    plain = {**schema, "fields": [{"name": "k", "type": "string"}, {"name": "at", "type": "long"}]}
    fastavro.schemaless_writer(body, plain, {"k": key, "at": (NOW + 7) * factor + factor - 1})
    decoded = AvroDecoder({7: tmp_path / "7.avsc"})([struct.pack(">BI", 0, 7) + body.getvalue()])
    assert decoded == [{"k": key, "at": NOW + 7}]
