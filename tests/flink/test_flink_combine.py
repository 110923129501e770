"""Batches of records to messages: each good event in exactly one, each refusal a dead letter."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evertally.errors import InvalidParameter
from evertally.pipelines.aggregation_keys import AggregationKeys
from evertally.pipelines.bounding import UnitBound
from evertally.pipelines.flink.combine import BatchCombiner
from evertally.pipelines.flink.messages import Message
from evertally.pipelines.flink.parameters import JobParameters
from evertally.pipelines.flink.rest import FlinkRest
from evertally.pipelines.flink.submit import newest_checkpoint
from evertally.pipelines.flink.tables import kafka_properties, sink_table, source_table
from evertally.pipelines.kafka.aggregation import TickRule
from evertally.pipelines.kafka.broker import Broker
from evertally.pipelines.kafka.config import load_worker_config

KEYS = AggregationKeys(b"\1" * 16, 1, b"c" * 32, b"u" * 32, b"d" * 32)
CONFIG = """
[stream]
name = "s"
keys = ["a", "b", "c"]
start = "1970-01-01T00:00:00Z"
tick_s = 1
{stream}
[source]
key = "k"
value = "n"
{source}
[privacy]
unit = "{unit}"
clip = 100
{privacy}
epsilon = 1.0
delta = 1e-6
[state]
path = "s.ledger"
key_file = "s.key"
folder = "."
[kafka]
bootstrap_servers = "127.0.0.1:1"
topic = "t"
closing_sources = 4
dead_letter_hmac = true
"""


def job(
    folder: Path, *, unit: str = "event", stream: str = "", source: str = "", extended: int | None = None
) -> JobParameters:
    privacy = "" if unit == "event" else "participations = 2\nmin_separation = 3\nper_tick = 1"
    privacy += "" if extended is None else "\nslack_horizon = 4"
    path = folder / "s.toml"
    path.write_text(CONFIG.format(unit=unit, stream=stream, source=source, privacy=privacy))
    config = load_worker_config(path)
    horizon = extended or config.spec.grid.slack_horizon
    return JobParameters.of(config, "01" * 8, 1, horizon, [0, 0, 0], folder / "keys")


def combine(
    parameters: JobParameters, values: Sequence[bytes | None], partitions: list[int]
) -> list[Message]:
    numbers = np.array(partitions, np.int64)
    messages = BatchCombiner(parameters, KEYS).combine(values, numbers, np.arange(len(values)), 5_500)
    assert len(messages) <= len(values), "a batch has a row for every message"
    return [Message.decode(message.encode()) for message in messages]


RECORDS = st.lists(
    st.one_of(
        st.builds(
            lambda k, n: json.dumps({"k": k, "n": n, "u": f"{n % 5}"}).encode(),
            st.sampled_from(["a", "b", "c", "undeclared"]),
            st.integers(0, 200),
        ),
        st.sampled_from(
            [None, b"", b"{", b"[]", b'{"k":5,"n":1}', b'{"k":"a","n":"x"}', b'{"n":1e999,"k":"a"}']
        ),
        st.binary(max_size=20),
    ),
    min_size=1,
    max_size=40,
)


def expected(values: list[bytes | None]) -> Counter[int]:
    sums: Counter[int] = Counter()
    for value in values:
        try:
            fields = json.loads(value or b"")
            key, n = "abc".index(fields["k"]), fields["n"]
        except (ValueError, KeyError, TypeError):
            continue
        if type(n) is int and n >= 0:
            sums[key] += min(n, 100)
    return sums


@pytest.mark.slow
@given(RECORDS, st.data())
@settings(max_examples=60, deadline=None)
def test_event_level(
    tmp_path_factory: pytest.TempPathFactory, values: list[bytes | None], data: st.DataObject
) -> None:
    partitions = data.draw(st.lists(st.integers(0, 2), min_size=len(values), max_size=len(values)))
    messages = combine(job(tmp_path_factory.mktemp("c")), values, partitions)
    found: Counter[int] = Counter()
    letters = [letter for message in messages for letter in message.letters]
    for message in messages:
        assert 0 <= message.lane < 4
        if message.rows.shape[1]:
            assert set(message.rows[0].tolist()) == {0}, "by arrival a lane's clock decides"
            for key, amount in message.rows[1:].T.tolist():
                found[key] += amount
    assert +found == +expected(values)
    places = [
        (fields["partition"], fields["offset"]) for fields in (json.loads(letter.body) for letter in letters)
    ]
    assert len(places) == len(set(places))
    assert all("hmac" in json.loads(letter.body) for letter in letters)


def test_unit_level_sends_each_unit_to_one_lane(tmp_path: Path) -> None:
    values = [json.dumps({"k": "a", "n": 1, "u": f"p{n % 9}"}).encode() for n in range(90)]
    parameters = job(tmp_path, unit="person", source='unit = "u"', stream="")
    assert parameters.bound == UnitBound(2, 3, 1)
    lanes: dict[int, set[int]] = {}
    messages = combine(parameters, [*values, b"broken"], [n % 3 for n in range(91)])
    for message in messages:
        for unit in message.rows[1].tolist():
            lanes.setdefault(unit, set()).add(message.lane)
            assert unit % 4 == message.lane
    assert len(lanes) == 9
    assert sum(message.rows.shape[1] for message in messages) == 90
    assert sum(len(message.letters) for message in messages) == 1


def test_event_time_keeps_each_events_own_tick(tmp_path: Path) -> None:
    parameters = job(
        tmp_path,
        stream='closing = "event-time"\nlateness_s = 1\nskew_s = 2',
        source='timestamp = "at"',
    )
    assert parameters.rule == TickRule(0, 1000, 1000, 2000)
    values = [json.dumps({"k": "b", "n": 2, "at": at}).encode() for at in (100, 900, 4000, 9_000)]
    (message,) = combine(parameters, values, [0, 0, 1, 1])
    assert message.rows.tolist() == [[1, 5], [1, 1], [4, 2]]
    assert [json.loads(letter.body)["code"] for letter in message.letters] == ["in_the_future"]


def test_a_batch_without_events_has_one_message_at_most(tmp_path: Path) -> None:
    parameters = job(tmp_path)
    (message,) = combine(parameters, [b"x"] * 50, [0] * 50)
    assert len(message.letters) == 50
    assert (
        BatchCombiner(parameters, KEYS).combine([], np.array([], np.int64), np.array([], np.int64), 1) == []
    )


def test_passwords_stay_out_of_the_graph() -> None:
    broker = Broker("k:1", "SASL_SSL", Path("ca.pem"), None, None, "SCRAM-SHA-256", "me", "it's secret")
    properties = kafka_properties(broker)
    assert "it's secret" not in str(properties)
    assert "${env:EVERTALLY_KAFKA_PASSWORD}" in properties["sasl.jaas.config"]
    with pytest.raises(InvalidParameter, match="client_key_file"):
        kafka_properties(Broker("k:1", "SSL", None, Path("cert.pem"), Path("key.pem")))


def test_tables_quote_what_they_are_given() -> None:
    text = source_table("e", "t'; DROP", "g", {"x": "a'b"})
    assert "'t''; DROP'" in text
    assert "'properties.x' = 'a''b'" in text
    assert "'sink.delivery-guarantee' = 'exactly-once'" in sink_table("c", "t", 3, {})
    assert "'scan.startup.mode' = 'group-offsets'" in text


def test_the_newest_complete_checkpoint_is_found(tmp_path: Path) -> None:
    import os

    for number, complete in ((3, True), (12, True), (13, False)):
        folder = tmp_path / "job" / f"chk-{number}"
        folder.mkdir(parents=True)
        if complete:
            (folder / "_metadata").touch()
            os.utime(folder / "_metadata", (number, number))
    assert newest_checkpoint(str(tmp_path)).endswith("/job/chk-12")
    assert newest_checkpoint(f"file://{tmp_path}/job/chk-3") == f"file://{tmp_path}/job/chk-3"
    with pytest.raises(InvalidParameter, match="restore"):
        newest_checkpoint(str(tmp_path / "job" / "chk-13"))
    assert newest_checkpoint("s3://bucket/sp") == "s3://bucket/sp"


def test_an_address_is_host_and_port() -> None:
    with pytest.raises(InvalidParameter, match="jobmanager"):
        FlinkRest("localhost")
