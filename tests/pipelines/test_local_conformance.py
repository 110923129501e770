"""The local engine keeps what every engine must keep."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.contracts.engine_conformance import CASES, Case, Observed, exact_steps, verify

from evertally.accountants.budget.opening import open_ledger
from evertally.pipelines.config import load_config
from evertally.pipelines.keyfile import KeyFile
from evertally.pipelines.local import runner
from evertally.pipelines.local.runner import run_local
from evertally.pipelines.releases import Release
from evertally.pipelines.sinks import FileSink
from evertally.pipelines.ticks import format_ms
from evertally.testing import CrashingSink, CrashingStore, CrashPoints, SimulatedCrash

START_MS, TICK_MS = 1_700_000_000_000, 60_000
FAULTS = ("store.commit_ticks:before", "sink.append:torn", "store.mark_published:before")


class LocalEngine:
    """A JSON-lines file; a restart is a crash at some point and `--resume`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def run(self, case: Case) -> Observed:
        self._write(case)
        seen: list[Release] = []
        for crash in range(case.restarts):
            points = CrashPoints(1 + crash % 2, FAULTS[crash % len(FAULTS)])
            with pytest.raises(SimulatedCrash):
                self._once(points, resume=crash > 0)
            seen += self._published()
        self._once(CrashPoints(), resume=case.restarts > 0)
        for _ in range(case.drains):  # a run that has ended, run again
            seen += self._published()
            self._once(CrashPoints(), resume=True)
        final = self._published()
        config = load_config(self._folder / "run.toml")
        store = open_ledger(config.state)
        opened = store.find_stream(config.spec.name)
        store.close()
        assert opened is not None
        steps = exact_steps(final, config.spec, opened, KeyFile.open(config.key_file))
        return Observed(final, seen, steps, by_stamp=True, bounded=True)

    def _once(self, points: CrashPoints, *, resume: bool) -> None:
        run_local(
            load_config(self._folder / "run.toml"),
            resume=resume,
            open_store=lambda path, create: CrashingStore.wrap(open_ledger(path, create=create), points),
            open_sink=lambda path, header: CrashingSink(FileSink(path, header), points),
        )

    def _published(self) -> list[Release]:
        path = self._folder / "releases.jsonl"
        if not path.exists():
            return []
        whole = path.read_bytes().rpartition(b"\n")[0].splitlines()[1:]
        return [Release.decode(line) for line in whole]

    def _write(self, case: Case) -> None:
        lines = [
            event.raw
            if event.raw is not None
            else json.dumps(
                {"at": START_MS + (event.tick - 1) * TICK_MS + 5, "k": event.key, "who": event.unit}
            ).encode()
            for event in case.events
        ]
        (self._folder / "events.jsonl").write_bytes(b"".join(line + b"\n" for line in lines) or b"\n")
        unit, source = 'unit = "event"', ""
        if case.bound is not None:
            unit = (
                f'unit = "person"\nparticipations = {case.bound.participations}\n'
                f"min_separation = {case.bound.min_separation}\nper_tick = {case.bound.per_tick}"
            )
            source = 'unit = "who"'
        (self._folder / "run.toml").write_text(
            f"""
[stream]
name = "local"
keys = {json.dumps(list(case.keys))}
start = "{format_ms(START_MS)}"
end = "{format_ms(START_MS + case.ticks * TICK_MS)}"
tick_s = {TICK_MS // 1000}
[source]
path = "events.jsonl"
timestamp = "at"
key = "k"
{source}
[privacy]
epsilon = 1.0
delta = 1e-6
{unit}
[output]
releases = "releases.jsonl"
[state]
path = "state"
key_file = "key"
"""
        )


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_local_engine_conforms(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "_TICKS_A_BLOCK", 3)
    verify(case, LocalEngine(tmp_path).run(case))


@pytest.mark.parametrize("fault", ["gap", "second value", "undeclared", "lost", "missing key"])
def test_the_judge_notices(fault: str, tmp_path: Path) -> None:
    """A suite that cannot fail proves nothing."""
    case = CASES[0]
    observed = LocalEngine(tmp_path).run(case)
    final, seen, steps = list(observed.final), list(observed.seen), dict(observed.steps)
    if fault == "gap":
        final = [release for release in final if release.t != 3]
    elif fault == "second value":
        seen.append(final[5]._replace(value=final[5].value + 1))
    elif fault == "undeclared":
        final.append(final[0]._replace(key="epsilon"))
    elif fault == "lost":
        steps["alpha"] = [*list(steps["alpha"])[:-1], 0]
    else:
        final = [release for release in final if release.key != "beta"]
    with pytest.raises(AssertionError):
        verify(case, Observed(final, seen, steps, by_stamp=True, bounded=True))
