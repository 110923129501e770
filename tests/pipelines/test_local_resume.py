"""A run killed anywhere and resumed publishes what the uninterrupted run publishes, byte for byte."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from evertally.accountants.budget.opening import open_ledger
from evertally.pipelines.config import load_config
from evertally.pipelines.local import runner
from evertally.pipelines.local.runner import run_local
from evertally.pipelines.releases import read_releases
from evertally.pipelines.sinks import FileSink
from evertally.testing import CrashingSink, CrashingStore, CrashPoints, SimulatedCrash

TICKS = 60


@pytest.fixture
def opened(gates: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stream that was opened (its noise is fixed by now) and then lost its process."""
    monkeypatch.setattr(runner, "_TICKS_A_BLOCK", 25)
    text = (gates / "run.toml").read_text().replace("tick_s = 3600", "tick_s = 360")
    (gates / "run.toml").write_text(text)
    with pytest.raises(SimulatedCrash):
        run(gates, CrashPoints(1, "store.commit_ticks:before"), resume=False)
    return gates


def run(folder: Path, points: CrashPoints, *, resume: bool = True) -> None:
    run_local(
        load_config(folder / "run.toml"),
        resume=resume,
        open_store=lambda path, create: CrashingStore.wrap(open_ledger(path, create=create), points),
        open_sink=lambda path, header: CrashingSink(FileSink(path, header), points),
    )


def copy(folder: Path, name: str) -> Path:
    return Path(shutil.copytree(folder, folder.with_name(f"{folder.name}-{name}")))


@pytest.mark.slow
def test_killed_at_every_point_and_resumed(opened: Path) -> None:
    whole = copy(opened, "whole")
    points = CrashPoints()
    run(whole, points)
    expected = (whole / "releases.jsonl").read_bytes()
    assert len(list(read_releases(whole / "releases.jsonl")[1])) == 2 * TICKS
    assert len(points.reached) > 30
    for hit in range(1, len(points.reached) + 1):
        folder = copy(opened, f"crash-{hit}")
        with pytest.raises(SimulatedCrash):
            run(folder, CrashPoints(hit))
        if (folder / "releases.jsonl").exists():
            left = (folder / "releases.jsonl").read_bytes()
            assert left == expected[: len(left)], points.reached[hit - 1]  # nothing that is not kept
        run(folder, CrashPoints())
        assert (folder / "releases.jsonl").read_bytes() == expected, points.reached[hit - 1]
        shutil.rmtree(folder)


def test_other_data_after_a_crash_is_refused(opened: Path) -> None:
    with pytest.raises(SimulatedCrash):
        run(opened, CrashPoints(2, "store.commit_ticks:after"))
    text = (opened / "events.csv").read_text()
    (opened / "events.csv").write_text(text.replace("north", "south", 1))
    with pytest.raises(Exception, match="differs"):
        run(opened, CrashPoints())
    (opened / "events.csv").write_text(text)
    run(opened, CrashPoints())
    assert len(list(read_releases(opened / "releases.jsonl")[1])) == 2 * TICKS


def test_an_empty_state_file_is_none(gates: Path) -> None:
    """What a kill leaves while the ledger is made: nothing was paid for, and the stream begins."""
    state = gates / "state.sqlite"
    state.touch(mode=0o600)
    assert not runner.stream_exists(load_config(gates / "run.toml"))
    run(gates, CrashPoints(), resume=False)
    assert runner.stream_exists(load_config(gates / "run.toml"))
