"""A schedule repeats by its seed, a failing run says how to see it again, a passing one is recorded."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.faults.fault_schedule import Fault, controls, faults, inflict, the_seed
from tests.faults.recorded_history import (
    LEDGER,
    Asked,
    Charged,
    Counted,
    Instant,
    Operation,
    Saw,
    Sent,
    anomalies,
)

from evertally.pipelines.releases import Release

COUNTS = {"kill": 5, "zombie": 3}


class Toy:
    """A pipeline that releases a tick after each fault, and forgets an event where it is told to."""

    def __init__(self, *, loses: bool = False) -> None:
        self.kinds: list[str] = []
        self._loses = loses

    def inflict(self, fault: Fault) -> Iterator[Operation]:
        self.kinds.append(fault.kind)
        t = len(self.kinds)
        release = Release("s", "k", 1, t, 1000 * t, fault.chance.randrange(100), 1.5, "")
        if t == 1:
            yield from (Asked("open s"), Charged("s", 1, "c", 5))
        yield from (Saw(LEDGER, release), Saw("file", release), Sent("s", "k", 1), Instant())

    def finish(self) -> Iterator[Operation]:
        yield Counted("s", "k", len(self.kinds) - self._loses)


def test_a_seed_gives_the_same_faults_and_another_one_others() -> None:
    def drawn(seed: int) -> list[tuple[str, float]]:
        return [(fault.kind, fault.chance.random()) for fault in faults(seed, COUNTS)]

    assert drawn(1) == drawn(1) != drawn(2)
    assert sorted(kind for kind, _ in drawn(1)) == ["kill"] * 5 + ["zombie"] * 3


def test_a_failing_run_says_how_to_see_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AssertionError, match="8 were sent, 7 are counted") as caught:
        inflict(Toy(loses=True), COUNTS, 42)
    (note,) = caught.value.__notes__
    assert note.startswith(
        "Again: EVERTALLY_FAULT_SEED=42 python -m pytest 'tests/faults/test_fault_schedule"
    )
    monkeypatch.setenv("EVERTALLY_FAULT_SEED", "42")
    assert the_seed(7) == the_seed() == 42
    monkeypatch.delenv("EVERTALLY_FAULT_SEED")
    assert the_seed(7) == 7
    assert the_seed() != the_seed()


def test_each_control_is_seen() -> None:
    history = inflict(Toy(), COUNTS, 3)
    spoiled = dict(controls(history))
    assert set(spoiled) == {"a second value", "a lost release", "an event counted twice", "a charge twice"}
    assert all(anomalies(one) for one in spoiled.values())


def test_a_run_is_recorded_with_what_was_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.md"
    page.write_text("above\n<!-- begin runs -->\n| test |\n|---|\n<!-- end runs -->\nbelow\n")
    monkeypatch.setenv("EVERTALLY_FAULT_PAGE", str(page))
    inflict(Toy(), COUNTS, 4)
    inflict(Toy(), COUNTS, 5)
    above, begin, head, rule, row, end, below = page.read_text().splitlines()
    assert [above, begin, head, rule] == ["above", "<!-- begin runs -->", "| test |", "|---|"]
    assert [end, below] == ["<!-- end runs -->", "below"]
    assert "test_a_run_is_recorded_with_what_was_done` | 5 kill, 3 zombie | 35 | 0 | 5 |" in row
    monkeypatch.setenv("EVERTALLY_FAULT_MINUTES", "0")
    inflict(Toy(), COUNTS, 6)
    assert "| 0 kill, 0 zombie | 1 | 0 | 6 |" in page.read_text()
