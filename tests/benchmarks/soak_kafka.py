"""Does a worker survive hundreds of kill -9, and does its memory stay flat? Writes docs/kafka-soak.md.

python tests/benchmarks/soak_kafka.py kills [--kills 200] [--minutes 35]
python tests/benchmarks/soak_kafka.py memory [--minutes 35] [--rate 5000]
python tests/benchmarks/soak_kafka.py hour [--minutes 60] [--rate 5000]

Each part rewrites its own section of the page and keeps the other. The judge is this process: it reads the
topics and the ledger's table raw, and draws the noise again from the key file to see the exact totals.
A figure stands on the page only after the judge found nothing lost, nothing twice and no second value.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import random
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "kafka"))
sys.path.insert(0, str(Path(__file__).parent))

from kafka_harness import EventFeed, KafkaStream, resident_mib
from make_page import ROOT, processor  # type: ignore[import-not-found]  # it stands beside this script

from evertally.pipelines.kafka.local_broker import LocalCluster, fetch_jars

POM = ROOT / "deploy" / "kafka" / "pom.xml"
PAGE = ROOT / "docs" / "kafka-soak.md"
PARTS = ("kills", "memory", "hour")
STARTING_TICKS = 60


def kills(stream: KafkaStream, wanted: int, minutes: float) -> str:
    """Kill the worker again and again at random points while events flow; then judge."""
    seed = int(time.time())
    chance = random.Random(seed)
    deadline = time.monotonic() + minutes * 60
    loads, done, waited = [], 0, 0
    worker = stream.start(begin="earliest")
    with EventFeed(stream, rate=150, seed=seed) as feed:
        while done < wanted and time.monotonic() < deadline:
            time.sleep(chance.uniform(0.2, 4.0))
            worker.signal(signal.SIGKILL)
            worker.process.wait()
            done += 1
            loads.append(os.getloadavg()[0])
            worker = stream.start(ready=False)
            if chance.random() < 0.5:
                worker.wait_ready(180)
                waited += 1
            print(f"{done} kills", flush=True)
        worker.wait_ready(180)
    stream.wait_totals(feed.sent, timeout_s=600)
    assert worker.end() == 0
    ticks = stream.judge()
    return (
        f"kill -9 of the only worker {done} times, {waited} of them after it was ready again and "
        f"{done - waited} at a random moment of its start; session timeout 6 s, static membership; "
        f"seed {seed}.\n{sum(feed.sent.values())} events acknowledged, as many counted; "
        f"{ticks} ticks x {len(stream.keys)} keys, each released once and in order; 0 lost, 0 twice, "
        "0 second values; ledger and topic equal.\n"
        f"Load average of the machine meanwhile: median {statistics.median(loads):.1f}."
    )


def memory(stream: KafkaStream, rate: float, minutes: float) -> str:
    """Memory, descriptors and lag of one worker under steady load, after a tenth of the time to warm up."""
    worker = stream.start(begin="earliest")
    pid, minute, sizes, descriptors, loads = worker.process.pid, [], [], [], []
    began = time.monotonic()
    with EventFeed(stream, rate=rate, seed=1) as feed:
        time.sleep(minutes * 6)
        while time.monotonic() - began < minutes * 60:
            minute.append((time.monotonic() - began) / 60)
            sizes.append(resident_mib(pid))
            descriptors.append(len(list(Path(f"/proc/{pid}/fd").iterdir())))
            loads.append(os.getloadavg()[0])
            print(f"{minute[-1]:5.1f} min {sizes[-1]:7.1f} MiB {descriptors[-1]} descriptors", flush=True)
            time.sleep(minutes * 1.8)
        sent_s = time.monotonic() - began
    stream.wait_totals(feed.sent, timeout_s=600)
    ticks = stream.judge()
    assert worker.end() == 0
    third = len(sizes) // 3
    first, last = max(sizes[:third]), max(sizes[-third:])
    slope = statistics.linear_regression(minute[-2 * third :], sizes[-2 * third :]).slope * 60
    late = lags(stream)
    total = sum(feed.sent.values())
    shown = " ".join(f"{size:.0f}" for size in sizes)
    return (
        f"{minutes:g} minutes, {total} events ({total / sent_s:.0f}/s on average, {rate:g}/s asked for), "
        f"{len(stream.keys)} keys, {ticks} ticks of {stream.tick_s:g} s; every event counted, every tick "
        "released once, 0 second values.\n"
        f"Resident memory, MiB: {shown}\n"
        f"Largest of the first third {first:.1f} MiB, of the last third {last:.1f} MiB: "
        f"{last / first:.3f} x; slope over the last two thirds {slope:.2f} MiB an hour.\n"
        f"Open descriptors: {min(descriptors)} to {max(descriptors)}, {descriptors[-1]} at the end.\n"
        f"Lag of a release behind its tick's end: median {late[len(late) // 2]:.2f} s, "
        f"p99 {late[int(0.99 * (len(late) - 1))]:.2f} s, longest {late[-1]:.2f} s, {len(late)} releases.\n"
        f"Load average of the machine meanwhile: median {statistics.median(loads):.1f}."
    )


def lags(stream: KafkaStream) -> list[float]:
    """Seconds from a tick's end to the broker's time of its release, ascending; the start left out."""
    found = []
    for record in stream.raw("releases"):
        fields = json.loads(record.value)
        if fields["schema"] == "evertally.release/1" and fields["t"] > STARTING_TICKS:
            found.append(record.timestamp / 1000 - stream.start_ms / 1000 - fields["t"] * stream.tick_s)
    return sorted(found)


def write(part: str, body: str) -> None:
    """Replace one section of the page."""
    old = PAGE.read_text() if PAGE.exists() else ""
    sections = []
    for name in PARTS:
        begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
        if name == part:
            today = datetime.datetime.now(datetime.UTC).date().isoformat()
            where = f"{os.cpu_count()} cores of {processor()}, Python {platform.python_version()}"
            title = f"## `python tests/benchmarks/soak_kafka.py {name}`"
            place = f"{today}, {where}; the broker beside it."
            sections.append(f"{begin}\n{title}\n\n{place}\n\n```\n{body}\n```\n{end}")
        elif begin in old:
            sections.append(begin + old.partition(begin)[2].partition(end)[0] + end)
    head = "# Long runs of the Kafka worker\n\nWritten by `tests/benchmarks/soak_kafka.py`, not by hand."
    PAGE.write_text("\n\n".join([head, *sections]) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--minutes", type=float, help="default 35, of an hour 60")
    parser.add_argument("--rate", type=float, default=5000.0)
    chosen = parser.parse_args()
    minutes = chosen.minutes or (60.0 if chosen.part == "hour" else 35.0)
    with tempfile.TemporaryDirectory() as folder, LocalCluster(fetch_jars(POM), Path(folder)) as cluster:
        servers = cluster.bootstrap_servers
        if chosen.part == "kills":
            stream = KafkaStream(servers, Path(folder))
        else:
            keys = tuple(f"key-{number:02d}" for number in range(16))
            stream = KafkaStream(servers, Path(folder), keys=keys, tick_s=1.0)
        stream.make_topics()
        try:
            if chosen.part == "kills":
                body = kills(stream, chosen.kills, minutes)
            else:
                body = memory(stream, chosen.rate, minutes)
        finally:
            stream.close()
    write(chosen.part, body)
    print(body)


if __name__ == "__main__":
    main()
