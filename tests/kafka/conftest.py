"""A real Apache Kafka for the session, started on first use and stopped at the end."""

from __future__ import annotations

import gc
import os
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from kafka_harness import KafkaStream

from evertally.pipelines.kafka.local_broker import LocalCluster, fetch_jars, missing_tool

POM = Path(__file__).parents[2] / "deploy" / "kafka" / "pom.xml"


@pytest.fixture(scope="session")
def kafka_jars() -> Path:
    missing = missing_tool()
    if missing is not None:
        if os.environ.get("CI"):
            pytest.fail(f"Kafka tests need Java and Maven: {missing}")
        pytest.skip(missing)
    return fetch_jars(POM)


@pytest.fixture(scope="session")
def servers(request: pytest.FixtureRequest) -> str:
    """Address of one broker for the whole session; EVERTALLY_TEST_KAFKA names one that runs already."""
    running = os.environ.get("EVERTALLY_TEST_KAFKA")
    return running or request.getfixturevalue("cluster").bootstrap_servers


@pytest.fixture(scope="session")
def cluster(kafka_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """The broker behind `servers`."""
    with LocalCluster(kafka_jars, tmp_path_factory.mktemp("kafka")) as running:
        yield running


@pytest.fixture(autouse=True)
def _collect_what_clients_leave() -> Iterator[None]:
    """kafka-python leaves sockets of lost connections to the collector: collect them here, not later."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.fixture
def stream(servers: str, tmp_path: Path) -> Iterator[KafkaStream]:
    """A fresh event-level stream with its topics."""
    made = KafkaStream(servers, tmp_path)
    made.make_topics()
    yield made
    made.close()
