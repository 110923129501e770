"""A Flink cluster keeps what every engine must keep, through kill -9 of its TaskManagers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.contracts.engine_conformance import CASES, Case, Observed, verify
from tests.flink.flink_harness import FlinkStream, replace_task_manager

from evertally.pipelines.flink.local_cluster import LocalFlink

pytestmark = [pytest.mark.flink, pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(1500)]
_LONG = {"steady", "nothing at all", "units", "restarts", "broken and undeclared", "out of order", "drain"}
"""What they ask is in the others and in test_flink_faults.py too; a job takes its time to start."""


class Flink:
    """A job from Kafka to sealed closings, and the releaser behind it."""

    def __init__(self, servers: str, folder: Path, cluster: LocalFlink) -> None:
        self._servers, self._folder, self._cluster = servers, folder, cluster

    def run(self, case: Case) -> Observed:
        stream = _stream(case, self._servers, self._folder)
        stream.submit(self._cluster, "--from", "earliest")
        kills: list[Callable[[], Any]] = [lambda: replace_task_manager(self._cluster)] * case.restarts
        kills += [lambda: stream.submit(self._cluster, "--restore", stream.stop(self._cluster))] * case.drains
        with stream.releaser():
            stream.feed(case.events, case.feed_s, kills)
            stream.wait_counted()
            stream.wait_tick(case.ticks)
            stream.stop(self._cluster)  # drain: what is closed is committed, and released
        return stream.observed()


def _stream(case: Case, servers: str, folder: Path) -> FlinkStream:
    many = len(case.keys) > 1000
    bound = case.bound
    stream = FlinkStream(
        servers,
        folder,
        partitions=case.partitions,
        keys=case.keys,
        tick_s=10.0 if many else 0.5,
        parallelism=2 if bound is not None or case.restarts else 1,
        source_extra="" if bound is None else 'unit = "u"',
        privacy_extra='unit = "event"'
        if bound is None
        else f'unit = "person"\nparticipations = {bound.participations}\n'
        f"min_separation = {bound.min_separation}\nper_tick = {bound.per_tick}",
    )
    stream.make_topics()
    return stream


@pytest.mark.parametrize(
    "case",
    [pytest.param(c, marks=[pytest.mark.soak] if c.name in _LONG else [], id=c.name) for c in CASES],
)
def test_flink_conforms(case: Case, servers: str, tmp_path: Path, flink: LocalFlink) -> None:
    verify(case, Flink(servers, tmp_path, flink).run(case))
