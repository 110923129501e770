"""Beam on Prism with a real Kafka: unbounded, killed and started anew; what every engine must keep."""

from __future__ import annotations

import dataclasses
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from kafka import KafkaProducer
from kafka_harness import EventFeed, InThread, KafkaStream, free_port, wait_until
from tests.beam.prism_streams import (
    Job,
    head,
    observed,
    start_beam,
    start_many,
    stream_of,
    value,
    wait_released,
)
from tests.contracts.engine_conformance import Case, Observed, case, verify
from tests.metrics.metrics_ledgers import samples

from evertally.pipelines.kafka.config import load_worker_config
from evertally.pipelines.kafka.worker import Worker

pytestmark = [pytest.mark.prism, pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(900)]

KILLS = 2
CLOSED = "units and restarts, closed for a releaser"
NAMES = ("hot key", "broken and undeclared", "idle partitions", "empty ticks", "units and restarts")
LIVE = [dataclasses.replace(case(name), ticks=5) for name in (*NAMES, "ten thousand keys")]
LIVE.append(dataclasses.replace(case("units and restarts"), name=CLOSED, ticks=5))


@pytest.fixture(scope="module")
def results(prism: Path, servers: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Observed]:
    """All cases at once, in one job that is killed twice while events come."""
    folder = tmp_path_factory.mktemp("cases")
    streams = {
        one.name: stream_of(
            one, servers, folder, tick_s=20.0 if len(one.keys) > 1000 else 1.0, closings=one.name == CLOSED
        )
        for one in LIVE
    }
    listed = list(streams.values())
    job = start_many(prism, "earliest", listed, folder / "job.log")
    releaser = InThread(Worker(load_worker_config(streams[CLOSED].config()), release_only=True))
    try:
        releaser.__enter__()
        wait_until("first releases", lambda: job.running() and all(map(head, listed)), 240, 1.0)
        feeds = [threading.Thread(target=_feed, args=(streams[one.name], one)) for one in LIVE]
        for feed in feeds:
            feed.start()
        chance = random.Random(3)
        for _ in range(KILLS):
            time.sleep(chance.uniform(1, 4))
            job.kill()
            job = start_many(prism, None, listed, folder / "job.log")
            wait_until("releases again", _more(streams["hot key"], job), 240, 1.0)
        for feed in feeds:
            feed.join()
        sent_ms = time.time() * 1000
        for one in LIVE:
            wait_released(job, streams[one.name], sent_ms, 240)
        assert releaser.error is None, releaser.error
    finally:
        job.kill()
        releaser.__exit__()
    return {one.name: observed(streams[one.name], one) for one in LIVE}


def _more(stream: KafkaStream, job: Job) -> Callable[[], bool]:
    had = head(stream)
    return lambda: job.running() and head(stream) > had


def _feed(stream: KafkaStream, case: Case) -> None:
    """Events spread over the kills, each to its own partition in order."""
    producer = KafkaProducer(bootstrap_servers=stream.servers, acks="all", metrics_enabled=False)
    pause_s = 20.0 / max(1, len(case.events))
    for event in case.events:
        producer.send(stream.topic, value=value(event), partition=event.partition)
        if pause_s > 0.02 or event.partition == 0:
            time.sleep(pause_s)
    producer.flush()
    producer.close()


@pytest.mark.parametrize("live", LIVE, ids=lambda live: live.name)
def test_beam_on_prism_conforms(live: Case, results: dict[str, Observed]) -> None:
    verify(dataclasses.replace(live, ticks=2 if len(live.keys) > 1000 else 5), results[live.name])


def test_killed_and_started_anew(prism: Path, servers: str, tmp_path: Path) -> None:
    """`evertally beam` killed with SIGKILL and given again: none lost, none doubled, no value differs."""
    stream = KafkaStream(servers, tmp_path)
    stream.make_topics()
    port = free_port()
    job = start_beam(prism, "earliest", stream, "--metrics-listen", f"127.0.0.1:{port}")
    try:
        wait_until("a release", lambda: job.running() and head(stream), 120, 0.5)
        shown = samples(httpx.get(f"http://127.0.0.1:{port}/internal/metrics", trust_env=False).text)
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
