"""A stream of its own for every test on the session's Kafka broker."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from kafka_harness import KafkaStream


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
