"""Three brokers, one of them killed again and again while events flow."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from kafka_harness import EventFeed, KafkaStream

from evertally.pipelines.kafka.local_broker import LocalCluster

pytestmark = [pytest.mark.kafka, pytest.mark.faults, pytest.mark.soak, pytest.mark.timeout(900)]


@pytest.fixture
def three(kafka_jars: Path, tmp_path: Path) -> Iterator[LocalCluster]:
    folder = tmp_path / "brokers"
    folder.mkdir()
    with LocalCluster(kafka_jars, folder, nodes=3) as cluster:
        yield cluster


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_broker_of_three_killed_five_times(three: LocalCluster, tmp_path: Path) -> None:
    chance = random.Random(7)
    stream = KafkaStream(three.bootstrap_servers, tmp_path, replication=3, tick_s=1.0)
    stream.make_topics()
    try:
        stream.start(begin="earliest")
        with EventFeed(stream, rate=50, seed=11) as feed:
            for _ in range(5):
                time.sleep(chance.uniform(1, 4))
                node = chance.randrange(3)
                three.kill_node(node)
                time.sleep(chance.uniform(2, 5))
                three.start_node(node)
                time.sleep(8)  # until its replicas are in sync again, or two of three would be gone
        stream.wait_totals(feed.sent, timeout_s=180)
        stream.judge()
    finally:
        stream.close()
