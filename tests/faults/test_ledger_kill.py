"""Processes that die or hang in the middle of the release path: nothing lost, doubled or different."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.faults.fault_schedule import faults, inflict, the_seed
from tests.faults.recorded_history import Operation, anomalies
from tests.faults.writer_target import SHARD, Writers, WriterTarget, new_ledger

from evertally.accountants.budget import ReleaseRow
from evertally.errors import Fenced

pytestmark = pytest.mark.faults


@pytest.fixture(scope="module")
def writers() -> Iterator[Writers]:
    started = Writers()
    yield started
    started.close()


def under_faults(writers: Writers, folder: Path, counts: dict[str, int], seed: int) -> None:
    target = WriterTarget(writers, folder)
    try:
        inflict(target, counts, seed)
    finally:
        target.close()


def test_killed_and_stopped_writers_lose_double_and_change_nothing(writers: Writers, tmp_path: Path) -> None:
    under_faults(writers, tmp_path, {"kill": 6, "zombie": 3}, the_seed(6))


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_a_thousand_kills(writers: Writers, tmp_path: Path) -> None:
    under_faults(writers, tmp_path, {"kill": 1000}, the_seed())


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_two_hundred_zombies_with_other_data(writers: Writers, tmp_path: Path) -> None:
    under_faults(writers, tmp_path, {"zombie": 200}, the_seed())


def test_zombies_would_go_on_without_fencing(writers: Writers, tmp_path: Path) -> None:
    """The control. A zombie stopped inside its transaction keeps its successor out: that proves nothing."""
    target = WriterTarget(writers, tmp_path, fenced=False)
    history: list[Operation] = []
    try:
        for fault in faults(the_seed(7), {"zombie": 20}):
            history += target.inflict(fault)
            if any("by a former holder" in found for found in anomalies(history)):
                return
    finally:
        target.close()
    pytest.fail("no zombie went on, though nothing fenced it")


def test_former_holder_is_refused_and_would_go_on_without_fencing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = new_ledger(tmp_path / "ledger.sqlite")
    former = store.acquire(SHARD, "former")
    store.commit_ticks(SHARD, former, 1, [ReleaseRow(0, 1, 7, "1.5", 1)], 1, b"x")
    store.acquire(SHARD, "successor")
    with pytest.raises(Fenced):
        store.commit_ticks(SHARD, former, 2, [ReleaseRow(0, 2, 8, "1.5", 2)], 2, b"x")
    monkeypatch.setattr("evertally.accountants.budget.releases.require_current", lambda _head, _epoch: None)
    store.commit_ticks(SHARD, former, 2, [ReleaseRow(0, 2, 8, "1.5", 2)], 2, b"x")
    assert store.head(SHARD).t == 2
    store.close()
