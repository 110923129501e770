"""`make kafka-demo`: a broker, a year of departures played at 1,000 times its speed, a worker, a live table.

The clock of the worker runs 1,000 times as fast as the wall, from the first departure on; so an hourly
tick takes 3.6 seconds. Everything is started here and stopped at the end.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import importlib.resources
import json
import logging
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from kafka import KafkaProducer
from rich.console import Console
from rich.live import Live
from rich.table import Table

from evertally.pipelines.guarantee import guarantee_sentence
from evertally.pipelines.kafka.broker import Broker, TopicPartition
from evertally.pipelines.kafka.config import WorkerConfig, load_worker_config
from evertally.pipelines.kafka.local_broker import LocalCluster, fetch_jars, missing_tool
from evertally.pipelines.kafka.topics import create_topics
from evertally.pipelines.kafka.worker import Worker
from evertally.pipelines.local.demo import CARRIERS
from evertally.pipelines.releases import RELEASE_SCHEMA, Release
from evertally.pipelines.ticks import format_ms
from evertally.pipelines.timestamps import parse_timestamp

__all__ = ["main"]

_START: Final = "2013-01-01T10:00:00Z"
_PARTITIONS: Final = 3
_FIRST_TICK_S: Final = 240.0  # eight seconds on an idle machine
_CONFIG: Final = """
[stream]
name = "departures"
keys = {keys}
start = "{start}"
tick_s = 3600
closing = "event-time"
lateness_s = 300
skew_s = 3600
[source]
key = "carrier"
timestamp = "timestamp"
[privacy]
epsilon = 1.0
delta = 1e-6
[state]
path = "departures.ledger"
key_file = "departures.key"
[kafka]
bootstrap_servers = "{servers}"
topic = "departures"
prefix = "departures.counted"
instance = "demo"
commit_s = 0.3
"""


class FastClock:
    """A clock that runs `speed` times as fast as the monotonic one, from a given moment on."""

    def __init__(self, start_ms: int, speed: float) -> None:
        self._start_ms: Final = start_ms
        self._speed: Final = speed
        self._began: Final = time.monotonic()

    def now_ms(self) -> int:
        """See `Clock`."""
        return self._start_ms + int((time.monotonic() - self._began) * self._speed * 1000)

    def wall_step_ms(self) -> int:
        """See `Clock`: nobody sets this clock."""
        return 0


def departures() -> Iterator[dict[str, str]]:
    """The departures that are shipped with the package, in order of time."""
    data = importlib.resources.files("evertally.pipelines.local") / "data" / "departures.csv.gz"
    with importlib.resources.as_file(data) as path, gzip.open(path, "rt", encoding="utf-8") as lines:
        yield from csv.DictReader(lines)


def play(servers: str, clock: FastClock, stop: threading.Event) -> None:
    """Send each departure when the clock reaches its time."""
    producer = KafkaProducer(bootstrap_servers=servers, linger_ms=20, acks="all")
    for number, row in enumerate(departures()):
        due_ms = parse_timestamp(row["timestamp"], None)
        while clock.now_ms() < due_ms:
            if stop.wait(0.02):
                producer.close()
                return
        producer.send("departures", json.dumps(row).encode(), partition=number % _PARTITIONS)
    producer.close()


def follow(
    config: WorkerConfig, stop: threading.Event, latest: dict[str, Release], tick: threading.Event
) -> None:
    """Read releases as anyone may who reads the topic."""
    reader = config.broker.reader()
    place = TopicPartition(config.topics.releases, 0)
    reader.assign([place])
    reader.seek(place, 0)
    while not stop.is_set():
        for records in reader.poll(timeout_ms=300).values():
            for record in records:
                if json.loads(record.value)["schema"] == RELEASE_SCHEMA:
                    release = Release.decode(record.value)
                    latest[release.key] = release
            tick.set()
    reader.close(autocommit=False)


def table(latest: dict[str, Release]) -> Table:
    """The newest total of each key with its error band."""
    first = next(iter(latest.values()), None)
    title = (
        "waiting for the first tick"
        if first is None
        else f"tick {first.t}, ended {format_ms(first.tick_end_ms)}"
    )
    shown = Table(title=f"departures from New York, noisy totals: {title}")
    for column in ("carrier", "total", "one standard error"):
        shown.add_column(column, justify="left" if column == "carrier" else "right")
    for key in sorted(latest):
        shown.add_row(key, f"{latest[key].value:,}", f"\u00b1 {latest[key].stderr:.1f}")
    return shown


def run(pom: Path, seconds: float, speed: float, console: Console) -> int:
    """Run the demo, so many seconds from its first totals on; returns the last tick that was shown."""
    missing = missing_tool()
    if missing is not None:
        console.print(f"the demo needs a Kafka broker: {missing}")
        return 0
    with tempfile.TemporaryDirectory(prefix="evertally-kafka-demo-") as folder_name:
        folder = Path(folder_name)
        console.print("starting Apache Kafka (its jars are fetched by Maven the first time) ...")
        with LocalCluster(fetch_jars(pom), folder) as cluster:
            return _show(cluster, folder, seconds, speed, console)


def _show(cluster: LocalCluster, folder: Path, seconds: float, speed: float, console: Console) -> int:
    path = folder / "worker.toml"
    path.write_text(
        _CONFIG.format(keys=json.dumps(CARRIERS), start=_START, servers=cluster.bootstrap_servers), "utf-8"
    )
    config = load_worker_config(path, {})
    _make_topics(cluster.bootstrap_servers, config)
    clock = FastClock(config.rule.start_ms, speed)
    worker = Worker(config, start_from="earliest", make_clock=lambda: clock)
    stop, tick = threading.Event(), threading.Event()
    latest: dict[str, Release] = {}
    threads = [
        threading.Thread(target=worker.run),
        threading.Thread(target=play, args=(cluster.bootstrap_servers, clock, stop)),
        threading.Thread(target=follow, args=(config, stop, latest, tick)),
    ]
    console.print(guarantee_sentence(config.header(1)))
    for thread in threads:
        thread.start()
    try:
        with Live(table(latest), console=console, refresh_per_second=4) as live:
            deadline = time.monotonic() + _FIRST_TICK_S
            begun = False
            while time.monotonic() < deadline and threads[0].is_alive():
                tick.wait(0.25)
                tick.clear()
                live.update(table(dict(latest)))
                if latest and not begun:
                    begun, deadline = True, time.monotonic() + seconds
    except KeyboardInterrupt:
        console.print("stopping")
    finally:
        stop.set()
        worker.stop()
        for thread in threads:
            thread.join()
    console.print("the worker has drained; the broker is stopped and everything is removed")
    return max((release.t for release in latest.values()), default=0)


def _make_topics(servers: str, config: WorkerConfig) -> None:
    admin = Broker(servers).admin()
    settings = {"num_partitions": _PARTITIONS, "replication_factor": 1, "configs": {"retention.ms": "-1"}}
    admin.create_topics({"departures": settings}, wait_for_metadata=True)
    admin.close()
    create_topics(
        config.broker,
        config.topics,
        shards=config.spec.shards,
        by_unit=False,
        max_request_bytes=config.max_request_bytes,
    )


def main() -> None:
    """Entry point of `python -m evertally.pipelines.kafka.demo`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--pom", type=Path, default=Path("deploy/kafka/pom.xml"), help="Maven project of the broker"
    )
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="how long to show it, seconds from the first totals on"
    )
    parser.add_argument("--speed", type=float, default=1000.0, help="how many times faster than the clock")
    chosen = parser.parse_args()
    logging.basicConfig(level=logging.ERROR)
    shown = run(chosen.pom, chosen.seconds, chosen.speed, Console())
    raise SystemExit(0 if shown else 1)


if __name__ == "__main__":
    main()
