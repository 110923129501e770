"""Beam keeps what every engine must keep: a bounded input on a Direct runner."""

# Beam has no types
# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from tests.beam.direct import DirectStream, run_bounded
from tests.contracts.engine_conformance import CASES, Case, Observed, verify

from evertally.pipelines.beam import release_ticks
from evertally.pipelines.releases import Release

pytestmark = pytest.mark.slow


class BoundedBeam:
    """Every restart is a job that fails behind some ledger row, and is run again from the first event on."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder = folder
        self._monkeypatch = monkeypatch

    def run(self, case: Case) -> Observed:
        stream = DirectStream(self._folder, case)
        seen: list[Release] = []
        for crash in range(case.restarts):
            with self._monkeypatch.context() as patch:
                patch.setattr(release_ticks._Shard, "publish", _failing(crash))
                with pytest.raises(Exception, match="a runner failed here"):
                    run_bounded(stream)
            seen += stream.published()
        run_bounded(stream)
        for _ in range(case.drains):  # a job that has ended, run again
            seen += stream.published()
            run_bounded(stream)
        return stream.observed(seen, bounded=True)


def _failing(crash: int) -> Any:
    lock = threading.Lock()
    whole = release_ticks._Shard.publish

    def publish(shard: Any) -> None:
        with lock:
            if crash % 2:
                whole(shard)
            raise RuntimeError("a runner failed here")

    return publish


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_bounded_beam_conforms(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    verify(case, BoundedBeam(tmp_path, monkeypatch).run(case))
