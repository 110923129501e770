"""A run's opening: who holds it, and what it spends, where something happens between two of its steps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest
from tests.training.training_crashes import copied, crashing_seams, prepared
from tests.training.training_runs import Toy

from evertally.accountants.budget import open_ledger
from evertally.errors import Fenced, IntegrityError, InvalidParameter
from evertally.pipelines.training.config_sections import BudgetConfig
from evertally.pipelines.training.lease import Budget
from evertally.pipelines.training.run import train_run
from evertally.pipelines.training.run_open import Seams, open_budget, open_run
from evertally.testing import CrashPoints, SimulatedCrash

pytestmark = pytest.mark.train


@pytest.mark.slow
def test_a_run_that_is_taken_over_while_it_opens_takes_no_second_lease(tmp_path: Path) -> None:
    """A copy of the folder draws the same noise: it is one run, and one of the two has to stop."""
    toy = prepared(tmp_path / "toy")
    other = copied(toy, tmp_path / "copy")
    other.tables["budget"] = f'scope = "people"\nledger = "{toy.folder / "budget.ledger"}"'

    def budget(config: BudgetConfig) -> Budget:
        made = open_budget(config)
        renew = made.renew_lease

        def after_the_other(*arguments: Any) -> Any:
            cast("Any", made).renew_lease = renew
            open_run(other.config()).close()
            return renew(*arguments)

        cast("Any", made).renew_lease = after_the_other
        return made

    with pytest.raises(Fenced):
        open_run(toy.config(), seams=Seams(budget=budget))
    assert toy.spent()[0] == 1
    train_run(other.config())
    assert toy.spent()[0] == 1


@pytest.mark.slow
def test_a_reservation_that_lapsed_is_made_again(tmp_path: Path) -> None:
    toy = Toy(tmp_path / "toy")
    with pytest.raises(SimulatedCrash):
        train_run(toy.config(), seams=crashing_seams(CrashPoints(1, "store.acquire:before")))
    ledger = open_ledger(toy.folder / "budget.ledger", create=False)
    first = json.loads((toy.run / "run.json").read_text())
    ledger.expire(first["lease_id"])
    ledger.close()
    assert toy.spent() == (0, 0)
    run = open_run(toy.config())
    assert (run.state.generation, run.grant.status) == (1, "active")
    assert run.grant.lease_id != first["lease_id"]
    run.close()
    assert toy.spent()[0] == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "strategy", ['strategy = "identity"', 'strategy = "blt"\noutput_scales = [0.5]\nbuffer_decays = [0.5]']
)
def test_a_run_that_spends_what_remains_goes_on_with_its_own_noise(strategy: str, tmp_path: Path) -> None:
    """After its reservation nothing remains; a BLT's noise is raised a little, once."""
    toy = Toy(tmp_path / "toy")
    toy.tables |= {
        "training": f"batches = 4\nepochs = 1\nexpected_units = 240\ncheckpoint_steps = 2\n{strategy}",
        "privacy": 'spend = "remaining"\ndelta = 1e-5',
        "preconditioner": 'transform = "none"',
    }
    with pytest.raises(SimulatedCrash):
        train_run(toy.config(), seams=crashing_seams(CrashPoints(1, "store.publish:after")))
    spent = toy.spent()
    assert train_run(toy.config()).steps == 4
    assert toy.spent() == spent


@pytest.mark.parametrize("damage", ["", "{", '{"spends": "x"}', '{"digest": ""}'])
def test_a_damaged_plan_is_refused_by_name(damage: str, tmp_path: Path) -> None:
    toy = Toy(tmp_path / "toy", tables={"privacy": 'spend = "remaining"\ndelta = 1e-5'})
    toy.run.mkdir()
    (toy.run / "plan.json").write_text(damage)
    with pytest.raises(IntegrityError, match=r"plan\.json is damaged"):
        open_run(toy.config())


@pytest.mark.slow
def test_a_finished_run_answers_for_its_own_configuration_only(tmp_path: Path) -> None:
    toy = Toy(tmp_path / "toy")
    toy.tables |= {
        "training": "batches = 2\nepochs = 1\nexpected_units = 240",
        "privacy": "noise_multiplier = 4.0\ndelta = 1e-5",
        "preconditioner": 'transform = "none"',
    }
    done = train_run(toy.config())
    assert train_run(toy.config()).epsilon == done.epsilon
    for table, text, field in (
        ("privacy", f"epsilon = {done.epsilon * 0.9}\ndelta = 1e-5", "privacy.epsilon"),
        ("privacy", "noise_multiplier = 5.0\ndelta = 1e-5", "privacy.noise_multiplier"),
        ("privacy", "noise_multiplier = 4.0\ndelta = 1e-6", "privacy.delta"),
        ("training", "batches = 3\nepochs = 1\nexpected_units = 240", "training.batches"),
    ):
        before = toy.tables[table]
        toy.tables[table] = text
        with pytest.raises(InvalidParameter, match=field):
            train_run(toy.config())
        toy.tables[table] = before


def test_a_token_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    toy = Toy(tmp_path / "toy")
    (toy.folder / "token").write_bytes(b"\xff\xfe")
    toy.tables["budget"] = 'scope = "people"\nservice = "http://127.0.0.1:1"\ntoken_file = "token"'
    with pytest.raises(InvalidParameter, match=r"budget\.token_file"):
        open_budget(toy.config().budget)
