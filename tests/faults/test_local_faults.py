"""The local pipeline killed, stopped and starved at any moment: nothing lost, doubled or different."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.faults.failing_files import STORAGE
from tests.faults.fault_schedule import faults, inflict, the_seed
from tests.faults.local_target import LocalTarget
from tests.faults.recorded_history import Operation, anomalies

pytestmark = pytest.mark.faults
KILLS = {"kill": 45, "crash": 40, "zombie": 20}
DISKS = {"enospc": 10, "eio": 10, "read-only": 5, "fsync error": 10, "torn page": 10, "power cut": 5}


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """In memory, where there is such a place: the faults are in what the disk is made to do."""
    if not Path("/dev/shm").is_dir():
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm") as made:
        yield Path(made)


def test_kills_and_zombies(folder: Path) -> None:
    under_faults(folder, KILLS, the_seed(1))


def test_disks_that_fail(folder: Path) -> None:
    refused = under_faults(folder, DISKS, the_seed(2)).refused
    assert all(refused[kind] for kind in STORAGE[:4]), refused


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_850_kills(folder: Path) -> None:
    under_faults(folder, {"kill": 450, "crash": 400}, the_seed())


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_200_zombies(folder: Path) -> None:
    under_faults(folder, {"zombie": 200}, the_seed())


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_500_failing_disks(folder: Path) -> None:
    under_faults(folder, {kind: 10 * count for kind, count in DISKS.items()}, the_seed())


def under_faults(folder: Path, counts: dict[str, int], seed: int) -> LocalTarget:
    target = LocalTarget(folder, seed)
    try:
        inflict(target, counts, seed)
    finally:
        target.close()
    assert target.whole > target.inflicted // 40, "streams came to their end"
    return target


@pytest.fixture
def careless(folder: Path) -> Iterator[LocalTarget]:
    target = LocalTarget(folder, 3, full=False)
    yield target
    target.close()


def test_a_power_cut_would_lose_releases_without_full_synchronisation(careless: LocalTarget) -> None:
    """The control: with commits that are not synced, readers have seen what is in no ledger."""
    history: list[Operation] = []
    for fault in faults(3, {"power cut": 20}):
        history += careless.inflict(fault)
        if anomalies(history):
            return
    pytest.fail("no power cut lost a release, though nothing was synced")
