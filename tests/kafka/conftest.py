"""A stream of its own for every test on the session's Kafka broker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from kafka_harness import KafkaStream


@pytest.fixture(autouse=True)
def _collected(collect_what_clients_leave: None) -> None:
    """For every test here."""


@pytest.fixture
def stream(servers: str, tmp_path: Path) -> Iterator[KafkaStream]:
    """A fresh event-level stream with its topics."""
    made = KafkaStream(servers, tmp_path)
    made.make_topics()
    yield made
    made.close()
