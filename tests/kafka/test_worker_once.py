"""A worker against a real broker: every event counted once, every tick released once."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from kafka_harness import KEYS, KafkaStream

pytestmark = pytest.mark.kafka


def test_counts_every_event_once_and_drains(stream: KafkaStream) -> None:
    random.seed(1)
    events = [{"k": random.choice(KEYS)} for _ in range(500)]
    worker = stream.start(begin="earliest")
    stream.send(events)
    stream.wait_totals(Counter(event["k"] for event in events))
    assert worker.end() == 0
    assert stream.judge() > 2
