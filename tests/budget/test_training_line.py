"""A training line's cost is a function of its public parameters: of no clock, and of no load."""

from __future__ import annotations

import time
from typing import NoReturn

import pytest

from evertally.accountants import renyi_lines
from evertally.accountants.budget import Scope, TrainingLine
from evertally.accountants.budget.loss import Loss

MIXED = Scope("m", "event", "add-remove", "8", "1e-6", epsilon_lines="2", filter="renyi", order=8)
BINS = {"kind": "BallsInBins", "batches": 10, "epochs": 2}
STRATEGIES = [{"kind": "Identity"}, {"kind": "BandedSquareRoot", "bands": 3}, {"kind": "BandMF", "bands": 2}]


def cold(line: TrainingLine) -> Loss:
    """The loss with nothing remembered from before."""
    renyi_lines.lines.cache_clear()
    renyi_lines._line_moments.cache_clear()
    return line.loss(MIXED)


@pytest.mark.parametrize("own_delta", ["", "1e-8"])
@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: s["kind"])
def test_a_training_lines_cost_reads_no_clock(
    strategy: dict[str, object], own_delta: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = TrainingLine(strategy, BINS, "4", own_delta)
    first = cold(line)

    def refuse() -> NoReturn:
        raise AssertionError("a cost asked what time it is")

    for clock in ("time", "monotonic", "perf_counter", "process_time", "thread_time"):
        monkeypatch.setattr(time, clock, refuse)
        monkeypatch.setattr(time, f"{clock}_ns", refuse)
    second = cold(line)
    monkeypatch.undo()
    assert second == first
    assert first.epsilon > 0 if own_delta else (first.renyi or 0) > 0
