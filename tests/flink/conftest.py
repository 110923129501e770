"""One Flink cluster for the session, started on first use and stopped at its end."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.flink.flink_harness import FLINK_PYTHON

from evertally.errors import ServiceUnavailable
from evertally.pipelines.flink.distribution import fetch_connector
from evertally.pipelines.flink.local_cluster import LocalFlink


def _missing(reason: str) -> None:
    if os.environ.get("CI", "").lower() == "true":
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def connector() -> Path:
    """The connector's jar."""
    try:
        return fetch_connector()
    except ServiceUnavailable as error:
        _missing(str(error))
        raise


@pytest.fixture(scope="session")
def whole_flink(tmp_path_factory: pytest.TempPathFactory, connector: Path) -> Iterator[LocalFlink]:
    """The session's cluster: two TaskManagers of one slot each, so that a job of two uses both."""
    assert connector.exists()
    if not FLINK_PYTHON.exists():
        _missing("no Flink: run `make flink-venv`")
    folder = tmp_path_factory.mktemp("flink") / "cluster"
    short = {"env.java.opts.taskmanager": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
    with LocalFlink(folder, FLINK_PYTHON, slots=1, extra=short) as running:
        yield running


@pytest.fixture
def flink(whole_flink: LocalFlink) -> Iterator[LocalFlink]:
    """The cluster with all its TaskManagers and no job, whatever the test before it did."""
    while len(whole_flink.task_managers) < 2:
        whole_flink.start_task_manager(wait=False)
    whole_flink.wait(2)
    yield whole_flink
    for job in whole_flink.rest.get("/jobs/overview")["jobs"]:
        if job["state"] not in {"CANCELED", "FINISHED", "FAILED"}:
            whole_flink.rest.cancel(job["jid"])
