"""Half an hour of load: the worker's memory stays flat, and nothing is lost."""

from __future__ import annotations

import os
import time

import pytest
from kafka_harness import EventFeed, KafkaStream, resident_mib

pytestmark = [pytest.mark.kafka, pytest.mark.soak, pytest.mark.timeout(7200)]
MINUTES = float(os.environ.get("EVERTALLY_SOAK_MINUTES", "30"))
RATE = 5000


def test_memory_stays_flat(stream: KafkaStream) -> None:
    worker = stream.start(begin="earliest")
    sizes = []
    with EventFeed(stream, rate=RATE, seed=1) as feed:
        time.sleep(MINUTES * 6)  # a tenth to warm up
        for _ in range(30):
            sizes.append(resident_mib(worker.process.pid))
            time.sleep(MINUTES * 1.8)
    print("resident MiB:", " ".join(f"{size:.0f}" for size in sizes))
    stream.wait_totals(feed.sent, timeout_s=120)
    stream.judge()
    third = len(sizes) // 3
    assert max(sizes[-third:]) <= 1.05 * max(sizes[:third]) + 2
