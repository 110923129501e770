"""One private training run by any of the compared methods, under random allocation.

Noise here comes from a seeded generator, not from the keyed stream: the run is a measurement, not a release.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import torch
from tests.benchmarks.kfc_tasks import SEED, Task
from torch import Tensor, nn

from evertally.pipelines.training.baselines import AdaptiveDiagonal, PreconditionAfter
from evertally.pipelines.training.ghost import GhostClipper
from evertally.pipelines.training.interfaces import MicroBatch, Preconditioner, PrivateOptimizer, Probe
from evertally.pipelines.training.losses import CrossEntropy
from evertally.pipelines.training.optimizers import Disk, DpAdamBC, Momentum
from evertally.pipelines.training.preconditioner import IdentityPreconditioner, KroneckerPreconditioner

# method -> (what it is, whether a run of it is private, learning rates of the search)
METHODS: dict[str, tuple[str, bool, tuple[float, ...]]] = {
    "sgd": ("no privacy: SGD", False, (0.02, 0.05, 0.1)),
    "dp-sgd": ("DP-SGD", True, (0.02, 0.05, 0.1, 0.2)),
    "dp-adambc": ("DP-AdamBC", True, (5e-4, 1e-3, 2e-3, 5e-3)),
    "disk": ("DiSK, one gradient", True, (0.1, 0.2, 0.5, 1.0)),
    "adadps": ("AdaDPS, pink probes", True, (0.02, 0.05, 0.1, 0.2)),
    "after": ("precondition after the noise", True, (0.005, 0.01, 0.02, 0.05)),
    "paper": ("DP-KFC, mode paper", True, (0.02, 0.05, 0.1, 0.2)),
    "kfc-1": ("DP-KFC, ours, alpha 1", True, (0.02, 0.05, 0.1, 0.2)),
    "kfc-2": ("DP-KFC, ours, alpha 2", True, (0.02, 0.05, 0.1, 0.2)),
    "kfc-public": ("DP-KFC, ours, 500 public images of the domain", True, (0.02, 0.05, 0.1, 0.2)),
    "kfc-oracle": ("factors of the private data (NOT private)", False, (0.02, 0.05, 0.1, 0.2)),
    "kfc-adambc": ("DP-KFC, ours, and DP-AdamBC", True, (5e-4, 1e-3, 2e-3, 5e-3)),
}


class Examples:
    """A probe that draws real examples, for the public and the oracle rows."""

    def __init__(self, data: tuple[Tensor, Tensor]) -> None:
        self._data = data

    def batch(self, step: int, first: int, count: int) -> MicroBatch:
        rng = np.random.default_rng([step, first])
        chosen = torch.from_numpy(rng.integers(0, len(self._data[1]), count))
        return MicroBatch((self._data[0][chosen],), self._data[1][chosen])

    def describe(self) -> dict[str, object]:
        return {"probe": "examples", "seed": SEED.hex()}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one run gave.

    Attributes:
        accuracy: percent of the test set.
        cpu_s: CPU seconds, refreshes included.
        condition: largest condition number of a root over the run, or 0.
    """

    accuracy: float
    cpu_s: float
    condition: float


def preconditioner_of(
    method: str, task: Task, model: nn.Module, *, gamma: float = 0.5, probes: int = 512, alpha: float = 2.0
) -> Preconditioner:
    loss = CrossEntropy()
    probe: Probe = task.probe(1.0 if method == "kfc-1" else alpha)
    if method == "kfc-public":
        probe = Examples(task.public)
    if method == "kfc-oracle":
        probe = Examples(task.train)
    if method == "adadps":
        return AdaptiveDiagonal(model, loss, probe, gamma=gamma, probes=probes)
    if method == "paper":
        return KroneckerPreconditioner(model, loss, task.probe(1.0), mode="paper", probes=probes)
    if method.startswith("kfc") or method == "after":
        return KroneckerPreconditioner(model, loss, probe, gamma=gamma, probes=probes)
    return IdentityPreconditioner()


def train(
    method: str,
    task: Task,
    *,
    noise_multiplier: float,
    rate: float,
    seed: int,
    clip_norm: float = 1.0,
    refresh_every: int | None = None,
    gamma: float = 0.5,
    probes: int = 512,
    alpha: float = 2.0,
) -> Outcome:
    """Train once; every unit stands in one bin of each epoch, the same bin in all epochs."""
    torch.manual_seed(seed)
    rng = np.random.default_rng([seed, 1])
    model = task.model()
    started = time.process_time()
    preconditioner = preconditioner_of(method, task, model, gamma=gamma, probes=probes, alpha=alpha)
    inner = IdentityPreconditioner() if method == "after" else preconditioner
    private = method != "sgd"
    clipper = GhostClipper(model, CrossEntropy(), inner, clip_norm=clip_norm if private else 1e9)
    x, y = task.train
    bins = rng.integers(0, task.batches, len(y))
    divisor = len(y) / task.batches  # of the public bound on N
    std = noise_multiplier * clipper.sensitivity if private else 0.0
    optimizer: PrivateOptimizer = Momentum(model, rate=rate)
    if method.endswith("adambc"):
        optimizer = DpAdamBC(model, rate=rate, noise_std=std / divisor)
    elif method == "disk":
        optimizer = Disk(model, rate=rate)
    elif method == "after":
        optimizer = PreconditionAfter(model, preconditioner, optimizer)
    condition = 0.0
    for step in range(task.batches * task.epochs):
        if step % (refresh_every or 2 * task.batches) == 0:
            preconditioner.refresh(model, step)
            found = [v for k, v in preconditioner.metrics().items() if k.startswith("condition")]
            condition = max([condition, *found])
        members = torch.from_numpy(np.flatnonzero(bins == step % task.batches))
        sums = clipper.sum([MicroBatch((x[members],), y[members])]).tensors
        optimizer.step({
            name: (total + std * torch.from_numpy(rng.standard_normal(total.shape))) / divisor
            for name, total in sums.items()
        })  # fmt: skip
    used = time.process_time() - started
    with torch.no_grad():
        right = (model(task.test[0]).argmax(1) == task.test[1]).double().mean()
    return Outcome(100 * float(right), used, condition)
