"""Three brokers, one of them killed again and again while events flow."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from kafka import KafkaAdminClient
from kafka.errors import KafkaError
from kafka_harness import EventFeed, KafkaStream, wait_until

from evertally.pipelines.kafka.local_broker import LocalCluster

pytestmark = [pytest.mark.kafka, pytest.mark.faults, pytest.mark.slow, pytest.mark.timeout(900)]
INTERNAL = ("__consumer_offsets", "__transaction_state")


@pytest.fixture
def three(kafka_jars: Path, tmp_path: Path) -> Iterator[LocalCluster]:
    folder = tmp_path / "brokers"
    folder.mkdir()
    with LocalCluster(kafka_jars, folder, nodes=3) as cluster:
        yield cluster


def in_sync(servers: str, stream: KafkaStream) -> bool:
    """Whether every partition has its three copies again: two deaths in a row would stop everything."""
    try:
        admin = KafkaAdminClient(bootstrap_servers=servers)
    except KafkaError:
        return False
    try:
        names = [f"{stream.name}.{suffix}" for suffix in ("events", "closed", "releases", "dead-letters")]
        topics = admin.describe_topics([*names, *INTERNAL])
        copies = [len(part["isr_nodes"]) for topic in topics for part in topic["partitions"]]
        return len(copies) > len(names) and set(copies) == {3}
    except KafkaError:
        return False
    finally:
        admin.close()


def kill_brokers(three: LocalCluster, tmp_path: Path, kills: int, seed: int) -> None:
    chance = random.Random(seed)
    stream = KafkaStream(three.bootstrap_servers, tmp_path, replication=3, tick_s=1.0)
    stream.make_topics()
    try:
        worker = stream.start(begin="earliest")
        with EventFeed(stream, rate=50, seed=seed) as feed:
            for number in range(kills):
                if number % 3 == 0:
                    nodes = chance.sample(range(3), 3)  # each in turn: one of them leads the controllers
                node = nodes[number % 3]
                time.sleep(chance.uniform(0.5, 2))
                three.kill_node(node)
                time.sleep(chance.uniform(0.5, 3))
                three.start_node(node)
                wait_until(
                    "all copies are in sync", lambda: in_sync(three.bootstrap_servers, stream), 120, 0.5
                )
        stream.wait_totals(feed.sent, timeout_s=180)
        stream.judge()
        assert worker.process.poll() is None
    finally:
        stream.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_each_of_three_brokers_killed_once(three: LocalCluster, tmp_path: Path) -> None:
    kill_brokers(three, tmp_path, kills=3, seed=7)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_broker_of_three_killed_five_times(three: LocalCluster, tmp_path: Path) -> None:
    kill_brokers(three, tmp_path, kills=5, seed=int(time.time()))
