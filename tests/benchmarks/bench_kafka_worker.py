"""How many events a second does one worker process count, end to end, and how late are its releases?

Throughput: a topic is filled with 100-byte JSON events first; then one worker reads it to the end. The
rival, in the same run on the same topic, is a bare kafka-python consumer that decodes the same JSON and
does nothing else. Lag: events arrive at a steady rate; a release's lag is the broker's time of its
record minus the tick's end.

    python tests/benchmarks/bench_kafka_worker.py [--events 300000] [--lag-seconds 30]
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

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka_harness import KafkaStream, read_topic, wait_until

from evertally.pipelines.kafka.local_broker import LocalCluster, fetch_jars

POM = Path(__file__).parents[2] / "deploy" / "kafka" / "pom.xml"
KEYS = tuple(f"key-{number:02d}" for number in range(16))
BAR_EVENTS_PER_S = 25_000
BAR_LAG_S = 1.0


def event(number: int) -> bytes:
    body = json.dumps({"k": KEYS[number % 16], "n": number, "pad": ""}).encode()
    return body[:-2] + b"x" * (100 - len(body)) + body[-2:]


def fill(stream: KafkaStream, events: int) -> None:
    producer = KafkaProducer(bootstrap_servers=stream.servers, linger_ms=50, batch_size=1 << 18, acks=1)
    for number in range(events):
        producer.send(stream.topic, value=event(number), partition=number % stream.partitions)
    producer.flush()
    producer.close()


def bare_consumer(stream: KafkaStream, events: int) -> float:
    """Events a second of kafka-python and the JSON decoder alone."""
    reader = KafkaConsumer(
        bootstrap_servers=stream.servers, auto_offset_reset="none", enable_auto_commit=False,
        isolation_level="read_committed", max_poll_records=4000,
    )  # fmt: skip
    places = [TopicPartition(stream.topic, number) for number in range(stream.partitions)]
    reader.assign(places)
    for place in places:
        reader.seek(place, 0)
    began, seen = time.perf_counter(), 0
    while seen < events:
        for records in reader.poll(timeout_ms=200).values():
            seen += len([json.loads(record.value) for record in records])
    rate = events / (time.perf_counter() - began)
    reader.close()
    return rate


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def throughput(stream: KafkaStream, events: int) -> tuple[float, float]:
    """Events a second by the wall and by the worker's own CPU, from ready to all committed."""
    worker = stream.start(begin="latest")
    began, cpu = time.perf_counter(), cpu_s(worker.process.pid)
    # the topic is filled while the worker is stopped, so that it reads at full speed afterwards
    worker.end()
    fill(stream, events)
    worker = stream.start(ready=False)
    began = time.perf_counter()
    wait_until("the first commit", lambda: committed(stream) > 0, 60, 0.02)
    began, cpu, first = time.perf_counter(), cpu_s(worker.process.pid), committed(stream)
    wait_until("all committed", lambda: committed(stream) >= events, 300, 0.05)
    wall, used = time.perf_counter() - began, cpu_s(worker.process.pid) - cpu
    worker.end()
    return (events - first) / wall, (events - first) / max(used, 1e-9)


_READERS: dict[str, KafkaConsumer] = {}


def committed(stream: KafkaStream) -> int:
    reader = _READERS.get(stream.name) or _READERS.setdefault(
        stream.name,
        KafkaConsumer(
            bootstrap_servers=stream.servers, group_id=f"{stream.name}.aggregate", enable_auto_commit=False
        ),
    )
    found = [reader.committed(TopicPartition(stream.topic, n)) for n in range(stream.partitions)]
    return sum(offset or 0 for offset in found)


def lags(stream: KafkaStream, rate: int, seconds: int) -> list[float]:
    """Lag of every release, seconds, with events coming at a steady rate."""
    worker = stream.start(begin="latest")
    producer = KafkaProducer(bootstrap_servers=stream.servers, linger_ms=5, batch_size=1 << 16, acks=1)
    began, began_ms, number = time.monotonic(), time.time() * 1000, 0
    while time.monotonic() - began < seconds:
        due = (time.monotonic() - began) * rate
        while number < due:
            producer.send(stream.topic, value=event(number), partition=number % stream.partitions)
            number += 1
        time.sleep(0.005)
    producer.close()
    worker.end()
    print(f"events/s that were sent for the lag: {number / seconds:.0f}")
    found = []
    for record in read_topic(stream.servers, f"{stream.name}.releases"):
        release = json.loads(record.value)
        if release["schema"].startswith("evertally.release"):
            end_ms = stream.start_ms + release["t"] * stream.tick_s * 1000
            if end_ms > began_ms + 3000:  # after the start's catching up
                found.append((record.timestamp - end_ms) / 1000)
    return sorted(found)


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--events", type=int, default=300_000)
    arguments.add_argument("--lag-seconds", type=int, default=30)
    arguments.add_argument("--rate", type=int, default=5000)
    chosen = arguments.parse_args()
    with tempfile.TemporaryDirectory() as folder, LocalCluster(fetch_jars(POM), Path(folder)) as cluster:
        fast = KafkaStream(cluster.bootstrap_servers, Path(folder), keys=KEYS, tick_s=1.0)
        fast.make_topics()
        wall, per_cpu = throughput(fast, chosen.events)
        bare = bare_consumer(fast, chosen.events)
        steady = KafkaStream(cluster.bootstrap_servers, Path(folder), keys=KEYS, tick_s=1.0)
        steady.make_topics()
        found = lags(steady, chosen.rate, chosen.lag_seconds)
        for stream in (fast, steady):
            stream.close()
    p99 = found[int(0.99 * (len(found) - 1))]
    report("events/s by the wall clock", wall, wall / BAR_EVENTS_PER_S, f"x {BAR_EVENTS_PER_S}")
    report("events/s by the worker's CPU time", per_cpu, per_cpu / BAR_EVENTS_PER_S, f"x {BAR_EVENTS_PER_S}")
    report("bare kafka-python and json, events/s", bare, wall / bare, "worker/bare")
    report("release lag, median, s", found[len(found) // 2], found[len(found) // 2] / BAR_LAG_S, "of 1 s")
    report(f"release lag, p99 of {len(found)}, s", p99, p99 / BAR_LAG_S, "of 1 s")


def report(what: str, figure: float, ratio: float, against: str) -> None:
    print(f"{what:40s} {figure:12.3f}   {ratio:6.2f} {against}")


if __name__ == "__main__":
    main()
