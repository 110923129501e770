"""Several workers: partitions move while events flow; units stay within bounds across all of them."""

from __future__ import annotations

import itertools
import json
import time
from collections import Counter, defaultdict
from pathlib import Path

import pytest
from kafka_harness import EventFeed, KafkaStream, WorkerProcess, wait_until

from evertally.accountants.budget import OpenedStream
from evertally.accountants.budget.opening import open_ledger
from evertally.pipelines.kafka.config import load_worker_config
from evertally.pipelines.kafka.sealed_records import StreamSealer
from evertally.pipelines.kafka.unit_events import decode_events
from evertally.pipelines.kafka.unit_state import ChangelogSealer
from evertally.pipelines.keyfile import KeyFile

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(600)]


def test_one_two_one_workers_under_load(servers: str, tmp_path: Path) -> None:
    """faust-streaming#502, #221, #216: processed twice on scale-out, prefetched records after a rebalance."""
    stream = KafkaStream(servers, tmp_path, partitions=4, shards=2)
    stream.make_topics()
    try:
        stream.start("w1", begin="earliest")
        with EventFeed(stream, rate=300, seed=2) as feed:
            time.sleep(2)
            second = stream.start("w2")
            wait_until("both own something", lambda: _owns_of_both(second))
            time.sleep(2)
            assert second.end() == 0
            time.sleep(8)  # its session ends and everything comes back
        stream.wait_totals(feed.sent, timeout_s=120)
        assert stream.judge() > 5
    finally:
        stream.close()


def _owns_of_both(worker: WorkerProcess) -> bool:
    """Whether it has counted a partition and released a shard."""
    said = worker.log.read_text()
    return "counting partition" in said and "releasing shard" in said


def test_a_worker_joins_while_another_recovers(servers: str, tmp_path: Path) -> None:
    """quix-streams#1067: rebalance during recovery."""
    stream = KafkaStream(servers, tmp_path, partitions=4, shards=2)
    stream.make_topics()
    try:
        first = stream.start("w1", begin="earliest")
        with EventFeed(stream, rate=300, seed=4) as feed:
            time.sleep(3)
            first.kill()
            time.sleep(4)
            stream.start("w1", ready=False)
            time.sleep(0.5)
            stream.start("w2", ready=False)
            for worker in stream.workers[1:]:
                worker.wait_ready()
        stream.wait_totals(feed.sent, timeout_s=120)
        stream.judge()
    finally:
        stream.close()


def test_units_are_bounded_across_partitions_and_workers(servers: str, tmp_path: Path) -> None:
    """One unit's events on 3 partitions and 2 workers: at most k ticks, b apart, c events in each."""
    k, b, c = 2, 3, 2
    stream = KafkaStream(
        servers,
        tmp_path,
        partitions=3,
        source_extra='unit = "u"',
        privacy_extra=f'unit = "person"\nparticipations = {k}\nmin_separation = {b}\nper_tick = {c}',
    )
    stream.make_topics()
    try:
        first = stream.start("w1", begin="earliest")
        people = [f"person-{number}" for number in range(8)]
        for round_ in range(16):
            stream.send(
                {"k": stream.keys[(round_ + n) % 4], "u": person} for n, person in enumerate(people * 5)
            )
            if round_ == 4:
                stream.start("w2", ready=False)
            if round_ == 10:
                # what comes behind the kill is counted in later ticks
                wait_until("every unit has been counted", lambda: len(_counted(stream)) == len(people), 120)
                first.kill()  # its partitions and their units move to the other worker
            time.sleep(0.3)
        wanted, sent = len(people) * k * c, 16 * 5

        def offered() -> list[int]:
            return list(_offered(stream)[1].values())

        wait_until(
            "every event has come to its unit's partition",
            lambda: len(offered()) == len(people) and min(offered()) >= sent,
            120,
        )
        wait_until("all that may be is counted", lambda: sum(stream.totals().values()) >= wanted, 120)
        time.sleep(3)  # nor does any more come
        assert sum(stream.totals().values()) == wanted
        stream.judge()
        assert_bounds(stream, k, b)
    finally:
        stream.close()


def _secret(stream: KafkaStream) -> tuple[bytes, OpenedStream]:
    """The key of the stream's sealed records, from its key file."""
    config = load_worker_config(stream.config())
    store = open_ledger(config.ledger)
    opened = store.find_stream(stream.name)
    store.close()
    assert opened is not None
    secret = KeyFile.open(config.key_file).derive(
        "closing", stream.name, opened.stream_id, opened.incarnation
    )
    return secret, opened


def _counted(stream: KafkaStream) -> dict[int, list[int]]:
    """Ticks of each unit that were counted, from the changelog."""
    secret, opened = _secret(stream)
    counted: dict[int, list[int]] = defaultdict(list)
    for record in stream.raw("unit-state"):
        sealer = ChangelogSealer(secret, opened.stream_id[:8].hex(), opened.incarnation, record.partition)
        change = sealer.open(record.key, record.value)
        assert change is not None
        counted[change[0]].append(change[1].last)
    return counted


def _offered(stream: KafkaStream) -> tuple[dict[int, set[int]], Counter[int]]:
    """Partitions of each unit, and its events, counted or not, from the sealed events."""
    secret, opened = _secret(stream)
    sealed = StreamSealer(secret, f"{stream.name}.units", opened.stream_id, opened.incarnation)
    homes: dict[int, set[int]] = defaultdict(set)
    offered: Counter[int] = Counter()
    for record in stream.raw("units"):
        piece = sealed.open(record.key, record.value, record.partition)
        assert piece is not None
        for unit in decode_events(piece.body)[0].tolist():
            homes[unit].add(record.partition)
            offered[unit] += 1
    return homes, offered


def assert_bounds(stream: KafkaStream, k: int, b: int) -> None:
    """From the changelog and the sealed events, opened with the key file: what was counted of each unit."""
    counted = _counted(stream)
    assert len(counted) == 8
    for ticks in counted.values():
        assert len(ticks) == k
        assert ticks == sorted(ticks)
        assert all(late - early >= b for early, late in itertools.pairwise(ticks))
    homes, offered = _offered(stream)
    assert all(len(found) == 1 for found in homes.values())
    assert min(offered.values()) >= 16 * 5
    assert b"person-" not in b"".join(record.value for record in stream.raw("units"))
    assert "person-" not in json.dumps([str(record.key) for record in stream.raw("unit-state")])
