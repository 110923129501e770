"""A one-run audit: guess which canaries a run was trained on, and what epsilon so many right guesses refute.

Reference: arXiv 2305.08846, theorem 5.2 (each canary is in or out by its own fair coin; the number of right
guesses of an (epsilon, delta) mechanism is bounded in law by a binomial one, up to a term in delta).
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import special
from tests.training.training_runs import SCOPE, Toy

from evertally.pipelines.training import run as running
from evertally.pipelines.training import run_components
from evertally.pipelines.training.interfaces import MicroBatch
from evertally.pipelines.training.run import train_run
from evertally.pipelines.training.run_components import Components, build_components
from evertally.pipelines.training.run_open import Seams

CLASSES, SIZE = 3, 20.0


def p_value(canaries: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    """An upper bound on the chance of so many right guesses under (epsilon, delta)-DP."""
    q = 1.0 / (1.0 + math.exp(-epsilon))
    reached = float(special.bdtrc(right - 1, guesses, q)) if right else 1.0
    # chance of right - i .. right - 1 guesses, over i
    fewer = np.append(special.bdtr(np.arange(right - 2, -1, -1), guesses, q), 0.0)
    near = special.bdtr(right - 1, guesses, q) - fewer if right else np.zeros(1)
    slack = float((near / np.arange(1, len(near) + 1)).max())
    return min(1.0, reached + 2.0 * canaries * delta * slack)


def epsilon_lower(canaries: int, guesses: int, right: int, delta: float, confidence: float = 0.95) -> float:
    """The largest epsilon that the guesses refute at this confidence; 0 where they refute none."""
    low, high = 0.0, 50.0
    if p_value(canaries, guesses, right, low, delta) > 1.0 - confidence:
        return 0.0
    for _ in range(60):
        middle = (low + high) / 2
        refuted = p_value(canaries, guesses, right, middle, delta) <= 1.0 - confidence
        low, high = (middle, high) if refuted else (low, middle)
    return low


class Audit:
    """Runs on canaries, each on a feature of its own, and on records that share none of them.

    Attributes:
        right: right guesses.
        guesses: of so many.
        epsilon: what the run reports, at `delta`.
        lower: the epsilon that the guesses refute.
    """

    def __init__(
        self,
        folder: Path,
        canaries: int,
        *,
        noise_multiplier: float,
        seed: int,
        tables: dict[str, str] | None = None,
        seams: Seams | None = None,
        confidence: float = 0.95,
        delta: float = 1e-5,
    ) -> None:
        toy = Toy(
            folder,
            examples=1,
            tables={
                "data": f'path = "train.npz"\nfeatures = "x"\nshape = [{canaries}]\nlabel = "y"\n'
                f"classes = {CLASSES}",
                "model": 'kind = "linear"',
                "preconditioner": 'transform = "none"',
                "optimiser": 'kind = "sgd"\nrate = 1e-4\nmomentum = 0.0',
                "training": "batches = 2\nepochs = 1\nexpected_units = 300\ncheckpoint_steps = 2",
                "privacy": f"noise_multiplier = {noise_multiplier!r}\ndelta = {delta!r}",
                "budget": SCOPE.replace("epsilon_cap = 8", "epsilon_cap = 1000"),
                **(tables or {}),
            },
        )
        random = np.random.default_rng(seed)
        inside = random.integers(0, 2, canaries).astype(bool)
        x = np.eye(canaries, dtype=np.float32)[inside] * SIZE
        others = random.integers(0, CLASSES, 100)
        labels = np.concatenate([np.zeros(len(x), np.int64), others])
        x = np.concatenate([x, np.zeros((100, canaries), np.float32)])
        np.savez(toy.folder / "train.npz", x=x, y=labels)
        scores, report = _scores(toy, canaries, seams or Seams())
        order = np.argsort(scores)
        each = canaries // 4  # fixed before anything was seen
        self.guesses = 2 * each
        self.right = int((~inside[order[:each]]).sum() + inside[order[-each:]].sum())
        self.epsilon = report.epsilon
        self.lower = epsilon_lower(canaries, self.guesses, self.right, delta, confidence)


def _scores(toy: Toy, canaries: int, seams: Seams) -> tuple[NDArray[np.float64], Any]:
    """For each canary: how far published rows lie along its own clipped gradient, in its likeliest bin."""
    config = toy.config()
    parts: list[Components] = []
    rows: list[NDArray[np.float64]] = []

    def components(given: Any, device: str) -> Components:
        parts.append(seams.components(given, device))
        return parts[-1]

    made = run_components.build_optimiser

    def optimiser(*arguments: Any) -> Any:
        inner = made(*arguments)

        class Watched:
            def step(self, gradients: Any) -> None:
                rows.append(_flat(gradients))
                inner.step(gradients)

            def __getattr__(self, name: str) -> Any:
                return getattr(inner, name)

        return Watched()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(running, "build_optimiser", optimiser)
        report = train_run(config, seams=Seams(noise=seams.noise, components=components))
    known = build_components(config, "cpu")  # what the auditor knows: the public start, and the canaries
    known.preconditioner.refresh(known.model, 0)
    target = torch.zeros(1, dtype=torch.int64)
    directions = np.array([
        _flat(known.summer.sum([MicroBatch((SIZE * torch.eye(canaries)[i : i + 1],), target)]).tensors)
        for i in range(canaries)
    ])  # fmt: skip
    bins = config.mechanism.participation.batches
    along = np.array([directions @ row for row in rows]).reshape(-1, bins, canaries).sum(axis=0)
    along -= np.median(along, axis=1, keepdims=True)  # what all records of a bin share, in the bias
    return np.asarray(along.max(axis=0)), report


def _flat(tensors: Any) -> NDArray[np.float64]:
    return np.concatenate([t.detach().numpy().astype(np.float64).ravel() for t in tensors.values()])
