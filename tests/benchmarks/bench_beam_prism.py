"""How many events a second does one Beam job on Prism count, and how late are its releases?

Throughput: a topic is filled with 100-byte JSON events first; then one job reads it to the end. Positions
come from the ledger, CPU time is that of the job and of Prism together. The rival, in the same run on the
same topic, is a bare kafka-python consumer that decodes the same JSON. Lag: events arrive at a steady rate;
a release's lag is the broker's time of its record minus the tick's end, after the first ten seconds.

    python tests/benchmarks/bench_beam_prism.py [--events 200000] [--lag-seconds 40] [--strict]
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "kafka"))
sys.path.insert(0, str(Path(__file__).parents[2]))

from kafka import KafkaProducer
from kafka_harness import KafkaStream, read_topic, wait_until
from tests.beam.conftest import PRISM
from tests.beam.prism_streams import Job, head, start_beam
from tests.benchmarks.bench_kafka_worker import KEYS, bare_consumer, event, fill, report

from evertally.accountants.budget.opening import open_ledger
from evertally.pipelines.beam.positions import Cuts
from evertally.pipelines.kafka.config import load_worker_config
from evertally.pipelines.kafka.local_broker import LocalCluster, fetch_jars
from evertally.pipelines.keyfile import KeyFile
from evertally.pipelines.releaser import stored_positions

ROOT = Path(__file__).parents[2]
BAR_EVENTS_PER_S = 10_000
BAR_LAG_S = 2.0


def consumed(stream: KafkaStream) -> int:
    """Events behind the ledger's last row."""
    config = load_worker_config(stream.config())
    store = open_ledger(config.ledger)
    try:
        opened = store.find_stream(stream.name)
        assert opened is not None
        _, positions = stored_positions(store, opened, KeyFile.open(config.key_file), 0)
    finally:
        store.close()
    return sum(stops[-1] for stops in Cuts.decode(positions).stops) if positions else 0


def cpu_s(job: Job) -> float:
    """CPU seconds of every process of the job's session."""
    total = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rsplit(") ", 1)[1].split()
        except OSError:
            continue
        if int(fields[3]) == job.process.pid:
            total += int(fields[11]) + int(fields[12])
    return total / os.sysconf("SC_CLK_TCK")


def throughput(stream: KafkaStream, events: int) -> tuple[float, float]:
    """Events a second by the wall and by CPU time, from the first (empty) release to the last event's."""
    fill(stream, events)
    job = start_beam(PRISM, "earliest", stream)
    try:
        wait_until("a release", lambda: job.running() and head(stream), 180, 0.05)
        began, cpu, first = time.perf_counter(), cpu_s(job), consumed(stream)
        wait_until("all counted", lambda: job.running() and consumed(stream) >= events, 600, 0.1)
        wall, used = time.perf_counter() - began, cpu_s(job) - cpu
    finally:
        job.kill()
    return (events - first) / wall, (events - first) / max(used, 1e-9)


def lags(stream: KafkaStream, rate: int, seconds: int) -> list[float]:
    """Lag of every release, seconds, with events coming at a steady rate."""
    job = start_beam(PRISM, "earliest", stream)
    try:
        wait_until("caught up", lambda: job.running() and _behind_s(stream) < 3, 240, 0.2)
        producer = KafkaProducer(bootstrap_servers=stream.servers, linger_ms=5, acks=1, metrics_enabled=False)
        began, began_ms, number = time.monotonic(), time.time() * 1000, 0
        while time.monotonic() - began < seconds:
            while number < (time.monotonic() - began) * rate:
                producer.send(stream.topic, value=event(number), partition=number % stream.partitions)
                number += 1
            time.sleep(0.01)
        producer.close()
    finally:
        job.kill()
    found = []
    for record in read_topic(stream.servers, f"{stream.name}.releases"):
        release = json.loads(record.value)
        if release["schema"].startswith("evertally.release"):
            end_ms = stream.start_ms + release["t"] * stream.tick_s * 1000
            if end_ms > began_ms + 10_000:
                found.append((record.timestamp - end_ms) / 1000)
    return sorted(found)


def _behind_s(stream: KafkaStream) -> float:
    return time.time() - stream.start_ms / 1000 - head(stream) * stream.tick_s


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--events", type=int, default=200_000)
    arguments.add_argument("--lag-seconds", type=int, default=40)
    arguments.add_argument("--rate", type=int, default=300)
    arguments.add_argument("--strict", action="store_true")
    chosen = arguments.parse_args()
    jars = fetch_jars(ROOT / "deploy" / "kafka" / "pom.xml")
    with tempfile.TemporaryDirectory() as folder, LocalCluster(jars, Path(folder)) as cluster:
        address = cluster.bootstrap_servers
        streams = [KafkaStream(address, Path(folder), keys=KEYS, tick_s=1.0) for _ in range(2)]
        for stream in streams:
            stream.make_topics()
        wall, per_cpu = throughput(streams[0], chosen.events)
        bare = bare_consumer(streams[0], chosen.events)
        found = lags(streams[1], chosen.rate, chosen.lag_seconds)
    p95 = found[int(0.95 * (len(found) - 1))]
    median = found[len(found) // 2]
    report("events/s by the wall clock", wall, wall / BAR_EVENTS_PER_S, "x bar")
    report("events/s per core (job and Prism)", per_cpu, per_cpu / BAR_EVENTS_PER_S, "x bar")
    report("bare kafka-python and json, events/s", bare, wall / bare, "job/bare")
    report(f"release lag at {chosen.rate}/s, median, s", median, median / BAR_LAG_S, "of the bar")
    report(f"release lag, p95 of {len(found)}, s", p95, p95 / BAR_LAG_S, "of the bar")
    if chosen.strict and (per_cpu < BAR_EVENTS_PER_S or p95 > BAR_LAG_S):
        sys.exit(1)


if __name__ == "__main__":
    main()
