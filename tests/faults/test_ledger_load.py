"""Clients that are killed in flight: what is spent is the sum of the distinct grants, at every instant."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from evertally.accountants.budget import Scope, open_ledger

pytestmark = [pytest.mark.faults, pytest.mark.slow]
CHARGE = 156_250  # (1/80)^2 in nano-mu2


def runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def load(tmp_path: Path, processes: int, clients: int, requests: int, epsilon: str) -> tuple[int, int]:
    """(grants, refusals) of processes x clients; a hundredth of the requests die in flight.

    A kill ends all clients of a process in the middle of their requests; a successor asks again for
    whatever has no answer.
    """
    path = tmp_path / "ledger.sqlite"
    store = open_ledger(path)
    store.create_scope(Scope("s", "event", "add-remove", epsilon, "1e-6"))
    cap = store.scope_status("s").caps.main
    program = Path(__file__).with_name("ledger_clients.py")
    server = subprocess.Popen(
        [sys.executable, str(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert server.stdin is not None
    assert server.stdout is not None
    kills = max(1, processes * requests // 100)
    rng, pids = random.Random(kills), dict[int, int]()
    try:
        while True:
            ended = [n for n in range(processes) if n not in pids or not runs(pids[n])]
            unfinished = [n for n in ended if answers(tmp_path / f"out{n}")[0] < clients * requests]
            for number in unfinished:
                output = tmp_path / f"out{number}"
                server.stdin.write(f"{path} {number} {clients} {requests} {output}\n")
                server.stdin.flush()
                pids[number] = int(server.stdout.readline())
            if len(ended) == processes and not unfinished:
                break
            time.sleep(0.02 + 0.08 * rng.random())
            spent = store.scope_status("s").spent.main
            assert 0 <= spent <= cap
            if kills:
                victim = pids[rng.randrange(processes)]
                kills -= runs(victim)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(victim, signal.SIGKILL)
    finally:
        for pid in pids.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        server.stdin.close()
        server.stdout.close()
        server.wait()
    assert kills == 0
    grants: dict[str, str] = {}
    refused = 0
    for number in range(processes):
        for key, charge_id, main in lines(tmp_path / f"out{number}"):
            if main < 0:
                assert key not in grants
                refused += 1
            else:
                assert main == CHARGE
                assert grants.setdefault(key, charge_id) == charge_id
    status = store.scope_status("s")
    assert status.spent.main == CHARGE * len(grants) <= cap
    assert len(set(grants.values())) == len(grants)
    assert store.verify().problems == ()
    store.close()
    return len(grants), refused


def lines(output: Path) -> list[tuple[str, str, int]]:
    text = output.read_text() if output.exists() else ""
    found = [line.split() for line in text[: text.rfind("\n") + 1].splitlines()]
    return [(key, charge_id, int(main)) for key, charge_id, main in found]


def answers(output: Path) -> tuple[int, int]:
    """(keys with an answer, lines)."""
    found = lines(output)
    return len({key for key, _, _ in found}), len(found)


def test_sixteen_clients_of_four_hundred_requests_some_killed(tmp_path: Path) -> None:
    grants, refused = load(tmp_path, processes=4, clients=4, requests=400, epsilon="4")
    assert grants > 4000
    assert refused > 100


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_sixty_four_clients_of_ten_thousand_requests_some_killed(tmp_path: Path) -> None:
    assert load(tmp_path, processes=8, clients=8, requests=10_000, epsilon="800")[0] == 640_000
