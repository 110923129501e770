"""Files as sources: a line means the same in any company, and no bad line costs a good one."""

from __future__ import annotations

import gzip
import io
import json
import sys
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from evertally.errors import InvalidParameter
from evertally.pipelines.dead_letters import Reason
from evertally.pipelines.events import EventParser, ValueRule
from evertally.pipelines.json_values import object_or_reason
from evertally.pipelines.local import csv_source, jsonl_source, lines
from evertally.pipelines.local.csv_source import CsvSource
from evertally.pipelines.local.jsonl_source import JsonLinesSource
from evertally.pipelines.local.lines import LineReader
from evertally.pipelines.raw_records import FieldNames, Refusal
from evertally.pipelines.ticks import TickGrid, parse_ms

GRID = TickGrid(parse_ms("2013-01-01T00:00:00Z"), 3_600_000, 24)
FIELDS = FieldNames("at", "key", "value", "who")
Row = tuple[int, int, int, int]


def read(path: Path | str, kind: str, *, fields: FieldNames = FIELDS) -> tuple[list[Row], list[Refusal]]:
    names: dict[str, int] = {}
    parser = EventParser(
        GRID,
        ("a", "b", "a long key"),
        None,
        None,
        ValueRule(Decimal(1), 0, 100),
        lambda unit: names.setdefault(unit, len(names)),
    )
    reader = LineReader(str(path))
    source = CsvSource(reader, fields) if kind == "csv" else JsonLinesSource(reader, fields)
    rows: list[Row] = []
    refused: list[Refusal] = []
    for batch in source.batches():
        columns, refusals = parser.parse(batch)
        units = np.zeros_like(columns.keys) if columns.units is None else columns.units
        values = np.ones_like(columns.keys) if columns.values is None else columns.values
        names_now = list(names)  # units are numbered anew in each reading
        rows += [
            (int(t), int(k), int(v), hash(names_now[int(u)]) if names_now else 0)
            for t, k, v, u in zip(columns.time_ms, columns.keys, values, units, strict=True)
        ]
        refused += refusals
    return rows, refused


CSV_LINES = [
    b"2013-01-01T05:00Z,a,3,x",
    b"2013-01-01T06:30Z,b,7,y",
    b"2013-01-01T06:30Z,b,7,y\r",
    b"2013-01-01T05:00:00Z,a long key,3,x",
    b"2013-01-01T05:00:00.123Z,a,250,somebody else",
    b"1357016400000,a,3,x",
    b'"2013-01-01T05:00Z","a","3","x, y"',
    b'2013-01-01T05:00Z,a,3,"never closed',
    b'2013-01-01T05:00Z,a,3,"closed"badly',
    b'2013-01-01T05:00Z,a,3,say "hi"',
    b"2013-01-01T05:00Z,a,3",
    b"2013-01-01T05:00Z,a,3,x,",
    b"2013-01-01T05:00Z,c,3,x",
    b"2012-01-01T05:00Z,a,3,x",
    b"2013-01-02T00:00Z,a,3,x",
    b"2013-01-01T05:00,a,3,x",
    b"2013-13-01T05:00Z,a,3,x",
    b"2013-01-01T05:00Z,a,NaN,x",
    b"2013-01-01T05:00Z,a,12abc,x",
    b"2013-01-01T05:00Z,a,-1,x",
    b"2013-01-01T05:00Z,a,1e400,x",
    b"2013-01-01T05:00Z,a,,x",
    b"2013-01-01T05:00Z,a,1,",
    b"2013-01-01T05:00Z,,1,x",
    b",a,1,x",
    b"",
    b"\r",
    b"2013-01-01T05:00Z,a,3,\xff\xfe",
    b"2013-01-01T05:00Z,a\0,3,x",
    b"2013-01-01T05:00Z,a,3,\0",
    "2013-01-01T05:00Z,a,3,Zoë".encode(),
    b"2013-01-01T05:00Z,a,3,x\rmore",
    b"x" * 300,
]
JSON_LINES = [
    b'{"at":"2013-01-01T05:00Z","key":"a","value":3,"who":"x"}',
    b'{"who":7,"value":3.75,"key":"b","at":1357016400000}',
    b' {"at":"2013-01-01T05:00Z","key":"a","value":3,"who":"x"} \r',
    b'{"at":"2013-01-01T05:00Z","key":"a","value":"3","who":"x"}',
    b'{"at":"2013-01-01T05:00Z","key":"a","value":true,"who":"x"}',
    b'{"at":true,"key":"a","value":3,"who":"x"}',
    b'{"at":1357016400000.0,"key":"a","value":3,"who":"x"}',
    b'{"at":"2013-01-01T05:00Z","key":["a"],"value":3,"who":"x"}',
    b'{"at":"2013-01-01T05:00Z","key":"a","value":3,"who":{"x":1}}',
    b'{"at":"2013-01-01T05:00Z","key":"a","value":3,"who":"\\ud800"}',
    b'{"at":"2013-01-01T05:00Z","key":"a","value":NaN,"who":"x"}',
    b'{"at":"2013-01-01T05:00Z","key":"a","value":-Infinity,"who":"x"}',
    b'{"at":"2013-01-01T05:00Z","key":"a","value":1e400,"who":"x"}',
    b'{"at":"2013-01-01T05:00Z","key":null,"value":3,"who":"x"}',
    b'{"at":"2013-01-01T05:00Z","value":3,"who":"x"}',
    b'{"at":"2013-01-01T05:00Z","key":"a","value":3,"who":""}',
    b'{"at":"2013-01-01T05:00Z","key":"a","value":3,"who":"x"}{}',
    b'{"at":"2013-01-01T05:00Z","key":"a","value":3,"who":"x"},{"at":1}',
    b'{"at":"2013-01-01T05:00Z","key":"a","value":[3',
    b'3],"who":"x"}',
    b'{"value":' + b"9" * 4400 + b"}",
    b"[" * 100_000,
    b"[1,2]",
    b"7",
    b"",
    b"\t",
    b"\xff",
    b"{'at': 1}",
]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "pool"), [("csv", CSV_LINES), ("jsonl", JSON_LINES)])
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_line_means_the_same_in_any_company(
    kind: str, pool: list[bytes], data: st.DataObject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = st.sampled_from(pool[:2])
    chosen = data.draw(st.lists(st.one_of(good, good, good, st.sampled_from(pool)), min_size=1, max_size=12))
    small = data.draw(st.integers(1, 200))
    header = [b"at,key,value,who"] if kind == "csv" else []
    path = tmp_path / f"events.{kind}"
    expected_rows: list[Row] = []
    expected_refused: list[Refusal] = []
    offset = sum(len(line) + 1 for line in header)
    for number, line in enumerate(chosen):
        path.write_bytes(b"\n".join([*header, line, b""]))  # alone: the meaning of this line
        rows, refused = read(path, kind)
        expected_rows += rows
        expected_refused += [(1 + len(header) + number, offset, reason) for _, _, reason in refused]
        offset += len(line) + 1
    path.write_bytes(b"\n".join([*header, *chosen, b""]))
    for block_bytes in (1 << 17, small):
        monkeypatch.setattr(lines, "_BLOCK_BYTES", block_bytes)
        assert read(path, kind) == (expected_rows, expected_refused)


def test_the_pools_reach_every_reason(tmp_path: Path) -> None:
    elsewhere = {Reason.SCHEMA_UNKNOWN, Reason.RECORD_EMPTY, Reason.IN_THE_FUTURE}  # no file can give these
    seen = {Reason.LINE_TOO_LONG} | elsewhere  # a long line has a test of its own
    for kind, pool in (("csv", CSV_LINES), ("jsonl", JSON_LINES)):
        path = tmp_path / f"events.{kind}"
        path.write_bytes(b"\n".join([*([b"at,key,value,who"] if kind == "csv" else []), *pool]))
        seen |= {reason for _, _, reason in read(path, kind)[1]}
    assert seen == set(Reason)


@pytest.mark.parametrize(
    "block",
    [
        [b'{"key":1},{"key":2}', b'{"key":"x', b'{y"}'],
        [b'{"key":1},{"key":2}', b'{"key":[{"x":1}', b'{"y":2}]}'],
        [b'{"key":1},{"key":2}', b'{"key":{"x":1}', b'{"y":2}}'],
        [b'{"key":1},{"key":2}]', b'{"at":3}'],
        [b'{"key":1},{"key":2}', b'{"at":3', b'"key":4}'],
        [b'{"key":1}', b"", b'{"key":2}'],
        [b'{"key":1}]', b'[{"key":2}'],
    ],
)
def test_objects_of_a_block_are_objects_of_a_line(block: list[bytes]) -> None:
    found = jsonl_source._whole_block(block)
    alone = [object_or_reason(line, lines.MAX_LINE_BYTES) for line in block]
    assert any(isinstance(item, Reason) for item in alone)  # so that the block is none of good lines alone
    assert found is None


def test_a_quote_does_not_reach_into_the_next_line(tmp_path: Path) -> None:
    good = b"2013-01-01T05:00Z,a,3,x"
    lines_in = [b"at,key,value,who", good, b'2013-01-01T05:00Z,a,3,"open', b'closed"', good]
    path = tmp_path / "e.csv"
    path.write_bytes(b"\n".join(lines_in))  # read together, lines 3 and 4 would be one good record
    rows, refused = read(path, "csv")
    assert len(rows) == 2
    assert [(line, reason) for line, _, reason in refused] == [
        (3, Reason.MALFORMED),
        (4, Reason.WRONG_COLUMN_COUNT),
    ]


def test_a_plain_block_takes_the_packed_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "e.csv"
    path.write_bytes(b"at,key,value,who\r\n" + b"2013-01-01T05:00Z,a,3,x\r\n" * 10)
    monkeypatch.setattr(csv_source, "_whole_block", None)  # calling it would fail
    assert len(read(path, "csv")[0]) == 10


@pytest.mark.parametrize("size", [131_073, 400_000, 3_000_000])
def test_an_endless_line_is_one_dead_letter(tmp_path: Path, size: int) -> None:
    good = b"2013-01-01T05:00Z,a,3,x\n"
    path = tmp_path / "e.csv"
    path.write_bytes(b"at,key,value,who\n" + good + b"y" * size + b"\n" + good * 2 + b"bad\n" + good)
    rows, refused = read(path, "csv")
    assert len(rows) == 4
    start = 17 + len(good)
    assert refused == [
        (3, start, Reason.LINE_TOO_LONG),
        (6, start + size + 1 + 2 * len(good), Reason.WRONG_COLUMN_COUNT),
    ]


def test_last_line_needs_no_newline_and_a_bom_is_no_data(tmp_path: Path) -> None:
    path = tmp_path / "e.csv"
    path.write_bytes(b"\xef\xbb\xbfat,key,value,who\n2013-01-01T05:00Z,a,3,x")
    assert len(read(path, "csv")[0]) == 1
    path.write_bytes(b"\xef\xbb\xbf" + JSON_LINES[0])
    assert len(read(path, "jsonl")[0]) == 1


def test_gzip_members_and_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = b"at,key,value,who\n" + b"2013-01-01T05:00Z,a,3,x\n" * 5
    path = tmp_path / "e.csv.gz"
    path.write_bytes(gzip.compress(body[:40]) + gzip.compress(body[40:]))
    assert len(read(path, "csv")[0]) == 5
    for content in (body, gzip.compress(body)):
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(content)))
        assert len(read("-", "csv")[0]) == 5


def noise(size: int) -> bytes:
    return np.random.default_rng(1).bytes(size)


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("e.csv", b"", "empty"),
        ("e.csv.gz", b"", "empty"),
        ("e.csv.gz", gzip.compress(b"", mtime=0), "empty"),
        ("e.csv", noise(5000), "binary"),
        ("e.csv.gz", gzip.compress(noise(5000), mtime=0), "binary"),
        ("e.csv.gz", b"at,key,value,who\n", "as its name says"),
        ("e.csv", "at,key,value,who\n".encode("utf-16"), "binary"),
        ("e.csv", b"\xffat,key\n", "no CSV header"),
        ("e.csv", b'"at,key\n', "no CSV header"),
        ("e.csv", b"at,name,value,who\n", "source.key"),
        ("e.csv", b"at,key,value,who,key\n", "once"),
    ],
)
def test_unusable_inputs_are_refused_in_words(
    tmp_path: Path, name: str, content: bytes, expected: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(InvalidParameter, match=expected):
        read(path, "csv")


@pytest.mark.parametrize("cut", [5, 300, 2000, -9, -8, -4, -1])
def test_a_truncated_gzip_is_never_taken_for_whole(tmp_path: Path, cut: int) -> None:
    whole = gzip.compress(
        b"at,key,value,who\n"
        + b"".join(
            f"2013-01-01T{n % 24:02d}:{n % 60:02d}Z,a,{n % 97},u{n * 7919 % 1000}\n".encode()
            for n in range(9000)
        )
    )
    path = tmp_path / "e.csv.gz"
    path.write_bytes(whole[:cut])
    with pytest.raises(InvalidParameter, match="complete gzip"):
        read(path, "csv")
    path.write_bytes(whole[:-6] + bytes([whole[-6] ^ 1]) + whole[-5:])  # a flipped bit in the CRC
    with pytest.raises(InvalidParameter, match="complete gzip"):
        read(path, "csv")


def test_missing_files_and_folders_are_named(tmp_path: Path) -> None:
    for path in (str(tmp_path / "none.csv"), str(tmp_path), "a\0b"):
        with pytest.raises(InvalidParameter, match=r"source\.path"):
            read(path, "csv")


def test_json_escapes_do_not_hide_a_key(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    path.write_text(
        json.dumps({"at": "2013-01-01T05:00Z", "key": "a", "value": 1, "who": "x"}).replace(
            '"a"', '"\\u0061"'
        )
    )
    assert read(path, "jsonl")[0][0][1] == 0
