"""A small private run learns, and learns more with the preconditioner: a guard, not a benchmark."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from evertally.pipelines.training.ghost import GhostClipper
from evertally.pipelines.training.interfaces import MicroBatch, Preconditioner
from evertally.pipelines.training.losses import CrossEntropy
from evertally.pipelines.training.optimizers import Momentum
from evertally.pipelines.training.preconditioner import IdentityPreconditioner, KroneckerPreconditioner
from evertally.pipelines.training.probes import PinkNoise, UniformLabels, pink_filter

pytestmark = pytest.mark.train

CLASSES, SIDE, UNITS, BATCHES, EPOCHS, NOISE = 6, 10, 1500, 15, 6, 3.0


def pictures(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Fine patterns, one a class, under strong smooth backgrounds, as edges are in photographs."""
    rng = np.random.default_rng(seed)
    patterns = pink_filter(np.random.default_rng(0).standard_normal((CLASSES, SIDE, SIDE)), 0.0)
    labels = rng.integers(0, CLASSES, count)
    backgrounds = pink_filter(rng.standard_normal((count, SIDE, SIDE)), 1.5)
    x = backgrounds + 0.14 * patterns[labels] + 0.1 * rng.standard_normal((count, SIDE, SIDE))
    return torch.from_numpy(x.astype(np.float32))[:, None], torch.from_numpy(labels)


def accuracy(kind: str, rate: float) -> float:
    torch.manual_seed(0)
    rng = np.random.default_rng(1)
    model = nn.Sequential(nn.Flatten(), nn.Linear(SIDE * SIDE, CLASSES))
    loss = CrossEntropy()
    preconditioner: Preconditioner = IdentityPreconditioner()
    if kind == "kfc":
        probe = PinkNoise(bytes(16), (1, SIDE, SIDE), UniformLabels(CLASSES))
        preconditioner = KroneckerPreconditioner(model, loss, probe, probes=128, gamma=0.1)
    clipper = GhostClipper(model, loss, preconditioner, clip_norm=0.5)
    optimizer = Momentum(model, rate=rate)
    x, y = pictures(UNITS, 2)
    bins = rng.integers(0, BATCHES, UNITS)
    for step in range(BATCHES * EPOCHS):
        if step % BATCHES == 0:
            preconditioner.refresh(model, step)
        members = torch.from_numpy(np.flatnonzero(bins == step % BATCHES))
        sums = clipper.sum([MicroBatch((x[members],), y[members])]).tensors
        std = NOISE * clipper.sensitivity
        optimizer.step({
            name: (total + std * torch.from_numpy(rng.standard_normal(total.shape))) / (UNITS / BATCHES)
            for name, total in sums.items()
        })  # fmt: skip
    test_x, test_y = pictures(1000, 3)
    with torch.no_grad():
        return float((model(test_x).argmax(1) == test_y).double().mean())


def test_preconditioning_finds_what_smooth_backgrounds_hide() -> None:
    plain = max(accuracy("sgd", rate) for rate in (0.1, 0.3))
    ours = max(accuracy("kfc", rate) for rate in (0.1, 0.3))
    assert ours > plain + 0.04
    assert ours > 2 / CLASSES
