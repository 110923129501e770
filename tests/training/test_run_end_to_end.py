"""Whole runs: files to model, one scope with a counter, a budget service, the command, both planes."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from tests.budget_service.harness import ALL, Service, start
from tests.training.training_crashes import prepared
from tests.training.training_runs import Toy, blobs

from evertally.accountants import BLT, BallsInBins, BandedSquareRoot, BandMF
from evertally.accountants.budget import Scope, open_ledger
from evertally.errors import BudgetExceeded, InvalidParameter
from evertally.pipelines.closings import ClosingBlock
from evertally.pipelines.config_table import InvalidConfig
from evertally.pipelines.keyfile import KeyFile
from evertally.pipelines.releaser import Releaser
from evertally.pipelines.stream_spec import StreamSpec
from evertally.pipelines.training import run as running
from evertally.pipelines.training import run_metrics
from evertally.pipelines.training.run import train_run
from evertally.pipelines.training.run_components import build_components, build_plan
from evertally.pipelines.training.run_metrics import PUBLIC_TRAINING_METRICS
from evertally.pipelines.training.run_models import build_model

pytestmark = pytest.mark.train

SHORT = "batches = 4\nepochs = 2\nexpected_units = 240\ncheckpoint_steps = 4\n"
PLAIN = {"training": SHORT, "preconditioner": 'transform = "none"'}


def test_a_run_trains_reports_and_is_done_once(tmp_path: Path) -> None:
    toy = Toy(tmp_path / "toy")
    seen: list[tuple[int, int]] = []
    report = train_run(toy.config(), progress=lambda done, steps: seen.append((done, steps)))
    assert seen == [(4, 16), (8, 16), (12, 16), (16, 16)]
    assert report.steps == 16
    assert report.measured is not None
    assert report.measured > 0.8
    assert "declared public" in report.accuracy
    assert 0 < report.lower <= report.epsilon
    assert report.source
    assert [line["step"] for line in toy.steps()] == list(range(16))
    model = build_model(toy.config().model, toy.config().data.form, seed=0)
    model.load_state_dict(safetensors.torch.load_file(str(toy.run / "model.safetensors")))
    features, labels = blobs(600, seed=1)
    right = (model(torch.from_numpy(features)).argmax(-1).numpy() == labels).mean()
    assert right == pytest.approx(report.measured)
    stored = json.loads((toy.run / "report.json").read_text())
    assert stored["epsilon"] == report.epsilon
    assert stored["joules"] == "not measured"
    assert "seconds" not in stored
    spent = toy.spent()
    again = train_run(toy.config())
    assert (again.epsilon, again.seconds) == (report.epsilon, None)
    assert toy.spent() == spent
    leftovers = sorted(path.name for path in toy.run.iterdir())
    assert leftovers == [".lock", "model.safetensors", "plan.json", "report.json", "run.json", "steps.jsonl"]


@pytest.mark.parametrize(
    "strategy",
    ['strategy = "band-mf"\nbands = 2', 'strategy = "blt"\noutput_scales = [0.3]\nbuffer_decays = [0.5]', ""],
    ids=["band-mf", "blt", "identity"],
)
def test_every_strategy_trains_with_what_its_lease_was_granted_for(strategy: str, tmp_path: Path) -> None:
    toy = Toy(tmp_path / "toy", tables={**PLAIN, "training": SHORT + strategy})
    config = toy.config()
    plan = build_plan(config, build_components(config, "cpu"))
    charged, scheme = plan.line.mechanism()
    assert scheme == BallsInBins(4, 2)
    ours = plan.strategy.matrix_first_column(BallsInBins(4, 2))  # type: ignore[attr-defined]  # every strategy has it
    paid = charged.matrix_first_column(BallsInBins(4, 2))  # type: ignore[attr-defined]  # as above
    assert (paid >= ours).all()
    assert isinstance(plan.strategy, BandMF) == ("band-mf" in strategy)
    if isinstance(plan.strategy, BandMF):
        assert plan.strategy.taps == tuple(ours[:2].tolist())
    if isinstance(plan.strategy, BLT):
        assert (paid[1:] > ours[1:]).all()
    report = train_run(config)
    assert report.epsilon == plan.epsilon(1e-5).value
    assert toy.spent()[0] == 1


def test_epsilon_is_met_by_the_noise_that_is_found(tmp_path: Path) -> None:
    toy = Toy(tmp_path / "toy", tables={**PLAIN, "privacy": "epsilon = 2.0\ndelta = 1e-5"})
    report = train_run(toy.config())
    assert 1.9 < report.epsilon <= 2.0


def test_empty_bins_are_steps_of_noise_alone_and_are_counted(tmp_path: Path) -> None:
    """Empty batches crashed, or were skipped, elsewhere (opacus#161, #522, #676)."""
    tables = {**PLAIN, "training": "batches = 12\nepochs = 1\nexpected_units = 240\ncheckpoint_steps = 1"}
    toy = Toy(tmp_path / "toy", examples=3, tables=tables)
    report = train_run(toy.config())
    assert report.steps == 12
    digests = [line["parameters"] for line in toy.steps()]
    assert len(set(digests)) == 12  # each step moved the parameters


def test_a_unit_is_clipped_as_a_whole(tmp_path: Path) -> None:
    toy = Toy(
        tmp_path / "toy", tables={**PLAIN, "privacy": 'unit = "person"\nnoise_multiplier = 4.0\ndelta = 1e-5'}
    )
    features, labels = blobs(240)
    np.savez(toy.folder / "train.npz", x=features, y=labels, who=np.arange(240) // 6)
    toy.tables["data"] = (
        'path = "train.npz"\nfeatures = "x"\nshape = [6]\nlabel = "y"\nclasses = 3\nunit = "who"\n'
        "records_per_unit = 4"
    )
    report = train_run(toy.config())
    assert report.unit == "person"
    assert report.accuracy == "not measured"


def scope() -> Scope:
    return Scope("people", "event", "add-remove", 8, 1e-5, filter="renyi", order=8)


def counter(folder: Path) -> int:
    """A counter with three released ticks in the scope; what it was charged."""
    ledger = open_ledger(folder / "budget.ledger")
    try:
        ledger.create_scope(scope())
        spec = StreamSpec("visits", ("a", "b"), 0, 1000, scope(), mu=0.5)
        releaser = Releaser.open(ledger, spec, KeyFile.create(folder / "visits.key"), holder="test")
        sums = np.array([[3, 1], [5, 2], [9, 2]], dtype=object)
        releaser.release(ClosingBlock("visits", ("a", "b"), 1, sums, b"end", (1000, 2000, 3000)))
        return ledger.scope_status("people").spent.main
    finally:
        ledger.close()


def evertally(*words: str) -> subprocess.CompletedProcess[str]:
    program = "from evertally.pipelines.cli.app import main; main()"
    return subprocess.run(
        [sys.executable, "-c", program, *words], capture_output=True, text=True, timeout=600, check=False
    )


def test_a_counter_and_a_run_share_one_scope_and_the_next_charge_is_refused(tmp_path: Path) -> None:
    toy = Toy(tmp_path / "toy", tables=PLAIN)
    first = counter(toy.folder)
    assert first > 0
    done = evertally("train", "--config", str(toy.path()), "--json")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["ok"]
    assert said["scope"] == "people"
    ledger = open_ledger(toy.folder / "budget.ledger")
    try:
        status = ledger.scope_status("people")
        charged = [json.loads(row.line)["line"] for row in ledger.charges("people") if row.line]
        kinds = {line["kind"] for line in charged}
        assert kinds == {"counter", "training"}
        assert first < status.spent.main <= status.caps.main
        spent = status.spent.main
        verified = ledger.verify()
        assert verified.ok, verified.problems
    finally:
        ledger.close()
    toy.tables |= {
        "run": 'name = "second"\nfolder = "second"\nkey_file = "toy.key"',
        "privacy": "noise_multiplier = 0.35\ndelta = 1e-5",
    }
    refused = evertally("train", "--config", str(toy.path()), "--json")
    assert refused.returncode == 3, refused.stderr
    assert "budget refused" in refused.stderr
    ledger = open_ledger(toy.folder / "budget.ledger")
    try:
        assert ledger.scope_status("people").spent.main == spent
    finally:
        ledger.close()
    assert not (toy.folder / "second" / "steps.jsonl").exists()


def test_what_remains_can_be_spent_and_then_nothing_is_left(tmp_path: Path) -> None:
    toy = Toy(tmp_path / "toy", tables={**PLAIN, "privacy": 'spend = "remaining"\ndelta = 1e-5'})
    first = counter(toy.folder)
    toy.tables["budget"] = 'scope = "people"\nledger = "budget.ledger"'
    train_run(toy.config())
    ledger = open_ledger(toy.folder / "budget.ledger")
    try:
        status = ledger.scope_status("people")
        assert first < status.spent.main <= status.caps.main
        assert status.remaining < 0.02 * status.caps.main
    finally:
        ledger.close()
    toy.tables["run"] = 'name = "second"\nfolder = "second"\nkey_file = "toy.key"'
    toy.tables["privacy"] = "noise_multiplier = 4.0\ndelta = 1e-5"
    with pytest.raises(BudgetExceeded):
        train_run(toy.config())


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    """A budget service with a scope that a principal may lease from."""
    location = tmp_path / "service.ledger"
    ledger = open_ledger(location)
    ledger.create_scope(scope())
    ledger.close()
    running = start(str(location), str(location) + ".chainkey", {})
    running.token("trainer", ALL)
    yield running
    running.kill()


def test_a_lease_from_the_budget_service(service: Service, tmp_path: Path) -> None:
    toy = Toy(tmp_path / "toy", tables=PLAIN)
    (toy.folder / "token").write_text(service.tokens["trainer"])
    toy.tables["budget"] = f'scope = "people"\nservice = "{service.address}"\ntoken_file = "token"'
    report = train_run(toy.config())
    with service.client("trainer") as http:
        lease_id = json.loads((toy.run / "run.json").read_text())["lease_id"]
        lease = http.get(f"/v1/leases/{lease_id}").json()
        assert (lease["status"], lease["steps_done"], lease["steps_max"]) == ("closed", 8, 8)
        assert lease["line"]["noise_multiplier"] == "4.0"
        assert http.get("/v1/scopes/people").json()["spent"]["main"] > 0
    assert report.scope == "people"


def test_the_planes_show_no_number_of_the_data_to_the_public(tmp_path: Path) -> None:
    toy = Toy(tmp_path / "toy", tables={**PLAIN, "preconditioner": "probes = 32"})
    toy.tables["metrics"] = 'listen = "127.0.0.1:0"\npublic_listen = "127.0.0.1:0"'
    texts: dict[str, list[str]] = {"private": [], "public": []}
    made = run_metrics.TrainMetrics

    instances: list[run_metrics.TrainMetrics] = []

    def watched(*arguments: Any) -> run_metrics.TrainMetrics:
        instances.append(made(*arguments))
        return instances[-1]

    def look(done: int, steps: int) -> None:
        private, public = instances[0].addresses
        for name, address in (("private", private + "/internal/metrics"), ("public", public + "/metrics")):
            with urllib.request.urlopen(address, timeout=30) as answer:
                texts[name].append(answer.read().decode())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(running, "TrainMetrics", watched)
        train_run(toy.config(), progress=look)
    public, private = texts["public"][-1], texts["private"][-1]
    names = {line.split("{")[0].split()[0] for line in public.splitlines() if not line.startswith("#")}
    assert names == {f"evertally_{name}" for name in PUBLIC_TRAINING_METRICS}
    assert "evertally_train_steps_published 8.0" in public
    assert 'figure="condition_g/1"' in public
    assert "evertally_train_batch_units_sum 480.0" in private  # 240 examples in each of two epochs
    for word in ("loss", "clip_fraction", "batch", "seconds", "memory"):
        assert word not in public


def test_the_mistakes_of_a_configuration_are_named_together(tmp_path: Path) -> None:
    toy = Toy(tmp_path / "toy")
    toy.tables |= {
        "training": 'batches = 0\nepochs = 2\nexpected_units = nan\nstrategy = "bsr"\nbanana = 1',
        "privacy": "epsilon = inf\ndelta = 1.0",
        "optimiser": "rate = -1",
        "model": 'kind = "factory"',
        "budget": 'scope = "people"',
        "preconditioner": 'probe = "zipf-documents"\nbrightness = 1.0',
    }
    with pytest.raises(InvalidConfig) as caught:
        toy.config()
    fields = {mistake.field for mistake in caught.value.mistakes}
    assert {
        "training.batches",
        "training.expected_units",
        "training.banana",
        "privacy.epsilon",
        "privacy.delta",
        "optimiser.rate",
        "model.factory",
        "budget.ledger",
        "preconditioner.brightness",
    } <= fields


def test_brightness_of_probes_is_part_of_the_plan(tmp_path: Path) -> None:
    toy = Toy(tmp_path / "toy", tables={"preconditioner": "probes = 32\nbrightness = 1.5"})
    config = toy.config()
    described = build_components(config, "cpu").preconditioner.describe()
    assert described["probe"]["brightness"] == 1.5  # type: ignore[index]  # JSON
    toy.tables["preconditioner"] = "probes = 32"
    other = toy.config()
    one, two = (build_plan(c, build_components(c, "cpu")).digest() for c in (config, other))
    assert one != two


@pytest.mark.parametrize(
    ("preconditioner", "shape", "brightness", "gamma"),
    [
        ("", "[1, 14, 14]", 1.0, None),
        ("brightness = 0", "[1, 14, 14]", 0.0, None),
        ('probe = "white"', "[1, 14, 14]", 0.0, None),
        ('transform = "paper"', "[1, 14, 14]", 0.0, None),
        ('transform = "diagonal"', "[1, 14, 14]", 0.0, None),
        ("", "[6]", 0.0, None),
        ('probe = "zipf-documents"', "[6]", 0.0, 4.0),
        ('probe = "zipf-documents"\ngamma = 0.5', "[6]", 0.0, 0.5),
        ('probe = "zipf-documents"\ntransform = "paper"', "[6]", 0.0, None),
    ],
)
def test_images_and_documents_have_defaults_of_their_own(
    preconditioner: str, shape: str, brightness: float, gamma: float | None, tmp_path: Path
) -> None:
    data = f'path = "train.npz"\nfeatures = "x"\nshape = {shape}\nlabel = "y"\nclasses = 3'
    toy = Toy(tmp_path / "toy", tables={"preconditioner": preconditioner, "data": data})
    probe = toy.config().probe
    assert (probe.brightness, probe.gamma) == (brightness, gamma)


@pytest.mark.parametrize("device", ["cuda"])
def test_a_device_that_is_not_there_is_refused(device: str, tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device")
    with pytest.raises(InvalidParameter, match="device"):
        train_run(Toy(tmp_path / "toy", tables=PLAIN).config(), device=device)


@pytest.mark.gpu
def test_a_run_on_cuda_resumes_under_a_fresh_attempt(tmp_path: Path) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    from tests.training.training_crashes import crashing_seams

    from evertally.testing import CrashPoints, SimulatedCrash

    toy = prepared(tmp_path / "toy")
    with pytest.raises(SimulatedCrash):
        train_run(toy.config(), device="cuda", seams=crashing_seams(CrashPoints(1, "store.publish:after")))
    report = train_run(toy.config(), device="cuda")
    assert report.measured is not None
    assert report.measured > 0.8
    assert json.loads((toy.run / "run.json").read_text())["attempt"] == 2


@pytest.mark.slow
def test_the_accountants_job_is_accounted_whole_and_runs_on_stand_in_data(tmp_path: Path) -> None:
    """CIFAR-10's shape, BSR, 970 steps in 10 epochs, epsilon 4: the plan is whole, a few steps are run."""

    class Enough(Exception):
        pass

    def stop(done: int, steps: int) -> None:
        assert steps == 970
        if done >= 2:
            raise Enough

    random = np.random.default_rng(0)
    toy = Toy(tmp_path / "toy")
    np.savez(
        toy.folder / "train.npz",
        x=random.normal(size=(970, 3, 32, 32)).astype(np.float32),
        y=random.integers(0, 10, 970),
    )
    toy.tables = {
        "data": 'path = "train.npz"\nfeatures = "x"\nshape = [3, 32, 32]\nlabel = "y"\nclasses = 10',
        "model": 'kind = "cnn"\nhidden = [8, 16, 32]',
        "preconditioner": "probes = 16",
        "training": 'batches = 97\nepochs = 10\nstrategy = "bsr"\nbands = 4\nexpected_units = 970\n'
        "checkpoint_steps = 1",
        "privacy": "epsilon = 4.0\ndelta = 1e-5",
    }
    config = toy.config()
    with pytest.raises(Enough):
        train_run(config, progress=stop)
    assert len(toy.steps()) == 2
    plan = json.loads((toy.run / "plan.json").read_text())["plan"]
    assert plan["line"]["participation"] == {"kind": "BallsInBins", "batches": 97, "epochs": 10}
    bound = build_plan(config, build_components(config, "cpu")).epsilon(1e-5)
    assert bound.lower < 3.99 < bound.value <= 4.0
    assert toy.spent()[0] == 1
    assert config.mechanism.strategy == BandedSquareRoot(4)
