"""The file of published steps: what a crash leaves, and a run that was stopped and wakes up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from evertally.errors import IntegrityError
from evertally.pipelines.training.export import Publisher

pytestmark = pytest.mark.train
STEPS: list[dict[str, Any]] = [{"digest": f"{n:08x}", "step": n} for n in range(6)]


def lines(count: int) -> bytes:
    return b"".join(json.dumps(step, sort_keys=True).encode() + b"\n" for step in STEPS[:count])


def test_a_torn_line_is_written_again(tmp_path: Path) -> None:
    for torn in (lines(3)[:-1], lines(2), lines(2) + b'{"digest": "too long a line that was tor'):
        (tmp_path / "steps.jsonl").write_bytes(torn)
        publisher = Publisher(tmp_path)
        assert publisher.published() == STEPS[:2]
        publisher.publish(STEPS[:4])
        assert (tmp_path / "steps.jsonl").read_bytes() == lines(4)
        publisher.publish(STEPS)
        assert (tmp_path / "steps.jsonl").read_bytes() == lines(6)


def test_a_run_that_wakes_up_repeats_and_takes_away_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped between reading the file and writing, while its successor published."""
    zombie, successor = Publisher(tmp_path), Publisher(tmp_path)
    zombie.publish(STEPS[:2])
    before = lines(2)
    successor.publish(STEPS[:5])
    monkeypatch.setattr(zombie, "_whole", lambda: before)
    zombie.publish(STEPS[:3])
    assert (tmp_path / "steps.jsonl").read_bytes() == lines(5)


def test_other_outcomes_are_refused(tmp_path: Path) -> None:
    publisher = Publisher(tmp_path)
    publisher.publish(STEPS[:3])
    with pytest.raises(IntegrityError, match="another outcome"):
        publisher.publish([{**STEPS[2], "digest": "other"}])
    with pytest.raises(IntegrityError, match="missing"):
        publisher.publish(STEPS[4:])
    assert (tmp_path / "steps.jsonl").read_bytes() == lines(3)
