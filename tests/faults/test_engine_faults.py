"""Beam on Prism and Flink, killed while events flow: every event once, every (key, t) one value.

A tenth of the kills is in the suites of the engines: tests/beam/test_beam_prism.py ends its job three times,
the conformance cases of tests/flink end a TaskManager five times.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from kafka_harness import KafkaStream
from tests.beam.conftest import PRISM
from tests.faults.engine_targets import FlinkTarget, PrismTarget
from tests.faults.fault_schedule import inflict, the_seed
from tests.flink.flink_harness import FLINK_PYTHON, FlinkStream

from evertally.pipelines.flink.local_cluster import LocalFlink

pytestmark = [pytest.mark.kafka, pytest.mark.faults, pytest.mark.soak, pytest.mark.timeout(7200)]


@pytest.mark.prism
@pytest.mark.skipif(not PRISM.exists(), reason="no Prism: run `make prism`")
def test_30_kills_of_a_beam_job(servers: str, tmp_path: Path) -> None:
    seed = the_seed()
    stream = KafkaStream(servers, tmp_path, tick_s=1.0)
    stream.make_topics()
    target = PrismTarget(PRISM, stream, seed)
    try:
        inflict(target, {"kill": 30}, seed)
    finally:
        target.close()


@pytest.fixture
def flink(tmp_path: Path) -> Iterator[LocalFlink]:
    short = {"env.java.opts.taskmanager": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
    with LocalFlink(tmp_path / "flink", FLINK_PYTHON, slots=1, extra=short) as running:
        yield running


@pytest.mark.flink
@pytest.mark.skipif(not FLINK_PYTHON.exists(), reason="no Flink: run `make flink-venv`")
def test_20_kills_of_task_managers(servers: str, tmp_path: Path, flink: LocalFlink) -> None:
    seed = the_seed()
    stream = FlinkStream(servers, tmp_path, tick_s=1.0)
    stream.make_topics()
    target = FlinkTarget(flink, stream, seed)
    try:
        inflict(target, {"kill": 20}, seed)
    finally:
        target.close()
