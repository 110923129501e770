"""kill -9 anywhere: every event once, every (key, t) one value; judged on raw topics and ledger."""

from __future__ import annotations

import random
import signal
import time
from collections import Counter

import pytest
from kafka_harness import KEYS, EventFeed, KafkaStream, wait_until

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(900)]


def kill_and_judge(
    stream: KafkaStream, kills: int, seed: int, low_s: float = 0.2, high_s: float = 4.0
) -> None:
    chance = random.Random(seed)
    worker = stream.start(begin="earliest")
    with EventFeed(stream, rate=150, seed=seed) as feed:
        for _ in range(kills):
            time.sleep(chance.uniform(low_s, high_s))
            worker.signal(signal.SIGKILL)
            worker.process.wait()
            worker = stream.start(ready=False)
            if chance.random() < 0.5:
                worker.wait_ready()
        worker.wait_ready()
    stream.wait_totals(feed.sent, timeout_s=120)
    assert worker.end() == 0
    stream.judge()


def test_worker_killed_at_random_points(stream: KafkaStream) -> None:
    kill_and_judge(stream, kills=5, seed=5)


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_worker_killed_two_hundred_times(stream: KafkaStream) -> None:
    kill_and_judge(stream, kills=200, seed=int(time.time()))


def test_zombie_is_fenced(stream: KafkaStream) -> None:
    """Stopped for longer than its session, while another worker takes over; then it wakes up."""
    zombie = stream.start("w1", begin="earliest")
    with EventFeed(stream, rate=100, seed=3) as feed:
        time.sleep(2)
        zombie.signal(signal.SIGSTOP)
        successor = stream.start("w2")  # ready: it owns what the stopped one had
        time.sleep(1)
        zombie.signal(signal.SIGCONT)
        time.sleep(3)
    stream.wait_totals(feed.sent, timeout_s=120)
    stream.judge()
    assert successor.process.poll() is None
    assert Counter(feed.sent).keys() == set(KEYS)
    wait_until(
        "the zombie has ended, or lives on as a member", lambda: zombie.process.poll() in (None, 4, 5), 5
    )
