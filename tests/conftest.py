"""Shared fixtures: a real PostgreSQL server and a real Kafka broker, each started once, on first use."""

from __future__ import annotations

import gc
import os
import pwd
import shutil
import subprocess
import tempfile
import uuid
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from evertally.pipelines.kafka.local_broker import LocalCluster, fetch_jars, missing_tool

# a busy machine may be slow at any example; Hypothesis' own limit is 0.2 s, but in continuous integration
settings.register_profile("tests", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")
POM = Path(__file__).parents[1] / "deploy" / "kafka" / "pom.xml"


def _postgres_programs() -> Path | None:
    for folder in [*sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True), *_on_path()]:
        if (folder / "initdb").exists() and (folder / "pg_ctl").exists():
            return folder
    return None


def _on_path() -> list[Path]:
    found = shutil.which("initdb")
    return [Path(found).resolve().parent] if found else []


def _missing(reason: str) -> None:
    if os.environ.get("CI", "").lower() == "true":
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """Socket directory of a private server; it listens on no network."""
    programs = _postgres_programs()
    if programs is None:
        _missing("no PostgreSQL: initdb and pg_ctl were not found")
        return
    as_postgres: list[str] = []
    folder = Path(tempfile.mkdtemp(prefix="evertally-pg-", dir="/tmp"))
    if os.getuid() == 0:  # initdb refuses root
        try:
            account = pwd.getpwnam("postgres")
        except KeyError:
            _missing("no PostgreSQL: running as root without a user named postgres")
            return
        os.chown(folder, account.pw_uid, account.pw_gid)
        as_postgres = ["runuser", "-u", "postgres", "--"]
    data = folder / "data"

    def call(*arguments: str) -> None:
        done = subprocess.run(  # noqa: PLW1510 - the assertion below shows the output
            [*as_postgres, *arguments],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stdout + done.stderr

    call(
        str(programs / "initdb"), "-D", str(data), "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-sync"
    )
    options = f"-c listen_addresses='' -k {folder} -c max_connections=100"
    control = str(programs / "pg_ctl")
    try:
        call(control, "-D", str(data), "-w", "-t", "110", "-l", str(folder / "log"), "-o", options, "start")
        try:
            yield str(folder)
        finally:
            call(control, "-D", str(data), "-w", "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder)


@pytest.fixture
def postgres_address(postgres_server: str) -> str:
    """Address of a fresh, empty schema."""
    import psycopg

    name = f"t{uuid.uuid4().hex}"
    server = f"postgresql://postgres@/postgres?host={postgres_server}"
    with psycopg.connect(server, autocommit=True) as admin:
        admin.execute(f"CREATE SCHEMA {name}")
    return f"{server}&options=-csearch_path%3D{name}"


@pytest.fixture(scope="session")
def kafka_jars() -> Path:
    missing = missing_tool()
    if missing is not None:
        _missing(f"Kafka tests need Java and Maven: {missing}")
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


@pytest.fixture
def collect_what_clients_leave() -> Iterator[None]:
    """kafka-python leaves sockets of lost connections to the collector: collect them here, not later."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


_COUNTED = ("postgres", "browser", "kafka", "faults", "prism", "flink", "train", "prometheus")
_ran: dict[str, int] = dict.fromkeys(_COUNTED, 0)
# Two processes (`pytest -n 2`) first take a lane each of all that starts clusters, brokers and stacks, then
# share the other modules; so each server is started once.
_LANES = dict.fromkeys(("beam", "flink"), "engines") | dict.fromkeys(
    ("kafka", "faults", "deploy", "metrics", "docs"), "services"
)


def _lane(nodeid: str) -> str:
    module = nodeid.partition("::")[0]
    return _LANES.get(module.removeprefix("tests/").partition("/")[0], module)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Write each test's services into its report, and put the two lanes first."""
    lanes: dict[str, list[pytest.Item]] = {"engines": [], "services": []}
    for item in items:
        markers = [m for m in _COUNTED if item.get_closest_marker(m) is not None]
        item.user_properties += [("service", marker) for marker in markers]
        lanes.setdefault(_lane(item.nodeid), []).append(item)
    items[:] = [item for lane in lanes.values() for item in lane]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """A process takes whole lanes; the plugin's own groups do not reach it under this pytest."""
    from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]  # it has no types

    class Lanes(LoadScopeScheduling):  # type: ignore[misc]  # as above
        def _split_scope(self, nodeid: str) -> str:
            return _lane(nodeid)

    return Lanes(config, log)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Count the tests that really ran on each real service."""
    if report.when == "call" and not report.skipped:
        for name, marker in report.user_properties:
            if name == "service":
                _ran[str(marker)] += 1


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """One line a marker, which the continuous integration compares with what it expects."""
    for marker, count in _ran.items():
        if count:
            terminalreporter.write_line(f"ran {count} tests marked {marker}")
