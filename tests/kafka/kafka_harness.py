"""What the Kafka suites share: a stream on random topics, workers as processes, and an independent judge.

The judge trusts nothing of the worker: it reads the topics raw and the ledger's table by SQL.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import secrets
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import apsw
import psycopg
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition

from evertally.accountants.budget.opening import open_ledger
from evertally.counters.bank import CounterBank
from evertally.counters.keys import KeyedNoise
from evertally.counters.mechanisms import parse_mechanism
from evertally.pipelines.kafka.config import load_worker_config
from evertally.pipelines.kafka.key_selection import slot_names
from evertally.pipelines.kafka.local_broker import free_ports
from evertally.pipelines.kafka.topics import create_topics
from evertally.pipelines.kafka.worker import Worker
from evertally.pipelines.keyfile import KeyFile

KEYS = ("alpha", "beta", "gamma", "delta")
QUIET = {"metrics_enabled": False}


def wait_until(what: str, check: Callable[[], Any], timeout_s: float = 60.0, every_s: float = 0.1) -> Any:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        found = check()
        if found:
            return found
        time.sleep(every_s)
    raise AssertionError(f"timed out waiting for: {what}")


def resident_mib(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


@dataclass
class KafkaStream:
    """A stream under test: its topics, its configuration file, its workers."""

    servers: str
    folder: Path
    partitions: int = 3
    keys: Sequence[str] = KEYS
    tick_s: float = 0.5
    shards: int = 1
    start_ms: int = 0
    epsilon: float = 1.0
    extra: str = ""
    stream_extra: str = ""
    source_extra: str = ""
    privacy_extra: str = 'unit = "event"'
    kafka_extra: str = ""
    replication: int = 1
    name: str = ""
    slots: int = 0
    ledger: str = ""
    worker_env: Mapping[str, str] = field(default_factory=dict)
    workers: list[WorkerProcess] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.name = self.name or "s" + secrets.token_hex(4)
        self.topic = f"{self.name}.events"
        self.ledger = self.ledger or f"{self.name}.ledger"
        if not self.start_ms:
            tick_ms = round(self.tick_s * 1000)
            self.start_ms = time.time_ns() // 1_000_000 // tick_ms * tick_ms
        self.create_topics([self.topic], self.partitions)

    @property
    def released_keys(self) -> tuple[str, ...]:
        """Declared keys, then slots for selected ones."""
        return (*self.keys, *slot_names(self.slots))

    def create_topics(self, names: Iterable[str], partitions: int) -> None:
        admin = KafkaAdminClient(bootstrap_servers=self.servers)
        request = {
            name: {
                "num_partitions": partitions,
                "replication_factor": self.replication,
                "configs": {"retention.ms": "-1"},
            }
            for name in names
        }
        admin.create_topics(request, wait_for_metadata=True)
        admin.close()

    def config(self, instance: str = "w1", port: int | None = None) -> Path:
        """Write the configuration of one worker."""
        path = self.folder / f"{self.name}-{instance}.toml"
        start = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(self.start_ms // 1000))
        fraction = f".{self.start_ms % 1000:03d}" if self.start_ms % 1000 else ""
        health = f'[health]\nlisten = "127.0.0.1:{port}"\n' if port else ""
        path.write_text(
            f"""
[stream]
name = "{self.name}"
keys = {json.dumps(list(self.keys))}
start = "{start}{fraction}Z"
tick_s = {self.tick_s}
shards = {self.shards}
{self.stream_extra}
[source]
key = "k"
{self.source_extra}
[privacy]
epsilon = {self.epsilon}
delta = 1e-6
{self.privacy_extra}
[state]
path = "{self.ledger}"
chain_key_file = "{self.name}.ledger.chainkey"
key_file = "{self.name}.key"
folder = "."
[kafka]
bootstrap_servers = "{self.servers}"
topic = "{self.topic}"
instance = "{instance}"
commit_s = 0.2
{self.kafka_extra}
{health}
{self.extra}
"""
        )
        return path

    def make_topics(self) -> None:
        """What `evertally topics create` does, without starting a program."""
        declared = load_worker_config(self.config())
        create_topics(
            declared.broker,
            declared.topics,
            shards=self.shards,
            by_unit=declared.bound is not None,
            max_request_bytes=declared.max_request_bytes,
            replication=self.replication,
            select=declared.select is not None,
        )

    def cli(self, *words: str, instance: str = "w1", check: bool = True) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [*evertally(), *words, "--config", str(self.config(instance))],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        if check and done.returncode != 0:
            raise AssertionError(f"{words}: exit {done.returncode}\n{done.stderr}")
        return done

    def start(self, instance: str = "w1", *, begin: str | None = None, ready: bool = True) -> WorkerProcess:
        """Start a worker process."""
        (port,) = free_ports(1)
        words = ["worker", "--config", str(self.config(instance, port)), "--log-format", "json"]
        if begin is not None:
            words += ["--from", begin]
        log = self.folder / f"{self.name}-{instance}.log"
        worker = WorkerProcess(words, port, log, dict(self.worker_env))
        self.workers.append(worker)
        if ready:
            worker.wait_ready()
        return worker

    def close(self) -> None:
        for worker in self.workers:
            worker.kill()

    def send(self, events: Iterable[dict[str, Any] | bytes | None], pause_s: float = 0.0) -> None:
        """Send events round robin over the partitions; returns when all are acknowledged."""
        producer = KafkaProducer(bootstrap_servers=self.servers, acks="all", linger_ms=5, **QUIET)
        for number, event in enumerate(events):
            value = json.dumps(event).encode() if isinstance(event, dict) else event
            producer.send(self.topic, value=value, key=b"x", partition=number % self.partitions)
            if pause_s:
                time.sleep(pause_s)
        producer.flush()
        producer.close()

    # the judge

    def raw(self, suffix: str, isolation: str = "read_committed") -> list[Any]:
        return read_topic(self.servers, f"{self.name}.{suffix}", isolation)

    def releases(self) -> list[dict[str, Any]]:
        found = [json.loads(record.value) for record in self.raw("releases")]
        return [record for record in found if record["schema"] == "evertally.release/1"]

    def ledger_rows(self) -> list[tuple[int, int, int]]:
        """(key index, t, value) straight from the tables."""
        query = "SELECT key_index, t, value FROM released"
        if "://" in self.ledger:
            with psycopg.connect(self.ledger) as server:
                found: list[Any] = server.execute(query).fetchall()
        else:
            file = apsw.Connection(str(self.folder / self.ledger), flags=apsw.SQLITE_OPEN_READONLY)
            file.set_busy_timeout(10_000)
            found = file.execute(query).fetchall()
            file.close()
        return [(int(str(index)), int(str(t)), int(str(value))) for index, t, value in found]

    def noise(self, shard: int, ticks: int) -> dict[str, list[int]]:
        """The noise of every release, drawn again from the key file: what nobody else can do."""
        config = load_worker_config(self.config())
        store = open_ledger(config.ledger, key_file=config.chain_key_file)
        opened = store.find_stream(self.name)
        store.close()
        assert opened is not None
        names = dict(zip(opened.key_indices, opened.keys, strict=True))
        indices = opened.shard_keys(shard)
        key = KeyFile.open(config.key_file).noise_key(self.name, opened.stream_id, opened.incarnation)
        bank = CounterBank(parse_mechanism(config.spec.mechanism), config.spec.grid, KeyedNoise(key, indices))
        drawn = bank.close_ticks([[0] * len(indices)] * ticks)
        return {names[index]: [tick.values[column] for tick in drawn] for column, index in enumerate(indices)}

    def exact(self) -> dict[str, list[int]]:
        """Exact running totals behind the releases, by key and tick."""
        values: dict[str, dict[int, int]] = defaultdict(dict)
        for record in self.releases():
            values[record["key"]][record["t"]] = record["value"]
        totals = {}
        for shard in range(self.shards):
            here = [key for index, key in enumerate(self.released_keys) if index % self.shards == shard]
            ticks = max((max(values[key], default=0) for key in here), default=0)
            if ticks:
                noise = self.noise(shard, ticks)
                for key in here:
                    totals[key] = [values[key][t] - noise[key][t - 1] for t in range(1, ticks + 1)]
        return totals

    def totals(self) -> dict[str, int]:
        """Latest exact total of each key."""
        return {key: found[-1] for key, found in self.exact().items()}

    def wait_totals(self, expected: Mapping[str, int], timeout_s: float = 60.0) -> None:
        """Wait until the totals behind the releases are exactly these."""
        wanted = {key: expected.get(key, 0) for key in self.released_keys}
        try:
            wait_until(f"totals {wanted}", lambda: self.totals() == wanted, timeout_s, every_s=0.5)
        except AssertionError:
            logs = "\n".join(worker.log.read_text()[-3000:] for worker in self.workers)
            raise AssertionError(f"totals are {self.totals()}, expected {wanted}\n{logs}") from None

    def judge(self) -> int:
        """Every (key, t) one value, in order, without gaps, equal in ledger and topic; the last tick."""
        releases = self.releases()
        ticks: dict[str, list[int]] = defaultdict(list)
        for record in releases:
            ticks[record["key"]].append(record["t"])
        assert set(ticks) == set(self.released_keys)
        lengths = {key: len(found) for key, found in ticks.items()}
        for key, found in ticks.items():
            assert found == list(range(1, len(found) + 1)), f"{key}: ticks are not 1, 2, ..."
        per_shard: dict[int, set[int]] = defaultdict(set)
        for index, key in enumerate(self.released_keys):
            per_shard[index % self.shards].add(lengths[key])
        assert all(len(found) == 1 for found in per_shard.values())
        stored = {(index, t): value for index, t, value in self.ledger_rows()}
        published = {(self.released_keys.index(r["key"]), r["t"]): r["value"] for r in releases}
        assert published.items() <= stored.items()
        bytes_by_place: dict[tuple[str, int], set[bytes]] = defaultdict(set)
        for record in self.raw("releases", "read_uncommitted"):
            if record.key is not None:
                fields = json.loads(record.value)
                bytes_by_place[(fields["key"], fields["t"])].add(record.value)
        assert all(len(found) == 1 for found in bytes_by_place.values()), "a second value was written"
        for key, found in self.exact().items():
            assert all(late >= early for early, late in itertools.pairwise(found)), f"{key}: a total fell"
        return min(lengths.values())


class EventFeed:
    """Sends events at a steady rate on a thread; what was acknowledged is in `sent` afterwards."""

    def __init__(self, stream: KafkaStream, rate: float, seed: int) -> None:
        self.sent: Counter[str] = Counter()
        self._stream = stream
        self._rate = rate
        self._chance = random.Random(seed)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> EventFeed:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        producer = KafkaProducer(bootstrap_servers=self._stream.servers, acks="all", linger_ms=5, **QUIET)
        began, number, keys = time.monotonic(), 0, list(self._stream.keys)
        pending: deque[tuple[Any, str]] = deque()
        while not self._stop.wait(0.02):
            while number < (time.monotonic() - began) * self._rate and not self._stop.is_set():
                key = self._chance.choice(keys)
                event = json.dumps({"k": key, "n": number}).encode()
                future = producer.send(
                    self._stream.topic, value=event, partition=number % self._stream.partitions
                )
                pending.append((future, key))
                number += 1
            while pending and pending[0][0].is_done:
                self._acknowledged(*pending.popleft())
        producer.flush()
        for future, key in pending:
            self._acknowledged(future, key)
        producer.close()

    def _acknowledged(self, future: Any, key: str) -> None:
        future.get(timeout=60)
        self.sent[key] += 1


class WorkerProcess:
    """`evertally worker` as a process of its own."""

    def __init__(self, words: list[str], port: int, log: Path, env: dict[str, str] | None = None) -> None:
        self.port = port
        self.log = log
        with log.open("ab") as file:
            self.process = subprocess.Popen(
                [*evertally(), *words],
                stdout=file,
                stderr=file,
                start_new_session=True,
                env={**os.environ, "OMP_NUM_THREADS": "1", **(env or {})},
            )

    def get(self, path: str) -> tuple[int, dict[str, bool]]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=20) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.loads(error.read() or b"{}")
        except OSError:
            return 0, {}

    def wait_ready(self, timeout_s: float = 60.0) -> None:
        def check() -> bool:
            if self.process.poll() is not None:
                raise AssertionError(f"the worker ended:\n{self.log.read_text()[-3000:]}")
            return self.get("/readyz")[0] == 200

        try:
            wait_until("the worker is ready", check, timeout_s)
        except AssertionError as error:
            raise AssertionError(f"{error} {self.get('/readyz')}\n{self.log.read_text()[-3000:]}") from None

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        if self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(signal.SIGCONT)
                self.process.kill()
        self.process.wait(30)

    def end(self, timeout_s: float = 60.0) -> int:
        """SIGTERM, and the exit code."""
        self.process.terminate()
        return self.process.wait(timeout_s)


class InThread:
    """A worker on a thread of the test; what stopped it is in `error`."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> InThread:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.worker.stop()
        self._thread.join(90)
        assert not self._thread.is_alive()

    def wait_ready(self) -> None:
        wait_until("the worker is ready", lambda: self.error or all(self.worker.ready().values()), 90)
        assert self.error is None, self.error

    def _run(self) -> None:
        try:
            self.worker.run()
        except BaseException as error:
            self.error = error


def evertally() -> list[str]:
    return [sys.executable, "-c", "from evertally.pipelines.cli.app import main; main()"]


def read_topic(servers: str, topic: str, isolation: str = "read_committed") -> list[Any]:
    """Every record of a topic, by partition and offset."""
    reader = KafkaConsumer(
        bootstrap_servers=servers,
        isolation_level=isolation,
        enable_auto_commit=False,
        auto_offset_reset="none",
        fetch_max_wait_ms=50,
        **QUIET,
    )
    try:
        numbers = reader.partitions_for_topic(topic) or set()
        places = [TopicPartition(topic, number) for number in sorted(numbers)]
        if not places:
            return []
        reader.assign(places)
        ends = reader.end_offsets(places)
        for place, offset in reader.beginning_offsets(places).items():
            reader.seek(place, offset)
        found: dict[TopicPartition, list[Any]] = {place: [] for place in places}
        deadline = time.monotonic() + 20
        while any(reader.position(place) < ends[place] for place in places):
            for place, records in reader.poll(timeout_ms=300).items():
                found[place] += [record for record in records if record.offset < ends[place]]
                deadline = time.monotonic() + 20
            if time.monotonic() > deadline:
                break  # an open transaction holds the end back
        return [record for place in places for record in found[place]]
    finally:
        reader.close(autocommit=False)
