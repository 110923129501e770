"""Beam on Prism with a real Kafka: unbounded, killed and started anew; what every engine must keep."""

from __future__ import annotations

import dataclasses
import json
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from kafka import KafkaProducer
from kafka_harness import EventFeed, InThread, KafkaStream, wait_until
from tests.beam.prism_streams import (
    Job,
    Supervised,
    head,
    late_stream,
    observed,
    start_beam,
    start_many,
    stream_of,
    value,
    wait_released,
)
from tests.contracts.engine_conformance import Case, Event, Observed, case, verify
from tests.contracts.late_events import LateEvents
from tests.metrics.metrics_ledgers import samples

from evertally.pipelines.kafka.config import load_worker_config
from evertally.pipelines.kafka.local_broker import free_ports
from evertally.pipelines.kafka.worker import Worker

pytestmark = [pytest.mark.prism, pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(900)]

CLOSED = "units and restarts, closed for a releaser"
NAMES = ("hot key", "broken and undeclared", "idle partitions", "empty ticks", "units and restarts", "drain")
Results = tuple[dict[str, Observed], tuple[LateEvents, bool]]
AHEAD = 75
"""Ticks by which events are ahead of the clock: still open when a killed job is back."""
_MARGIN = 10
LIVE = [dataclasses.replace(case(name), ticks=5) for name in (*NAMES, "ten thousand keys")]
LIVE.append(dataclasses.replace(case("units and restarts"), name=CLOSED, ticks=5))


@pytest.fixture(scope="module")
def late(servers: str, tmp_path_factory: pytest.TempPathFactory) -> KafkaStream:
    """A stream whose events go to the ticks of their own time."""
    return late_stream(servers, tmp_path_factory.mktemp("late"))


@pytest.fixture(scope="module")
def results(
    prism: Path, servers: str, tmp_path_factory: pytest.TempPathFactory, late: KafkaStream
) -> Results:
    """All cases at once, in one job that is killed once and drained once while events come."""
    folder = tmp_path_factory.mktemp("cases")
    streams = {
        one.name: stream_of(
            one, servers, folder, tick_s=10.0 if len(one.keys) > 1000 else 1.0, closings=one.name == CLOSED
        )
        for one in LIVE
    }
    listed = [*streams.values(), late]
    job = Supervised(lambda begin: start_many(prism, begin, listed, folder / "job.log"))
    releaser = InThread(Worker(load_worker_config(streams[CLOSED].config()), release_only=True))
    try:
        releaser.__enter__()
        wait_until("first releases", lambda: job.running() and all(map(head, listed)), 240, 1.0)
        early, punctual = _send_late(job, late)
        feeds = [threading.Thread(target=_feed, args=(streams[one.name], one)) for one in LIVE]
        for feed in feeds:
            feed.start()
        chance = random.Random(3)
        for drain in (False, True):
            time.sleep(chance.uniform(1, 4))
            if drain:
                assert job.job.drain() == 0
            else:
                job.job.kill()
            job.restart()
            wait_until("releases again", _more(streams["hot key"], job), 240, 1.0)
            wait_until("late ones too", _more(late, job), 240, 0.5)
            # what was read and not durable yet is read anew, now: on a busy machine after its tick has closed
            punctual = punctual and _now(late) + _MARGIN < early.first
        for feed in feeds:
            feed.join()
        sent_ms = time.time() * 1000
        for one in LIVE:
            wait_released(job, streams[one.name], sent_ms, 240)
        wait_until("the ticks ahead", lambda: job.running() and head(late) >= early.last, 240, 0.5)
        assert releaser.error is None, releaser.error
    finally:
        job.job.kill()
        releaser.__exit__()
    return {one.name: observed(streams[one.name], one) for one in LIVE}, (early, punctual)


def _send_late(job: Supervised, stream: KafkaStream) -> tuple[LateEvents, bool]:
    """Send events of ticks that are far from closed, and have them read; whether that was in time."""

    now = _now(stream)
    sent = LateEvents(stream.start_ms, now + AHEAD, head(stream), now + 10_000)
    fences = [Event(0, "", partition, raw=b"the end") for partition in range(stream.partitions)]
    _feed(stream, Case("late", (*sent.events, *fences)), seconds=0)

    def read() -> bool:
        letters = [json.loads(record.value) for record in stream.raw("dead-letters")]
        return job.running() and {
            letter["partition"] for letter in letters if letter["code"] == "malformed"
        } == set(range(stream.partitions))

    wait_until("they were read", read, 240, 0.5)
    return sent, _now(stream) < sent.first


def _now(stream: KafkaStream) -> int:
    return int((time.time() * 1000 - stream.start_ms) / 1000) + 1


def _more(stream: KafkaStream, job: Job | Supervised) -> Callable[[], bool]:
    had = head(stream)
    return lambda: job.running() and head(stream) > had


def _feed(stream: KafkaStream, case: Case, seconds: float = 20.0) -> None:
    """Events spread over the kills, each to its own partition in order."""
    producer = KafkaProducer(bootstrap_servers=stream.servers, acks="all", metrics_enabled=False)
    pause_s = seconds / max(1, len(case.events))
    for event in case.events:
        producer.send(stream.topic, value=value(event), partition=event.partition)
        if pause_s > 0.02 or (pause_s and event.partition == 0):
            time.sleep(pause_s)
    producer.flush()
    producer.close()


@pytest.mark.parametrize("live", LIVE, ids=lambda live: live.name)
def test_beam_on_prism_conforms(live: Case, results: Results) -> None:
    verify(dataclasses.replace(live, ticks=2 if len(live.keys) > 1000 else 5), results[0][live.name])


def test_late_and_early_events_by_their_own_time(results: Results, late: KafkaStream) -> None:
    """They were read ahead of their ticks, and again by every new job."""
    letters = [record.value for record in late.raw("dead-letters")]
    others = (letter for letter in letters if json.loads(letter)["code"] != "malformed")  # than the fences
    results[1][0].verify(late.exact(), others, punctual=results[1][1])
    late.judge()


def test_killed_and_started_anew(prism: Path, servers: str, tmp_path: Path) -> None:
    """`evertally beam` killed with SIGKILL and given again: none lost, none doubled, no value differs."""
    stream = KafkaStream(servers, tmp_path)
    stream.make_topics()
    (port,) = free_ports(1)
    job = start_beam(prism, "earliest", stream, "--metrics-listen", f"127.0.0.1:{port}")
    try:
        wait_until("a release", lambda: job.running() and head(stream), 120, 0.5)
        shown = samples(
            httpx.get(f"http://127.0.0.1:{port}/internal/metrics", trust_env=False, timeout=60).text
        )
        assert shown["evertally_beam_clock_trusted"] == 1
        assert f'evertally_beam_ticks_behind{{stream="{stream.name}"}}' in shown
        with EventFeed(stream, rate=150, seed=9) as feed:
            time.sleep(3)
            arguments = Path(f"/proc/{job.process.pid}/cmdline").read_bytes()
            job.kill()
            job = start_beam(prism, None, stream)
            wait_until("releases again", _more(stream, job), 120, 0.5)
        stream.wait_totals(feed.sent, timeout_s=120)
        stream.judge()
        secret = (tmp_path / f"{stream.name}.key").read_bytes()[16:48]
        for place in (arguments, job.log.read_bytes()):
            assert secret not in place
            assert secret.hex().encode() not in place
    finally:
        job.kill()
