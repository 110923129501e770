"""Plans and leases on a local ledger. No torch."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from evertally.accountants import BLT, BallsInBins, BandedSquareRoot, BandMF, Identity
from evertally.accountants.budget import Scope
from evertally.accountants.budget.canonical import plain_json
from evertally.errors import BudgetExceeded, Fenced, InvalidParameter, UnsupportedMechanism
from evertally.pipelines.training.lease import LocalBudget, lease_key
from evertally.pipelines.training.plan import Plan, TrainingLoss, make_plan
from evertally.pipelines.training.run_state import RunFolder

SCHEME = BallsInBins(6, 2)
SCOPE = Scope("people", "event", "add-remove", 8, 1e-5, filter="renyi", order=8)
DIGEST = "ab" * 32


def plan(strategy: Any = None, loss: TrainingLoss | None = None, **changed: Any) -> Plan:
    settings: dict[str, Any] = {
        "clip": 1.0,
        "sensitivity": 1.0 + 2.0**-20,
        "elements": 1000,
        "units_max": 100,
        "divisor": 10.0,
        "constants": {"seed": 1},
    }
    chosen = Identity() if strategy is None else strategy
    return make_plan(chosen, SCHEME, loss or TrainingLoss(4.0), **{**settings, **changed})


@pytest.mark.parametrize(
    "strategy",
    [Identity(), BandedSquareRoot(3), BandMF(2), BLT((0.3, 0.05), (0.5, 0.9))],
    ids=["identity", "bsr", "band-mf", "blt"],
)
def test_a_plan_is_charged_for_no_less_than_it_runs(strategy: Any) -> None:
    made = plan(strategy)
    charged, scheme = made.line.mechanism()
    assert scheme == SCHEME
    ours, paid = (s.matrix_first_column(SCHEME) for s in (made.strategy, charged))  # type: ignore[attr-defined]  # every strategy has it
    assert (paid >= ours).all()
    assert made.grid.noise_sd >= made.noise_multiplier * made.sensitivity
    assert made.digest() == plan(strategy).digest()
    assert made.digest() != plan(strategy, divisor=11.0).digest()
    assert made.digest() != plan(strategy, constants={"seed": 2}).digest()


@pytest.mark.slow
def test_calibrated_noise_meets_its_target_with_all_rounding() -> None:
    for strategy in (Identity(), BLT((0.3,), (0.5,))):
        made = plan(strategy, TrainingLoss(None, 1.5, 1e-5))
        assert 1.4 < made.epsilon(1e-5).value <= 1.5


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"divisor": 0.0}, InvalidParameter),
        ({"divisor": float("nan")}, InvalidParameter),
        ({"sensitivity": 0.5}, InvalidParameter),
        ({"sensitivity": 2.0}, InvalidParameter),
        ({"units_max": 2**40}, InvalidParameter),
        ({"elements": 10**14}, UnsupportedMechanism),
    ],
)
def test_constants_out_of_range_are_refused(changed: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        plan(**changed)


@pytest.fixture
def budget(tmp_path: Path) -> Iterator[LocalBudget]:
    opened = LocalBudget(tmp_path / "budget.ledger")
    opened.create_scope(SCOPE)
    yield opened
    opened.close()


def spent(budget: LocalBudget) -> int:
    return budget.scope_status("people").spent.main


def test_a_retried_reservation_is_the_first_one_and_another_run_is_not(budget: LocalBudget) -> None:
    made = plan()
    request = made.request(SCOPE, lease_key(made.digest(), DIGEST, 0))
    first = budget.open_lease(request, 60_000, DIGEST)
    once = spent(budget)
    assert budget.open_lease(request, 60_000, DIGEST) == first
    assert spent(budget) == once
    assert (first.steps_max, first.line) == (12, made.line)
    other = plan(constants={"seed": 2})
    assert lease_key(other.digest(), DIGEST, 0) != request.idempotency_key
    again = budget.open_lease(made.request(SCOPE, lease_key(made.digest(), DIGEST, 1)), 60_000, DIGEST)
    assert again.lease_id != first.lease_id
    assert spent(budget) == 2 * once


def test_steps_past_the_plan_and_stale_holders_are_refused(budget: LocalBudget) -> None:
    grant = budget.open_lease(plan().request(SCOPE, "k"), 60_000, DIGEST)
    with pytest.raises(InvalidParameter):
        budget.acquire_lease(grant.lease_id, "cd" * 32)
    holder = budget.acquire_lease(grant.lease_id, DIGEST)
    budget.renew_lease(grant.lease_id, holder.epoch, 0)
    budget.renew_lease(grant.lease_id, holder.epoch, 12)
    with pytest.raises(InvalidParameter, match="steps_done"):
        budget.renew_lease(grant.lease_id, holder.epoch, 13)
    successor = budget.acquire_lease(grant.lease_id, DIGEST)
    with pytest.raises(Fenced):
        budget.renew_lease(grant.lease_id, holder.epoch, 12)
    charged = spent(budget)
    budget.close_lease(grant.lease_id, successor.epoch)
    assert spent(budget) == charged > 0  # nothing is refunded once it was begun
    with pytest.raises(Fenced):
        budget.acquire_lease(grant.lease_id, DIGEST)


def test_a_retried_reservation_is_no_way_around_the_fence(budget: LocalBudget) -> None:
    request = plan().request(SCOPE, "k")
    first = budget.open_lease(request, 60_000, DIGEST)
    successor = budget.acquire_lease(first.lease_id, DIGEST)
    late = budget.open_lease(request, 60_000, DIGEST)
    with pytest.raises(Fenced):
        budget.renew_lease(late.lease_id, late.epoch)
    assert budget.renew_lease(late.lease_id, successor.epoch).status == "active"


def test_a_reservation_is_bound_to_its_manifest(budget: LocalBudget) -> None:
    request = plan().request(SCOPE, "k")
    budget.open_lease(request, 60_000, DIGEST)
    with pytest.raises(InvalidParameter, match="idempotency_key"):
        budget.open_lease(request, 60_000, "cd" * 32)


def test_no_run_goes_on_whose_lease_was_altered_by_hand(budget: LocalBudget, tmp_path: Path) -> None:
    """The ledger alone says whether a run is paid for, and for which line."""
    grant = budget.open_lease(plan().request(SCOPE, "k"), 60_000, DIGEST)
    lapsing = budget.open_lease(plan().request(SCOPE, "lapsing"), 1, DIGEST)
    body = plain_json({**grant.line.to_json(), "noise_multiplier": "0.5"}).encode()
    with contextlib.closing(apsw.Connection(str(tmp_path / "budget.ledger"))) as raw:
        raw.execute("UPDATE service_lease SET status = 'active', body = ?", (body,))
    assert budget.acquire_lease(grant.lease_id, DIGEST).line == grant.line
    while time.time() * 1000 <= lapsing.expires_ms:
        time.sleep(0.002)
    with pytest.raises(Fenced):
        budget.renew_lease(lapsing.lease_id, lapsing.epoch, 1)


def test_a_lease_that_was_never_begun_is_given_back(budget: LocalBudget) -> None:
    grant = budget.open_lease(plan().request(SCOPE, "k"), 60_000, DIGEST)
    assert spent(budget) > 0
    budget.close_lease(grant.lease_id, grant.epoch)
    assert spent(budget) == 0


def test_a_plan_that_does_not_fit_is_refused_whole(budget: LocalBudget) -> None:
    with pytest.raises(BudgetExceeded):
        budget.open_lease(plan(loss=TrainingLoss(0.3)).request(SCOPE, "k"), 60_000, DIGEST)
    assert spent(budget) == 0


def test_a_runs_folder_has_one_owner_and_a_random_id_of_its_own(tmp_path: Path) -> None:
    one, other = RunFolder(tmp_path / "a"), RunFolder(tmp_path / "b")
    first = one.state()
    assert len(first.run_id) == 32
    assert first.run_id != other.state().run_id
    assert one.state() == first
    with pytest.raises(Fenced):
        RunFolder(tmp_path / "a")
    assert one.fresh_attempt(first, "e").attempt == 1
    assert one.state().attempt == 1
    one.close()
    again = RunFolder(tmp_path / "a")
    assert again.state().attempt == 1
    again.close()
    other.close()
