"""The Kafka worker under faults: every event once, every (key, t) one value; judged on topics and ledger."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient
from kafka.errors import KafkaError
from kafka_harness import KafkaStream
from tests.faults.fault_schedule import inflict, the_seed
from tests.faults.kafka_target import KafkaTarget, clock_set_by
from tests.faults.postgres_server import Server

from evertally.pipelines.kafka.local_broker import LocalCluster

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.faults,
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.usefixtures("collect_what_clients_leave"),
]
INTERNAL = ("__consumer_offsets", "__transaction_state")
LEDGER_IN_A_FILE = {"kill": 5, "zombie": 1, "ledger away": 1, "clock": 3}
LEDGER_ON_A_SERVER = {"kill": 5, "zombie": 1, "ledger away": 1, "ledger restart": 2}


def with_a_file(servers: str, folder: Path, counts: dict[str, int], seed: int) -> None:
    clock = folder / "clock"
    stream = KafkaStream(servers, folder, worker_env=clock_set_by(clock))
    under_faults(stream, counts, seed, clock=clock)


def with_a_server(servers: str, folder: Path, server: Server, counts: dict[str, int], seed: int) -> None:
    under_faults(KafkaStream(servers, folder, ledger=server.address), counts, seed, server=server)


def under_faults(stream: KafkaStream, counts: dict[str, int], seed: int, **hit: Any) -> None:
    stream.make_topics()
    with contextlib.ExitStack() as cleanup:
        cleanup.callback(stream.close)
        target = KafkaTarget(stream, seed, **hit)
        cleanup.callback(target.close)
        inflict(target, counts, seed)


def test_a_worker_with_its_ledger_in_a_file(servers: str, tmp_path: Path) -> None:
    with_a_file(servers, tmp_path, LEDGER_IN_A_FILE, the_seed(5))


@pytest.mark.postgres
def test_a_worker_with_its_ledger_on_a_server(servers: str, tmp_path: Path, server: Server) -> None:
    with_a_server(servers, tmp_path, server, LEDGER_ON_A_SERVER, the_seed(6))


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_50_kills_and_50_clock_jumps(servers: str, tmp_path: Path) -> None:
    counts = {"kill": 50, "zombie": 10, "ledger away": 10, "clock": 50}
    with_a_file(servers, tmp_path, counts, the_seed())


@pytest.mark.soak
@pytest.mark.postgres
@pytest.mark.timeout(7200)
def test_50_kills_and_20_restarts_of_the_ledger(servers: str, tmp_path: Path, server: Server) -> None:
    counts = {"kill": 50, "zombie": 10, "ledger away": 10, "ledger restart": 20}
    with_a_server(servers, tmp_path, server, counts, the_seed())


@pytest.fixture
def three(kafka_jars: Path, tmp_path: Path) -> Iterator[LocalCluster]:
    folder = tmp_path / "brokers"
    folder.mkdir()
    with LocalCluster(kafka_jars, folder, nodes=3) as cluster:
        yield cluster


def in_sync(servers: str, stream: KafkaStream) -> bool:
    """Whether every partition has its three copies again: two deaths in a row would stop everything."""
    try:
        admin = KafkaAdminClient(bootstrap_servers=servers)
    except KafkaError:
        return False
    try:
        names = [f"{stream.name}.{suffix}" for suffix in ("events", "closed", "releases", "dead-letters")]
        topics = admin.describe_topics([*names, *INTERNAL])
        copies = [len(part["isr_nodes"]) for topic in topics for part in topic["partitions"]]
        return len(copies) > len(names) and set(copies) == {3}
    except KafkaError:
        return False
    finally:
        admin.close()


def with_brokers(three: LocalCluster, folder: Path, restarts: int, seed: int) -> None:
    stream = KafkaStream(three.bootstrap_servers, folder, replication=3, tick_s=1.0)
    settled = partial(in_sync, three.bootstrap_servers, stream)
    under_faults(stream, {"broker": restarts}, seed, cluster=three, settled=settled)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_brokers_of_three_killed_and_started_again(three: LocalCluster, tmp_path: Path) -> None:
    with_brokers(three, tmp_path, 3, the_seed(7))


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_brokers_of_three_killed_and_started_ten_times(three: LocalCluster, tmp_path: Path) -> None:
    with_brokers(three, tmp_path, 10, the_seed())
