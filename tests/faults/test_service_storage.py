"""A full disk under the running service: refusals over HTTP, never a grant that is not durable."""

from __future__ import annotations

import resource
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from tests.budget_service.harness import GAUSSIAN, Service, charge_body, prepare, start

from evertally.accountants.budget.opening import open_ledger

pytestmark = pytest.mark.faults
BODY = charge_body(mode="commit", line={**GAUSSIAN, "sigma": "100000"})


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte, two thirds of it taken."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    done = subprocess.run(mount, check=False, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"cannot mount a tmpfs here: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def fill_up(client: httpx.Client, grants: dict[str, str]) -> None:
    """Charge until three charges in a row are refused; grants by their idempotency key.

    One refusal is not the end: the log may begin anew and leave room for a few smaller transactions.
    """
    refused = number = 0
    while refused < 3:
        key = f"k{number}"
        began = time.monotonic()
        answer = client.post("/v1/charges", json=BODY, headers={"Idempotency-Key": key})
        number += 1
        if answer.status_code == 201:
            refused = 0
            grants[key] = answer.json()["charge_id"]
            continue
        refused += 1
        assert time.monotonic() - began < 30  # at once, but for a busy machine
        assert answer.status_code == 503
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["code"] == "storage_full"
        assert answer.headers["retry-after"] == "30"


def check(service: Service, make_room: Callable[[], object]) -> None:
    """Fill the disk up, make room, and compare the ledger with what was answered."""
    grants: dict[str, str] = {}
    with service.client() as client:
        fill_up(client, grants)
        assert grants
        assert client.get("/v1/scopes/health").json()["spent"]["main"] == len(grants)
        make_room()
        # without a restart
        again = client.post("/v1/charges", json=BODY, headers={"Idempotency-Key": "again"})
        assert again.status_code == 201
        grants["again"] = again.json()["charge_id"]
        for key in ("again", next(iter(grants))):
            retried = client.post("/v1/charges", json=BODY, headers={"Idempotency-Key": key})
            assert retried.json()["charge_id"] == grants[key]
    assert service.stop() == 0
    ledger = open_ledger(service.location)
    rows = ledger.charges("health", limit=100_000)
    assert {row.charge_id for row in rows} == set(grants.values())
    assert ledger.scope_status("health").spent.main == len(grants)
    assert ledger.verify().problems == ()
    ledger.close()


def test_full_disk_refuses_and_recovers(small_disk: Path) -> None:
    location = str(small_disk / "l.sqlite")
    tokens = prepare(location)
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(400_000))
    service = start(location, "", tokens)
    try:
        check(service, ballast.unlink)
    finally:
        service.kill()


def test_file_size_limit_refuses_and_recovers(tmp_path: Path) -> None:
    location = str(tmp_path / "l.sqlite")
    service = start(location, "", prepare(location))
    try:
        _, hard = resource.prlimit(service.process.pid, resource.RLIMIT_FSIZE)
        limit = Path(location + "-wal").stat().st_size + 100_000
        resource.prlimit(service.process.pid, resource.RLIMIT_FSIZE, (limit, hard))
        check(service, lambda: resource.prlimit(service.process.pid, resource.RLIMIT_FSIZE, (hard, hard)))
    finally:
        service.kill()
