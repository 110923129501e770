"""Public fault reports of other Kafka programs, each with the right behaviour.

Each test names the report it comes from; REPORTS says where the tests of each report stand.
"""

from __future__ import annotations

import ast
import contextlib
import json
import re
import time
from collections import Counter
from pathlib import Path

import pytest
from kafka import KafkaAdminClient, TopicPartition
from kafka.errors import KafkaError
from kafka_harness import KEYS, EventFeed, KafkaStream, wait_until

from evertally.pipelines.kafka.local_broker import LocalCluster

REPORTS = {
    "kafka-python#2610": ("test_kafka_reports.py::test_a_commit_after_a_long_silence",),
    "kafka-python#1141, #545; insights-rbac#2955": (
        "test_kafka_reports.py::test_a_poison_record_reaches_the_dead_letters_and_nothing_else",
        "test_event_batches.py::test_a_poison_record_in_the_middle_of_a_batch",
    ),
    "kafka-python#3106": (
        "test_partition_stage.py::test_lag_without_progress_is_noticed",
        "test_aggregate_stage.py::test_commits_that_fail_for_ever_are_a_stall",
    ),
    "kafka-python#1306, #1848": ("test_kafka_reports.py::test_a_broker_killed_and_started_again",),
    "faust-streaming#502": ("test_scale_out.py::test_one_two_one_workers_under_load",),
    "faust-streaming#221, #216": (
        "test_member.py::test_prefetched_records_of_a_revoked_partition_are_dropped",
        "test_partition_stage.py::test_records_read_before_a_revocation_are_dropped",
        "test_aggregate_stage.py::test_what_was_read_of_a_revoked_partition_is_dropped",
    ),
    "quix-streams#1114": (
        "test_kafka_reports.py::test_deleted_records_that_are_still_needed_stop_the_worker",
    ),
    "quix-streams#1067": ("test_scale_out.py::test_a_worker_joins_while_another_recovers",),
    "posthog#20283": ("test_kafka_reports.py::test_lost_group_offsets_are_never_guessed",),
    "sql-flow#358": ("test_event_batches.py::test_stamps_far_in_the_future_are_refused",),
}


@pytest.mark.slow
@pytest.mark.parametrize("report", REPORTS)
def test_every_report_has_tests_that_name_it(report: str) -> None:
    for place in REPORTS[report]:
        file, _, name = place.partition("::")
        tree = ast.parse((Path(__file__).parent / file).read_text())
        found = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name]
        assert len(found) == 1, f"{place} is not there"
        told = ast.get_docstring(found[0]) or ""
        assert all(number in told for number in re.findall(r"#\d+", report)), (
            f"{place} does not name {report}"
        )


@pytest.mark.kafka
@pytest.mark.slow
def test_a_commit_after_a_long_silence(servers: str, tmp_path: Path) -> None:
    """kafka-python#2610: CommitFailedError on quiet topics."""
    stream = KafkaStream(servers, tmp_path, tick_s=30.0, kafka_extra="session_timeout_s = 3")
    stream.start_ms -= 30_000 - 15_000  # so that the next tick ends 15 s from now
    stream.make_topics()
    try:
        worker = stream.start(begin="earliest")
        time.sleep(7)  # more than twice the session, without a record or a commit
        stream.send({"k": key} for key in KEYS)
        stream.wait_totals(Counter(KEYS), timeout_s=90)
        assert worker.process.poll() is None
        assert worker.end() == 0
    finally:
        stream.close()


@pytest.mark.kafka
@pytest.mark.slow
def test_a_poison_record_reaches_the_dead_letters_and_nothing_else(stream: KafkaStream) -> None:
    """kafka-python#1141, #545; insights-rbac#2955: deserializer errors swallowed or endless."""
    worker = stream.start(begin="earliest")
    good = [{"k": key} for key in KEYS * 5]
    poison: list[dict[str, str] | bytes | None] = [
        b"\xff\xff",
        b"{",
        None,
        {"k": "who-is-this-person"},
        {"nothing": "here"},
    ]
    stream.send([*good[:10], *poison, *good[10:]])
    stream.wait_totals(Counter(event["k"] for event in good))
    assert worker.end() == 0
    letters = [json.loads(record.value) for record in stream.raw("dead-letters")]
    assert Counter(letter["code"] for letter in letters) == Counter(
        ["not_utf8", "malformed", "record_empty", "key_undeclared", "key_missing"]
    )
    assert len({(letter["partition"], letter["offset"]) for letter in letters}) == 5
    everywhere = worker.log.read_text() + json.dumps(letters)
    assert "who-is-this-person" not in everywhere
    stream.judge()


@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_broker_killed_and_started_again(kafka_jars: Path, tmp_path: Path) -> None:
    """kafka-python#1306, #1848: stuck after a broker restart."""
    folder = tmp_path / "broker"
    folder.mkdir()
    with LocalCluster(kafka_jars, folder) as cluster:
        stream = KafkaStream(cluster.bootstrap_servers, tmp_path)
        stream.make_topics()
        try:
            stream.start(begin="earliest")
            with EventFeed(stream, rate=50, seed=1) as feed:
                time.sleep(3)
                cluster.kill_node(0)
                time.sleep(2)
                cluster.start_node(0)
                time.sleep(3)
            stream.wait_totals(feed.sent, timeout_s=150)
            stream.judge()
        finally:
            stream.close()


@pytest.mark.kafka
@pytest.mark.slow
def test_deleted_records_that_are_still_needed_stop_the_worker(stream: KafkaStream) -> None:
    """quix-streams#1114: recovery stuck when the committed offset is gone."""
    worker = stream.start(begin="earliest")
    stream.send({"k": key} for key in KEYS * 3)
    stream.wait_totals(Counter(KEYS * 3))
    assert worker.end() == 0
    stream.send({"k": key} for key in KEYS * 30)
    admin = KafkaAdminClient(bootstrap_servers=stream.servers)
    admin.delete_records({TopicPartition(stream.topic, 1): 20})
    admin.close()
    began = time.monotonic()
    worker = stream.start(ready=False)
    assert worker.process.wait(60) == 4
    assert time.monotonic() - began < 60
    assert "would lose events" in worker.log.read_text()


@pytest.mark.kafka
@pytest.mark.slow
def test_lost_group_offsets_are_never_guessed(stream: KafkaStream) -> None:
    """posthog#20283: an automatic reset hides the loss of data."""
    worker = stream.start(begin="earliest")
    stream.send({"k": key} for key in KEYS)
    stream.wait_totals(Counter(KEYS))
    assert worker.end() == 0
    admin = KafkaAdminClient(bootstrap_servers=stream.servers)
    wait_until("the group is empty and deleted", lambda: deleted(admin, f"{stream.name}.aggregate"), 30)
    admin.close()
    done = stream.cli("worker", check=False)
    assert done.returncode == 4
    assert "lose events or count them again" in done.stderr
    again = stream.cli("worker", "--from", "earliest", check=False)
    assert again.returncode == 2
    assert "after the first start" in again.stderr


def deleted(admin: KafkaAdminClient, group: str) -> bool:
    with contextlib.suppress(KafkaError):
        admin.delete_groups([group])
    return group not in [found["group_id"] for found in admin.list_groups()]


@pytest.mark.kafka
@pytest.mark.slow
def test_the_first_start_must_say_where_to_begin(stream: KafkaStream) -> None:
    done = stream.cli("worker", check=False)
    assert done.returncode == 2
    assert "--from" in done.stderr
    assert not (stream.folder / f"{stream.name}.ledger").exists() or stream.ledger_rows() == []


@pytest.mark.kafka
@pytest.mark.slow
def test_a_replaced_ledger_is_noticed(stream: KafkaStream) -> None:
    worker = stream.start(begin="earliest")
    stream.send({"k": key} for key in KEYS)
    stream.wait_totals(Counter(KEYS))
    assert worker.end() == 0
    for path in stream.folder.glob(f"{stream.name}.ledger*"):
        path.unlink()
    done = stream.cli("worker", "--from", "earliest", check=False)
    assert done.returncode == 4
    assert "the ledger does not know it" in done.stderr
