"""A real Apache Kafka for the session, started on first use and stopped at the end."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

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
def cluster(kafka_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """One broker for the whole session."""
    with LocalCluster(kafka_jars, tmp_path_factory.mktemp("kafka")) as running:
        yield running
