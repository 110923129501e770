"""A planned training run over HTTP: from the noise that fits to the last step, with the typed client."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.budget_service.harness import Service, wait_past

from evertally.accountants import BallsInBins, BandMF
from evertally.accountants.budget import ChargeRequest, Scope, TrainingLine
from evertally.accountants.budget.client import BudgetClient
from evertally.accountants.budget.opening import open_ledger
from evertally.errors import BudgetExceeded, Fenced, InvalidParameter

pytestmark = pytest.mark.slow

SCOPE = Scope("models", "event", "add-remove", "6", "0.000001", filter="renyi", order="8")
DRAFT = {
    "kind": "training",
    "strategy": {"kind": "BandMF", "bands": 3},
    "participation": {"kind": "BallsInBins", "batches": 8, "epochs": 2},
}


@pytest.fixture(scope="module")
def client(service: Service) -> Iterator[BudgetClient]:
    with BudgetClient(service.address, service.tokens["owner"]) as client:
        client.create_scope(SCOPE)
        yield client


def wish(line: TrainingLine, key: str = "") -> ChargeRequest:
    return ChargeRequest("models", "event", "add-remove", line, idempotency_key=key)


def test_a_run_is_calibrated_quoted_reserved_committed_and_found_again(
    client: BudgetClient, service: Service
) -> None:
    units = client.scope_status("models").remaining // 4
    line = client.calibrate("models", DRAFT, units)
    assert isinstance(line, TrainingLine)
    quoted = client.quote(wish(line))
    assert quoted.status == "quote"
    assert 0.99 * units < quoted.main <= units
    assert client.scope_status("models").spent.main == 0

    lease = client.open_lease(wish(line, "run"), 60_000, "ab" * 32)
    assert (lease.status, lease.epoch, lease.steps_max) == ("reserved", 1, 16)
    assert client.scope_status("models").spent.main == quoted.main
    strategy, participation = lease.line.mechanism()
    assert participation == BallsInBins(8, 2)
    assert isinstance(strategy, BandMF)
    assert strategy == BandMF(3).fixed(BallsInBins(8, 2))
    assert lease.line == line

    active = client.renew_lease(lease.lease_id, lease.epoch)
    assert (active.status, active.line, active.expires_ms) == ("active", line, 0)
    with pytest.raises(InvalidParameter):
        client.expire_charge(lease.lease_id)
    # another process picks the run up, with nothing but the lease's id, and has to use the same matrix
    with BudgetClient(service.address, service.tokens["owner"]) as successor:
        assert successor.read_lease(lease.lease_id) == active
        taken = successor.acquire_lease(lease.lease_id, "ab" * 32)
        assert (taken.epoch, taken.line) == (2, line)
        assert successor.renew_lease(lease.lease_id, 2, 16).steps_done == 16
    with pytest.raises(Fenced):
        client.renew_lease(lease.lease_id, 1, 3)
    assert client.close_lease(lease.lease_id, 2).status == "closed"
    assert client.scope_status("models").spent.main == quoted.main
    ledger = open_ledger(service.location)
    report = ledger.verify()
    stored = ledger.charges("models")[0].line
    ledger.close()
    assert report.ok, report.problems
    assert all(repr(tap) in stored for tap in strategy.taps)


def test_a_reservation_lapses_or_is_given_back_but_a_committed_one_is_kept(client: BudgetClient) -> None:
    line = client.calibrate("models", DRAFT, client.scope_status("models").remaining // 8)
    assert isinstance(line, TrainingLine)
    before = client.scope_status("models").spent.main
    lapsing = client.open_lease(wish(line), 1)
    wait_past(lapsing.expires_ms)
    with pytest.raises(Fenced):
        client.renew_lease(lapsing.lease_id, 1)
    given_back = client.reserve(wish(line), 60_000)
    assert client.expire_charge(given_back.charge_id) is True
    assert client.expire_charge(given_back.charge_id) is False
    with pytest.raises(Fenced):
        client.commit_charge(given_back.charge_id)
    assert client.scope_status("models").spent.main == before
    kept = client.charge(wish(line))
    with pytest.raises(InvalidParameter, match="committed"):
        client.expire_charge(kept.charge_id)
    with pytest.raises(InvalidParameter):
        client.expire_charge("0" * 32)
    assert client.scope_status("models").spent.main == before + kept.main


def test_no_run_is_leased_beyond_the_cap(client: BudgetClient) -> None:
    plan = TrainingLine(DRAFT["strategy"], DRAFT["participation"], "0.3")  # type: ignore[arg-type]  # objects
    before = client.scope_status("models")
    for refused in (client.quote, client.charge, lambda request: client.open_lease(request, 60_000)):
        with pytest.raises(BudgetExceeded):
            refused(wish(plan))
    assert client.scope_status("models") == before
    other = {
        **DRAFT,
        "strategy": {"kind": "BLT", "output_scales": ["-0.2", "0.3"], "buffer_decays": ["0", "0.9"]},
    }
    fitted = client.calibrate("models", other, before.remaining // 8)
    assert client.quote(wish(fitted)).main > 0  # type: ignore[arg-type]  # a training line
