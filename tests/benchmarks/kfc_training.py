"""One private training run by any of the compared methods, under random allocation.

Noise here comes from a seeded generator, not from the keyed stream: the run is a measurement, not a release.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import numpy as np
import torch
from tests.benchmarks.kfc_tasks import SEED, Task
from torch import Tensor, nn

from evertally.pipelines.training.baselines import AdaptiveDiagonal, PreconditionAfter
from evertally.pipelines.training.ghost import GhostClipper
from evertally.pipelines.training.ghost_contributions import Arithmetic
from evertally.pipelines.training.interfaces import MicroBatch, Preconditioner, PrivateOptimizer, Probe
from evertally.pipelines.training.losses import CrossEntropy
from evertally.pipelines.training.optimizers import Disk, DpAdamBC, Momentum
from evertally.pipelines.training.preconditioner import IdentityPreconditioner, KroneckerPreconditioner

STEPS = (0.05, 0.1, 0.2)


@dataclass(frozen=True, slots=True)
class Method:
    """A compared method.

    Attributes:
        label: what it is.
        transform: "none", "relative", "paper" or "diagonal".
        source: of the probes: "pink" (Zipf for text), "lit" (pink of random brightness), "public", "digits",
            "photographs", or "oracle", the private data themselves.
        alpha: exponent of synthetic probes.
        gamma: damping, relative to a factor's mean eigenvalue; None takes the run's own.
        optimizer: "sgd", "adambc" or "disk".
        after: transform noisy gradients, not clipped ones.
        noise: False where nothing is clipped and no noise is added.
        rates: first rates of the search, at a clip norm of 1 where `scales`.
        scales: the update is proportional to the clip norm, so a search keeps rate times clip norm.
    """

    label: str
    transform: str = "none"
    source: str = "pink"
    alpha: float = 2.0
    gamma: float | None = None
    optimizer: str = "sgd"
    after: bool = False
    noise: bool = True
    rates: tuple[float, ...] = STEPS
    scales: bool = True

    @property
    def private(self) -> bool:
        """Whether a run of it has a guarantee."""
        return self.noise and self.source != "oracle"


ADAM = (1e-3, 2e-3, 4e-3)
METHODS: dict[str, Method] = {
    "sgd": Method("no privacy: SGD", noise=False, scales=False),
    "dp-sgd": Method("DP-SGD"),
    "dp-adambc": Method("DP-AdamBC", optimizer="adambc", rates=ADAM, scales=False),
    "disk": Method("DiSK, one gradient", optimizer="disk", rates=(0.25, 0.5, 1.0)),
    "adadps": Method("AdaDPS, synthetic probes", "diagonal"),
    "after": Method("precondition after the noise", "relative", after=True, rates=(0.01, 0.02, 0.04)),
    "paper": Method("DP-KFC, mode paper", "paper", alpha=1.0),
    "kfc-1": Method("DP-KFC, ours, alpha 1", "relative", alpha=1.0),
    "kfc-2": Method("DP-KFC, ours, alpha 2", "relative"),
    "kfc-lit": Method("DP-KFC, ours, alpha 2, probes of random brightness", "relative", "lit"),
    "kfc-damped": Method("DP-KFC, ours, alpha 2, gamma 4", "relative", gamma=4.0),
    "kfc-disk": Method("DP-KFC, ours, and DiSK", "relative", optimizer="disk", rates=(0.25, 0.5, 1.0)),
    "kfc-adambc": Method(
        "DP-KFC, ours, and DP-AdamBC", "relative", optimizer="adambc", rates=ADAM, scales=False
    ),
    "kfc-public": Method("DP-KFC, ours, 500 public examples of the domain", "relative", "public"),
    "kfc-digits": Method("DP-KFC, ours, another digit set as probes", "relative", "digits"),
    "kfc-photographs": Method("DP-KFC, ours, photographs as probes", "relative", "photographs"),
    "kfc-oracle": Method("DP-KFC, ours, factors of the private data (NOT private)", "relative", "oracle"),
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
class Options:
    """Settings of a preconditioner; alpha is the method's own where it is None."""

    gamma: float = 0.5
    probes: int = 512
    alpha: float | None = None
    brightness: float = 1.0
    refresh_every: int | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one run gave.

    Attributes:
        accuracy: percent of the test set.
        cpu_s: CPU seconds, refreshes included.
        condition: largest condition number of a root over the run, or 0.
        smallest: smallest eigenvalue of an A over the run, relative to its mean, or 0.
    """

    accuracy: float
    cpu_s: float
    condition: float
    smallest: float


def probe_of(method: Method, task: Task, options: Options) -> Probe:
    alpha = method.alpha if options.alpha is None else options.alpha
    match method.source:
        case "pink":
            return task.probe(alpha, 0.0)
        case "lit":
            return task.probe(alpha, options.brightness)
        case "oracle":
            return Examples(task.train)
        case source:
            return Examples(task.public[source]())


def preconditioner_of(method: Method, task: Task, model: nn.Module, options: Options) -> Preconditioner:
    if method.transform == "none":
        return IdentityPreconditioner()
    probe, loss = probe_of(method, task, options), CrossEntropy()
    if method.transform == "diagonal":
        return AdaptiveDiagonal(model, loss, probe, gamma=options.gamma, probes=options.probes)
    relative = options.gamma if method.gamma is None else method.gamma
    gamma = None if method.transform == "paper" else relative
    return KroneckerPreconditioner(
        model, loss, probe, mode=method.transform, gamma=gamma, probes=options.probes
    )


def train(
    method: Method,
    task: Task,
    *,
    noise_multiplier: float,
    rate: float,
    seed: int,
    clip_norm: float = 1.0,
    options: Options | None = None,
) -> Outcome:
    """Train once; every unit stands in one bin of each epoch, the same bin in all epochs."""
    chosen = options or Options()
    torch.manual_seed(seed)
    rng = np.random.default_rng([seed, 1])
    model = task.model()
    started = time.process_time()
    preconditioner = preconditioner_of(method, task, model, chosen)
    clipper = GhostClipper(
        model,
        CrossEntropy(),
        IdentityPreconditioner() if method.after else preconditioner,
        clip_norm=clip_norm if method.noise else 1e9,
        arithmetic=Arithmetic(dtype=torch.float32),
    )
    x, y = task.train
    bins = rng.integers(0, task.batches, len(y))
    divisor = len(y) / task.batches  # of the public bound on N
    std = noise_multiplier * clipper.sensitivity if method.noise else 0.0
    optimizer: PrivateOptimizer = Momentum(model, rate=rate)
    if method.optimizer == "adambc":
        optimizer = DpAdamBC(model, rate=rate, noise_std=std / divisor)
    elif method.optimizer == "disk":
        optimizer = Disk(model, rate=rate)
    if method.after:
        optimizer = PreconditionAfter(model, preconditioner, optimizer)
    condition, smallest = 0.0, math.inf
    for step in range(task.batches * task.epochs):
        if step % (chosen.refresh_every or 2 * task.batches) == 0:
            preconditioner.refresh(model, step)
            figures = preconditioner.metrics()
            condition = max([condition, *(v for k, v in figures.items() if k.startswith("condition"))])
            smallest = min([smallest, *(v for k, v in figures.items() if k.startswith("smallest_a"))])
        members = torch.from_numpy(np.flatnonzero(bins == step % task.batches))
        sums = clipper.sum([MicroBatch((x[members],), y[members])]).tensors
        optimizer.step({
            name: (total + std * torch.from_numpy(rng.standard_normal(total.shape))) / divisor
            for name, total in sums.items()
        })  # fmt: skip
    used = time.process_time() - started
    with torch.no_grad():
        right = (model(task.test[0]).argmax(1) == task.test[1]).double().mean()
    return Outcome(100 * float(right), used, condition, smallest if math.isfinite(smallest) else 0.0)
