"""What one step gives away: the law of its output, and that nothing but the clipped sum depends on data."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.training.training_crashes import copied, prepared
from tests.training.training_runs import Toy
from torch import nn

from evertally.counters.keys import NoiseKey
from evertally.pipelines.training import run as running
from evertally.pipelines.training import run_components, run_metrics
from evertally.pipelines.training.interfaces import PrivateSums
from evertally.pipelines.training.noise import StepNoise
from evertally.pipelines.training.run import train_run
from evertally.pipelines.training.run_components import Components, build_components, build_plan
from evertally.pipelines.training.run_open import Seams
from evertally.testing import SimulatedCrash

pytestmark = pytest.mark.train

ONE_STEP = {
    "training": "batches = 1\nepochs = 1\nexpected_units = 50\ncheckpoint_steps = 1",
    "privacy": "noise_multiplier = 0.7\ndelta = 1e-5",
    "preconditioner": 'transform = "none"',
    "optimiser": 'kind = "sgd"\nrate = 1.0\nmomentum = 0.0',
    "model": 'kind = "mlp"\nhidden = [4000]',
    "budget": 'scope = "people"\nepsilon_cap = 100\ndelta_cap = 1e-5\norder = 8\nledger = "budget.ledger"',
    "data": 'path = "train.npz"\nfeatures = "x"\nshape = [6]\nlabel = "y"\nclasses = 3',
}


def first_step(
    toy: Toy, monkeypatch: pytest.MonkeyPatch
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Clipped sums (never seen outside a test) and the gradients of a run of one step."""
    exact: dict[str, np.ndarray] = {}
    seen: dict[str, np.ndarray] = {}

    def components(config: Any, device: str) -> Components:
        parts = build_components(config, device)
        summer = parts.summer

        class Watched:
            parameters, sensitivity = summer.parameters, summer.sensitivity

            def sum(self, batches: Any) -> PrivateSums:
                found = summer.sum(batches)
                exact.update({name: t.numpy().copy() for name, t in found.tensors.items()})
                return found

        return Components(parts.model, Watched(), parts.preconditioner, parts.device)  # type: ignore[arg-type]  # a summer

    made = run_components.build_optimiser

    def optimiser(*arguments: Any) -> Any:
        inner = made(*arguments)

        class Watched:
            def step(self, gradients: Any) -> None:
                seen.update({name: t.numpy().copy() for name, t in gradients.items()})
                inner.step(gradients)

            def __getattr__(self, name: str) -> Any:
                return getattr(inner, name)

        return Watched()

    monkeypatch.setattr(running, "build_optimiser", optimiser)
    train_run(toy.config(), seams=Seams(components=components))
    return exact, seen


def test_one_steps_output_is_the_clipped_sum_with_noise_of_sigma_times_c(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """40,003 coordinates, Kolmogorov-Smirnov and the variance; false alarms below 2e-6 for fresh keys."""
    from scipy import stats

    toy = Toy(tmp_path / "toy", examples=50, tables=ONE_STEP)
    exact, seen = first_step(toy, monkeypatch)
    noise = np.concatenate([(seen[name] * 50.0 - exact[name]).ravel() for name in exact])
    assert noise.size == 4000 * 7 + 3 * 4001
    assert math.sqrt(float(np.mean(noise**2))) == pytest.approx(0.7, rel=5 / math.sqrt(2 * noise.size))
    assert stats.kstest(noise / 0.7, "norm").pvalue > 1e-6
    for other in (0.7 * 0.95, 0.7 * 1.05):  # noise that is 5 % off would be seen
        assert abs(math.sqrt(float(np.mean(noise**2))) / other - 1) > 5 / math.sqrt(2 * noise.size)
    # on the grid: every released coordinate of the row is an integer of grid units
    config = toy.config()
    plan = build_plan(config, build_components(config, "cpu"))
    assert plan.grid.noise_sd == pytest.approx(0.7, rel=1e-5)
    assert plan.grid.noise_sd >= 0.7
    units = np.concatenate([seen[name].ravel() for name in exact]) * 50.0 * plan.grid.q
    assert np.abs(units - np.rint(units)).max() < 1e-3


def test_neighbours_differ_by_their_clipped_sums_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Divided by a constant; under one noise rows differ by the record alone (opacus#819, #571, #420)."""
    toy = prepared(tmp_path / "toy", lambda folder: Toy(folder, examples=50, tables=ONE_STEP))
    fewer = copied(toy, tmp_path / "fewer")
    exact, seen = first_step(toy, monkeypatch)
    with np.load(toy.folder / "train.npz") as file:
        np.savez(fewer.folder / "train.npz", x=file["x"][:-1], y=file["y"][:-1])
    exact_fewer, seen_fewer = first_step(fewer, monkeypatch)
    moved = np.concatenate([(exact[name] - exact_fewer[name]).ravel() for name in exact])
    assert 0.0 < float(np.linalg.norm(moved)) <= 1.0 + 1e-6
    difference = np.concatenate([(seen[name] - seen_fewer[name]).ravel() for name in exact]) * 50.0
    assert np.abs(difference - moved).max() < 1e-8


def test_nothing_public_differs_before_the_first_noise(tmp_path: Path) -> None:
    """Neighbouring data: plan, metrics, coordinates and everything readable are the same bytes until then."""
    seen: list[tuple[bytes, bytes, dict[str, bytes]]] = []
    toy = prepared(tmp_path / "toy")
    for number, rows in enumerate((240, 239)):
        own = copied(toy, tmp_path / f"copy-{number}")
        with np.load(toy.folder / "train.npz") as file:
            np.savez(own.folder / "train.npz", x=file["x"][:rows], y=file["y"][:rows])
        metrics: list[Any] = []
        parts: list[Components] = []

        def components(config: Any, device: str, parts: list[Components] = parts) -> Components:
            parts.append(build_components(config, device))
            return parts[-1]

        class Stop(StepNoise):
            def draw(self, *_: Any, **__: Any) -> Any:
                raise SimulatedCrash

        made = run_metrics.TrainMetrics

        def watched(*arguments: Any, metrics: list[Any] = metrics, made: Any = made) -> Any:
            metrics.append(made(*arguments))
            return metrics[-1]

        def noise(key: NoiseKey, steps: int, kind: type[StepNoise] = Stop) -> StepNoise:
            return kind(key, steps)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(running, "TrainMetrics", watched)
            with pytest.raises(SimulatedCrash):
                train_run(own.config(), seams=Seams(noise=noise, components=components))
        coordinates = {name: t.numpy().tobytes() for name, t in parts[0].preconditioner.state_dict().items()}
        assert coordinates
        seen.append((metrics[0].public_text(), (own.run / "plan.json").read_bytes(), coordinates))
        assert not (own.run / "steps.jsonl").exists()
    assert seen[0] == seen[1]


def test_the_loader_cannot_change_what_the_accountant_was_told(tmp_path: Path) -> None:
    """b, k, sigma come from the lease: ten times the records have the same plan (opacus#813)."""
    plans = []
    for number, examples in enumerate((24, 240)):
        toy = Toy(tmp_path / f"toy-{number}", examples=examples)
        config = toy.config()
        plans.append(build_plan(config, build_components(config, "cpu")).digest())
    assert plans[0] == plans[1]


def test_models_leave_no_private_sum_behind(tmp_path: Path) -> None:
    toy = Toy(tmp_path / "toy", tables={"training": ONE_STEP["training"]})
    parts: list[Components] = []

    def components(config: Any, device: str) -> Components:
        parts.append(build_components(config, device))
        return parts[-1]

    train_run(toy.config(), seams=Seams(components=components))
    model: nn.Module = parts[0].model
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(isinstance(value, torch.Tensor) for value in vars(model).values())
