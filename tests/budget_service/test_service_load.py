"""Many clients at once: nothing is granted twice, nothing beyond the cap, nothing lost in a crash."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest
from tests.budget_service.harness import Service, Starter, prepare, start
from tests.budget_service.load import Outcome, run_clients, total_granted

from evertally.accountants.budget.opening import open_ledger

pytestmark = pytest.mark.slow


def _audit(service: Service, outcomes: list[Outcome], *, crashed: bool = False) -> tuple[int, int]:
    """Compare what clients were told with the ledger; (distinct grants, spent)."""
    ledger = open_ledger(service.location, key_file=service.key_file or None)
    status = ledger.scope_status("health")
    report = ledger.verify()
    ledger.close()
    assert report.ok, report.problems
    grants, amount = total_granted(outcomes)
    assert status.spent.main <= status.caps.main
    assert sum(outcome.mismatched for outcome in outcomes) == 0
    if crashed:
        unknown = sum(len(set(outcome.unknown) - outcome.granted.keys()) for outcome in outcomes)
        each = amount // max(1, grants)
        assert amount <= status.spent.main <= amount + unknown * each  # in doubt it counts as spent
    else:
        assert status.spent.main == amount
    return grants, status.spent.main


def test_sixteen_clients_spend_exactly_the_distinct_grants(service: Service) -> None:
    outcomes = run_clients(service.address, service.tokens["owner"], 16, 100)
    grants, _ = _audit(service, outcomes)
    assert grants == 16 * 90  # every tenth request repeats an earlier key
    assert sum(outcome.refused for outcome in outcomes) == 0


def test_a_cap_that_runs_out_under_load_is_met_exactly(starter: Starter) -> None:
    service = starter()
    # cap 200,986,265 nano-mu2, each charge (1/100)^2 = 100,000: 2,009 fit; 16 x 160 ask
    outcomes = run_clients(service.address, service.tokens["owner"], 16, 160, sigma="100", duplicates=0.0)
    grants, spent = _audit(service, outcomes)
    assert grants == 2009
    assert spent == 200_900_000
    assert sum(outcome.refused for outcome in outcomes) == 16 * 160 - 2009


@pytest.mark.postgres
def test_load_on_postgresql(postgres_address: str, tmp_path: Path) -> None:
    key_file = str(tmp_path / "chain.key")
    service = start(postgres_address, key_file, prepare(postgres_address, key_file))
    try:
        outcomes = run_clients(service.address, service.tokens["owner"], 16, 30)
        assert _audit(service, outcomes)[0] == 16 * 27
    finally:
        service.kill()


def _killed_under_load(starter: Starter, after_s: float, clients: int, requests: int) -> None:
    service = starter()
    outcomes: list[Outcome] = []
    thread = threading.Thread(
        target=lambda: outcomes.extend(
            run_clients(service.address, service.tokens["owner"], clients, requests)
        )
    )
    thread.start()
    time.sleep(after_s)
    os.kill(service.process.pid, signal.SIGKILL)
    thread.join(300)
    service.process.wait(30)
    grants, _ = _audit(service, outcomes, crashed=True)
    assert grants > 0
    # the same requests again: what was granted before is answered with the same bytes
    again = starter()
    repeated = run_clients(again.address, again.tokens["owner"], clients, requests)
    _audit(again, repeated)
    told = {key: body for outcome in outcomes for key, body in outcome.granted.items()}
    told_again = {key: body for outcome in repeated for key, body in outcome.granted.items()}
    assert all(told_again[key] == body for key, body in told.items())


@pytest.mark.faults
def test_kill_under_load_loses_no_grant(starter: Starter) -> None:
    _killed_under_load(starter, 2.0, 8, 150)


@pytest.mark.soak
def test_64_clients_of_ten_thousand_requests(starter: Starter) -> None:
    service = starter()
    outcomes = run_clients(service.address, service.tokens["owner"], 64, 10_000, sigma="100000")
    assert _audit(service, outcomes)[0] == 64 * 9000


@pytest.mark.soak
@pytest.mark.faults
@pytest.mark.parametrize("after_s", [0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0])
def test_kill_under_heavy_load(starter: Starter, after_s: float) -> None:
    _killed_under_load(starter, after_s, 32, 400)
