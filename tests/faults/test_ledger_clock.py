"""Clocks that lie (libfaketime): reservations expire early or late, and nothing else depends on them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from evertally.accountants.budget import (
    ChargeRequest,
    GaussianLine,
    Scope,
    ShardRef,
    StreamRecord,
    open_ledger,
)
from evertally.errors import Fenced, InvalidParameter

pytestmark = pytest.mark.faults
SHARD = ShardRef("s", 1, 0)
REQUEST = ChargeRequest("c", "event", "add-remove", GaussianLine(1, 10))
HOUR_MS = 3_600_000

ASK = """
import json, sys
from evertally.accountants.budget import ShardRef, open_ledger
from evertally.errors import EvertallyError
path, charge_id, *steps = sys.argv[1:]
store, said = open_ledger(path), []
for step in steps:
    try:
        if step == "commit":
            said.append(store.commit_charge(charge_id).status)
        elif step == "acquire":
            said.append(store.acquire(ShardRef("s", 1, 0), "elsewhere"))
        else:
            said.append(store.expire(charge_id if step == "expire-it" else None))
    except EvertallyError as error:
        said.append(type(error).__name__)
print(json.dumps(said))
"""

STEP = """
import pathlib, sys
from evertally.pipelines.clock import AnchoredClock
file, step_s = pathlib.Path(sys.argv[1]), int(sys.argv[2])
clock = AnchoredClock()
before = clock.now_ms()
file.write_text(f"{step_s:+d}")
print(clock.now_ms() - before, clock.wall_step_ms())
"""


def run(faketime: str, program: str, *arguments: str, **clock: str) -> str:
    environment = {**os.environ, "LD_PRELOAD": faketime, "FAKETIME_DONT_FAKE_MONOTONIC": "1", **clock}
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env=environment, capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    return done.stdout


def ask(faketime: str, offset: str, path: Path, charge_id: str, *steps: str) -> list[object]:
    """What a process whose clock is off by `offset` is answered."""
    said: list[object] = json.loads(run(faketime, ASK, str(path), charge_id, *steps, FAKETIME=offset))
    return said


@pytest.fixture
def path(tmp_path: Path) -> Path:
    store = open_ledger(tmp_path / "l")
    store.create_scope(Scope("c", "event", "add-remove", "4", "1e-6"))
    store.open_stream(StreamRecord("s", ("k",), 1, {}), REQUEST)
    store.close()
    return tmp_path / "l"


def test_a_fast_clock_expires_early_and_only_what_is_not_drawn(faketime: str, path: Path) -> None:
    store = open_ledger(path)
    undrawn, drawn = store.reserve(REQUEST, HOUR_MS), store.reserve(REQUEST, HOUR_MS)
    store.commit_charge(drawn.charge_id)
    before = store.scope_status("c").spent.main
    assert ask(faketime, "+2h", path, undrawn.charge_id, "commit", "expire", "expire") == ["Fenced", 1, 0]
    with pytest.raises(Fenced):  # its holder hears it too, at whatever clock
        store.commit_charge(undrawn.charge_id)
    assert store.scope_status("c").spent.main == before - undrawn.main
    assert ask(faketime, "+10y", path, drawn.charge_id, "expire", "expire-it") == [0, "InvalidParameter"]
    with pytest.raises(InvalidParameter, match="nothing is refunded"):
        store.expire(drawn.charge_id)
    assert store.verify().problems == ()
    store.close()


def test_a_slow_clock_keeps_a_reservation_spent_and_verify_does_not_mind(faketime: str, path: Path) -> None:
    store = open_ledger(path)
    receipt = store.reserve(REQUEST, 60_000)
    before = store.scope_status("c").spent.main
    assert ask(faketime, "-2h", path, receipt.charge_id, "expire") == [0]
    assert store.scope_status("c").spent.main == before
    assert ask(faketime, "-2h", path, receipt.charge_id, "commit", "commit") == ["committed", "committed"]
    assert store.verify().problems == ()  # rows of the history need not be in the order of their clocks
    store.close()


def test_fencing_is_decided_by_epochs_whatever_the_clocks_say(faketime: str, path: Path) -> None:
    store = open_ledger(path)
    mine = store.acquire(SHARD, "here")
    (future,) = ask(faketime, "+10y", path, "-", "acquire")
    (past,) = ask(faketime, "-10y", path, "-", "acquire")
    assert [mine, future, past] == [1, 2, 3]
    with pytest.raises(Fenced):
        store.mark_published(SHARD, mine, 0, 0)
    store.close()


@pytest.mark.parametrize("step_s", [7200, -7200])
def test_a_step_of_the_wall_clock_moves_no_tick_and_is_seen(
    faketime: str, tmp_path: Path, step_s: int
) -> None:
    file = tmp_path / "offset"
    file.write_text("+0")
    out = run(
        faketime, STEP, str(file), str(step_s), FAKETIME_TIMESTAMP_FILE=str(file), FAKETIME_NO_CACHE="1"
    )
    moved_ms, seen_ms = map(int, out.split())
    assert 0 <= moved_ms < 10_000
    assert seen_ms == pytest.approx(1000 * step_s, abs=10_000)
