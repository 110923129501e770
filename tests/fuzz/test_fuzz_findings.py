"""Inputs that once broke a reader, each with what it does now."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from tests.fuzz.attack import judge
from tests.fuzz.readers import READERS

from evertally.counters import LogPerturbed
from evertally.counters.noise_power import CoefficientPowerTrack
from evertally.errors import IntegrityError, InvalidParameter
from evertally.pipelines.beam.positions import Cuts
from evertally.pipelines.config import load_config
from evertally.pipelines.flink.messages import Message, lane_of
from evertally.pipelines.kafka.aggregation import OpenTick
from evertally.pipelines.kafka.candidates import decode_counts
from evertally.pipelines.releases import Release
from evertally.pipelines.ticks import parse_ms


def test_a_count_of_partitions_that_no_length_bounds() -> None:
    """It was taken at its word: four thousand million empty tuples."""
    with pytest.raises(IntegrityError):
        Cuts.decode(struct.pack(">BQII", 1, 0, 2**32 - 1, 0))
    assert Cuts.decode(Cuts(3, ((), ())).encode()).stops == ((), ())


def test_a_tick_far_ahead_computes_nothing() -> None:
    """A snapshot's tick was believed before its state was looked at: a minute of coefficients."""
    CoefficientPowerTrack(LogPerturbed()).load(struct.pack(">d", 1.0), 2**24)
    with pytest.raises(IntegrityError, match="horizon"):
        CoefficientPowerTrack(LogPerturbed(horizon=64)).load(struct.pack(">d", 1.0), 65)


@pytest.mark.parametrize("text", ["9999-12-31T23:59:59-14:00", "0001-01-01T00:00:00+14:00"])
def test_a_time_that_utc_has_no_year_for(text: str) -> None:
    """It ended as an OverflowError."""
    with pytest.raises(ValueError, match="format_ms"):
        parse_ms(text)


@pytest.mark.parametrize("text", ["evertally/1 00 ² 3", f"evertally/1 00 {'9' * 5000} 3", "evertally/1 00 1"])
def test_digits_that_are_none(text: str) -> None:
    with pytest.raises(IntegrityError):
        OpenTick.decode(text)


@pytest.mark.parametrize("data", [b"", b"\0" * 15, struct.pack(">iIII", 1, 2**32 - 1, 9, 3) + bytes(40)])
def test_messages_cut_short(data: bytes) -> None:
    with pytest.raises(IntegrityError):
        Message.decode(data)
    if len(data) < 16:
        with pytest.raises(IntegrityError):
            lane_of(data)


@pytest.mark.parametrize("body", [b"[1]", b'{"a":"b"}', b'{"a":1.5}', b"[" * 100_000, b"\xff"])
def test_counts_of_other_forms(body: bytes) -> None:
    with pytest.raises(IntegrityError):
        decode_counts(body)


@pytest.mark.parametrize(
    ("old", "new"), [(b'"value":7', b'"value":"7"'), (b"2.5", b"9" * 400), (b'"a"', b"[]")]
)
def test_fields_of_another_type_in_a_release(old: bytes, new: bytes) -> None:
    line = Release("s", "a", 1, 1, 3_600_000, 7, 2.5, "rational:W32").encode()
    assert Release.decode(line).value == 7
    assert old in line
    with pytest.raises(InvalidParameter):
        Release.decode(line.replace(old, new))


def test_a_name_that_no_file_can_have(tmp_path: Path) -> None:
    reader = READERS["run_config"](tmp_path)
    for key in (
        b'path = "events.csv"',
        b'path = "state.sqlite"',
        b'key_file = "key"',
        b'releases = "releases.jsonl"',
    ):
        assert key in reader.corpus[0]
        assert judge(reader, reader.corpus[0].replace(key, key[:-1] + b"/" + b"a" * 300 + b'"'))
    path = tmp_path / ("x" * 300)
    with pytest.raises(InvalidParameter):
        load_config(path)


def test_run_state_and_steps_of_other_forms(tmp_path: Path) -> None:
    reader = READERS["training_files"](tmp_path)
    for data in (
        b"r[]",
        b"r5",
        b"r" + b"[" * 50_000,
        b"s5\n",
        b"s{}\n",
        b"s\xff\n",
        b"m[]",
        b'm{"version":1e999}',
    ):
        assert judge(reader, data), data[:20]
