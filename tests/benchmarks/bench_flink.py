"""How many events a second does the Flink job count, and how large is its state?

A topic is filled with 100-byte JSON events first; then a job reads it to the end. Ticks are seconds of
arrival, so the closings themselves say how many events were counted in each second; the first and the
last second with events are left out. The rival, in the same run over events of the same form, is a job
that calls Python once an event. The state is that of the operator that closes ticks: the largest that a
look once a second at the last checkpoint found, at ticks above 10^6.

    python tests/benchmarks/bench_flink.py [--events 400000] [--out docs/benchmarks-flink.md] [--strict]

It runs in the development environment and finds PyFlink in .venv-flink.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "kafka"))
sys.path.insert(0, str(Path(__file__).parents[2]))

from kafka import KafkaProducer
from kafka_harness import KafkaStream, read_topic, wait_until
from tests.flink.flink_harness import FLINK_PYTHON, FlinkStream

from evertally.pipelines.aggregation_keys import AggregationKeys
from evertally.pipelines.flink.distribution import environment, fetch_connector, flink_home
from evertally.pipelines.flink.local_cluster import LocalFlink
from evertally.pipelines.kafka.config import load_worker_config
from evertally.pipelines.kafka.local_broker import LocalCluster, fetch_jars
from evertally.pipelines.kafka.sealed_records import StreamSealer
from evertally.pipelines.kafka.sums import decode_sums

POM = Path(__file__).parents[2] / "deploy" / "kafka" / "pom.xml"
BAR_EVENTS_PER_S = 20_000
STRETCH = 10.0
BAR_SCALE = 1.6
BAR_STATE_BYTES = 1024
LATE_TICK = 1_000_000
WAIT_S = 900.0


@dataclass(frozen=True, slots=True)
class Figures:
    """What one run gave."""

    events_per_s: float
    state_bytes_per_key: float


def fill(stream: KafkaStream, events: int) -> None:
    producer = KafkaProducer(bootstrap_servers=stream.servers, linger_ms=50, batch_size=1 << 18, acks=1)
    keys = list(stream.keys)
    for number in range(events):
        body = json.dumps({"k": keys[number % len(keys)], "n": number, "pad": ""}).encode()
        body = body[:-2] + b"x" * (100 - len(body)) + body[-2:]
        producer.send(stream.topic, value=body, partition=number % stream.partitions)
    producer.flush()
    producer.close()


def made(servers: str, folder: Path, keys: int, parallelism: int) -> FlinkStream:
    stream = FlinkStream(
        servers,
        folder,
        partitions=4,
        keys=[f"key-{number:05d}" for number in range(keys)],
        tick_s=1.0,
        start_ms=(int(time.time()) - LATE_TICK) * 1000,
        parallelism=parallelism,
    )
    stream.make_topics()
    return stream


def per_second(counts: Counter[int]) -> float:
    """Events a second between the first and the last second that hold any."""
    busy = sorted(t for t, count in counts.items() if count)
    inner = busy[1:-1]
    if not inner:
        raise SystemExit("too few events for this machine: give more with --events")
    return sum(counts[t] for t in inner) / (inner[-1] - inner[0] + 1)


def closed_counts(stream: FlinkStream) -> Counter[int]:
    """Events by tick, from the sealed closings."""
    config = load_worker_config(stream.config())
    keys = AggregationKeys.open(config.key_file.with_name(config.key_file.name + ".aggregation"))
    sealer = StreamSealer(keys.closing, config.topics.closed, keys.stream_id, keys.incarnation)
    found: Counter[int] = Counter()
    for record in stream.raw("closed"):
        piece = sealer.open(record.key, record.value, record.partition)
        assert piece is not None
        found[piece.place.t] += sum(decode_sums(piece.body).values())
    return found


def counted(
    cluster: LocalFlink, servers: str, folder: Path, keys: int, parallelism: int, events: int
) -> Figures:
    """Our job over `events` events of so many keys."""
    stream = made(servers, folder, keys, parallelism)
    fill(stream, events)
    job = stream.submit(cluster, "--from", "earliest")
    state = [0]

    def all_counted() -> bool:
        state.append(state_bytes(cluster, job))
        return sum(closed_counts(stream).values()) >= events

    wait_until("all are counted", all_counted, WAIT_S, 1.0)
    counts = closed_counts(stream)
    assert sum(counts.values()) == events
    assert max(counts) > LATE_TICK
    stream.stop(cluster)
    return Figures(per_second(counts), max(state) / keys)


def state_bytes(cluster: LocalFlink, job: str) -> int:
    """State of the closing operator in the last checkpoint, all lanes together; 0 before the first."""
    completed = cluster.rest.checkpoints(job)["latest"]["completed"]
    if completed is None:
        return 0
    latest = completed["id"]
    names = {vertex["id"]: vertex["name"] for vertex in cluster.rest.job(job)["vertices"]}
    tasks = cluster.rest.get(f"/jobs/{job}/checkpoints/details/{latest}")["tasks"]
    return sum(int(task["state_size"]) for vertex, task in tasks.items() if "close ticks" in names[vertex])


def naive(cluster: LocalFlink, servers: str, folder: Path, parallelism: int, events: int) -> float:
    """Events a second of the rival; it gets a share of the events, being slower."""
    stream = made(servers, folder, 10, parallelism)
    target = f"{stream.name}.naive"
    stream.create_topics([target], 1)
    fill(stream, events)
    home = flink_home(FLINK_PYTHON)
    script = Path(__file__).with_name("naive_flink_job.py")
    words = ["bash", str(home / "bin" / "flink"), "run", "-d", "-m", cluster.jobmanager]
    words += ["-j", str(fetch_connector()), "-pyexec", str(FLINK_PYTHON), "-pyclientexec", str(FLINK_PYTHON)]
    words += ["-py", str(script), servers, stream.topic, target, str(parallelism)]
    with tempfile.TemporaryDirectory() as logs:
        subprocess.run(
            words, check=True, capture_output=True, env=environment(home, cluster.conf, Path(logs))
        )
    counts: Counter[int] = Counter()

    def all_counted() -> bool:
        counts.clear()
        for record in read_topic(servers, target):
            fields = json.loads(record.value)
            counts[fields["t"]] += fields["n"]
        return counts.total() >= events

    wait_until("the rival has counted", all_counted, WAIT_S, 2.0)
    for job in cluster.rest.live_jobs("naive"):
        cluster.rest.cancel(job)
    return per_second(counts)


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--events", type=int, default=400_000)
    arguments.add_argument("--naive-events", type=int, default=60_000)
    arguments.add_argument("--keys", type=int, nargs="*", default=[10, 1000, 10_000])
    arguments.add_argument("--out", type=Path)
    arguments.add_argument("--strict", action="store_true")
    chosen = arguments.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "kafka").mkdir()
        with (
            LocalCluster(fetch_jars(POM), folder / "kafka") as kafka,
            LocalFlink(folder / "flink", FLINK_PYTHON, task_managers=2, slots=1) as flink,
        ):
            servers = kafka.bootstrap_servers
            counted(flink, servers, folder, chosen.keys[0], 2, chosen.events // 2)  # to warm up the cluster
            rival = naive(flink, servers, folder, 2, chosen.naive_events)
            by_keys = {keys: counted(flink, servers, folder, keys, 2, chosen.events) for keys in chosen.keys}
            alone = counted(flink, servers, folder, chosen.keys[0], 1, chosen.events)
    both = by_keys[chosen.keys[0]]
    lines = table(rival, by_keys, alone, both)
    print("\n".join(lines))
    if chosen.out is not None:
        chosen.out.write_text(page(lines, chosen.events), "utf-8")
    missed = both.events_per_s < BAR_EVENTS_PER_S or any(
        figures.state_bytes_per_key >= BAR_STATE_BYTES for figures in by_keys.values()
    )
    sys.exit(1 if chosen.strict and missed else 0)


def table(rival: float, by_keys: dict[int, Figures], alone: Figures, both: Figures) -> list[str]:
    rows = ["| run | events/s | against | state a key |", "|---|---|---|---|"]
    rows.append(f"| Python once an event, 2 TaskManagers, 10 keys | {rival:,.0f} | the rival | |")
    for keys, figures in by_keys.items():
        rows.append(
            f"| this job, 2 TaskManagers, {keys:,} keys | {figures.events_per_s:,.0f} | "
            f"{figures.events_per_s / BAR_EVENTS_PER_S:.2f} of {BAR_EVENTS_PER_S:,}; "
            f"{figures.events_per_s / rival:.1f} x the rival (stretch {STRETCH:g}) | "
            f"{figures.state_bytes_per_key:,.0f} bytes (bar {BAR_STATE_BYTES}) |"
        )
    scale = both.events_per_s / alone.events_per_s
    cores = os.cpu_count() or 1
    cores_text = (
        "" if cores >= 6 else f"; {cores} cores for 2 TaskManagers, their Python, Kafka and this script"
    )
    rows.append(
        f"| this job, 1 TaskManager, {min(by_keys):,} keys | {alone.events_per_s:,.0f} | "
        f"2 TaskManagers are {scale:.2f} x 1 (bar {BAR_SCALE:g} with cores for both{cores_text}) | "
        f"{alone.state_bytes_per_key:,.0f} bytes |"
    )
    return rows


def page(lines: list[str], events: int) -> str:
    text = "\n".join(lines)
    return f"""# Flink: events a second, and state

Written by `tests/benchmarks/bench_flink.py`: {events:,} JSON events of 100 bytes over 4 partitions,
ticks of 1 s at t > 10^6, {os.cpu_count()} cores for the broker, the cluster and its Python processes.
The state is the largest seen in a checkpoint of the operator that closes ticks, all lanes together.
Neighbours on the machine change every rate; read the ratios first.

{text}

The state depends on the number of keys and lanes and on the open ticks, not on t: a lane holds
8 bytes a key and open tick, sealed, and 17 bytes for where it stands.
"""


if __name__ == "__main__":
    main()
