"""Runs that are killed at a named point, each in a process forked from this one, which has all loaded."""

from __future__ import annotations

import multiprocessing
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from tests.training.training_runs import Toy
from torch import nn

from evertally.counters.keys import NoiseKey
from evertally.pipelines.keyfile import KeyFile
from evertally.pipelines.training.config import TrainConfig, load_train_config
from evertally.pipelines.training.config_sections import BudgetConfig
from evertally.pipelines.training.export import Publisher
from evertally.pipelines.training.lease import Budget
from evertally.pipelines.training.noise import StepNoise
from evertally.pipelines.training.run import train_run
from evertally.pipelines.training.run_components import Components, build_components
from evertally.pipelines.training.run_open import Seams, open_budget
from evertally.pipelines.training.run_state import RunFolder
from evertally.testing import CrashingStore, CrashPoints

POINTS = {
    "draw": ("draw:after", 9),
    "before-fsync": ("fsync:before", 2),
    "after-fsync": ("fsync:after", 2),
    "before-publish": ("store.publish:before", 2),
    "after-publish": ("store.publish:after", 2),
    "mid-refresh": ("refresh:mid", 3),
    "mid-lease": ("store.open:before", 1),
    "before-commit": ("store.renew:before", 1),
    "after-commit": ("store.renew:after", 1),
}
"""Where to kill: the point's name and which time it is reached (any time is right)."""


class CrashingNoise(StepNoise):
    """A noise source with a point after each step's draws."""

    points: CrashPoints

    def draw(self, step: int, tensor: int, count: int, *, first: int = 0) -> NDArray[np.int64]:
        drawn = super().draw(step, tensor, count, first=first)
        self.points.reach("draw:after")
        return drawn


class CrashingRefresh:
    """A preconditioner with a point at every forward pass of a refresh."""

    def __init__(self, preconditioner: Any, points: CrashPoints) -> None:
        self._preconditioner = preconditioner
        self._points = points

    def refresh(self, model: nn.Module, step: int) -> None:
        hook = model.register_forward_hook(lambda *_: self._points.reach("refresh:mid"))
        try:
            self._preconditioner.refresh(model, step)
        finally:
            hook.remove()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._preconditioner, name)


def crashing_seams(points: CrashPoints) -> Seams:
    """A run's seams with points around everything that leaves it."""

    def fsync(descriptor: int) -> None:
        import os

        points.reach("fsync:before")
        os.fsync(descriptor)
        points.reach("fsync:after")

    def noise(key: NoiseKey, steps: int) -> StepNoise:
        made = CrashingNoise(key, steps, threads=1)
        made.points = points
        return made

    def budget(config: BudgetConfig) -> Budget:
        made = open_budget(config)
        made._leases = CrashingStore.wrap(made._leases, points)  # type: ignore[attr-defined]  # inside a lease call
        return made

    def components(config: TrainConfig, device: str) -> Components:
        parts = build_components(config, device)
        refresh = CrashingRefresh(parts.preconditioner, points)
        return Components(parts.model, parts.summer, cast("Any", refresh), parts.device)

    return Seams(
        fsync=fsync,
        noise=noise,
        budget=budget,
        publisher=lambda path: cast("Publisher", CrashingStore.wrap(cast("Any", Publisher(path)), points)),
        components=components,
    )


def child(path: str, name: str, hit: int) -> None:
    """Train until the point is reached, and die there; to the end where it is not reached."""
    torch.set_num_threads(1)
    train_run(load_train_config(Path(path)), seams=crashing_seams(CrashPoints(hit, name or None, kill=True)))


def run_killed(toy: Toy, name: str = "", hit: int = 0) -> int:
    """Exit code of a run: -9 where it was killed at the point, 0 where it came to its end."""
    # importing torch and compiling the accountants takes far longer than a run; no thread runs here
    process = multiprocessing.get_context("fork").Process(target=child, args=(str(toy.path()), name, hit))
    process.start()
    process.join(600)
    assert process.exitcode is not None, "the child did not end"
    return process.exitcode


def prepared(folder: Path, make: Callable[[Path], Toy] = Toy) -> Toy:
    """A toy with its key file and the random id of its run, so that copies of it draw the same noise."""
    toy = make(folder)
    KeyFile.create(folder / "toy.key")
    begun = RunFolder(toy.run)
    begun.state()
    begun.close()
    return toy


def copied(toy: Toy, folder: Path) -> Toy:
    """The same run, not begun, elsewhere."""
    shutil.copytree(toy.folder, folder)
    return Toy(folder, toy.examples, dict(toy.tables))


__all__ = ["POINTS", "child", "copied", "crashing_seams", "prepared", "run_killed"]
