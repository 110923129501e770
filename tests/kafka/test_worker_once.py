"""A worker against a real broker: every event counted once, every tick released once."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from kafka_harness import KEYS, KafkaStream

from evertally.pipelines.kafka.local_broker import LocalCluster

pytestmark = pytest.mark.kafka


@pytest.fixture
def stream(cluster: LocalCluster, tmp_path: Path) -> Iterator[KafkaStream]:
    made = KafkaStream(cluster.bootstrap_servers, tmp_path)
    made.cli("topics", "create")
    yield made
    made.close()


def test_counts_every_event_once_and_drains(stream: KafkaStream) -> None:
    random.seed(1)
    events = [{"k": random.choice(KEYS)} for _ in range(500)]
    worker = stream.start(begin="earliest")
    stream.send(events)
    stream.wait_totals(Counter(event["k"] for event in events))
    assert worker.end() == 0
    assert stream.judge() > 2
