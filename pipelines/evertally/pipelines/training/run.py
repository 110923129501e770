"""Training: one logical step after the other, each with one draw, and nothing out before it is durable.

A step: the bin's examples, their clipped sum, its integers, the row C x + z, and from the published row
alone the gradient and the parameters. Then, every so many steps: checkpoint, fsync, confirm the lease,
publish. A replay of a step that was not published is bit-equal, or it draws under a fresh attempt.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import math
import platform
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import safetensors.torch
import torch
from numpy.typing import NDArray
from torch import Tensor

from evertally.errors import IntegrityError
from evertally.pipelines.training.checkpoint import Checkpoint
from evertally.pipelines.training.config import TrainConfig
from evertally.pipelines.training.examples_spool import Batch
from evertally.pipelines.training.interfaces import MicroBatch, PrivateOptimizer
from evertally.pipelines.training.noise_rows import Rows, make_rows
from evertally.pipelines.training.preconditioner_scale import moved
from evertally.pipelines.training.report import RunReport, check_held_out, make_report, read_report
from evertally.pipelines.training.run_components import (
    build_optimiser,
    constants_digest,
    parameters_digest,
)
from evertally.pipelines.training.run_metrics import TrainMetrics
from evertally.pipelines.training.run_open import OpenRun, Seams, open_run

__all__ = ["Progress", "train_run"]

Progress = Callable[[int, int], None]
"""Called with (steps published, steps in all); both are public."""

_MODEL: Final = "model.safetensors"


def train_run(
    config: TrainConfig,
    *,
    device: str = "cpu",
    progress: Progress | None = None,
    seams: Seams | None = None,
) -> RunReport:
    """Train, or resume training, to the end of the plan; a finished run gives its report again.

    Args:
        config: the whole declaration.
        device: "cpu", "cuda" or "cuda:N".
        progress: told after each publication.
        seams: where tests wrap what leaves the run.

    Raises:
        InvalidParameter, BudgetExceeded, IntegrityError, Fenced: see `open_run`.
        StorageFull: a durable write failed; nothing of it was published.
        ServiceUnavailable: the budget service or the broker cannot be reached.
    """
    finished = read_report(config)
    if finished is not None:
        _delete_private(config.folder)
        return finished
    started = time.monotonic()
    check_held_out(config)
    metrics = TrainMetrics(config.metrics, config.public_metrics)  # a taken port is known before any charge
    try:
        run = open_run(config, device, seams)
        try:
            trainer = _Trainer(run, metrics)
            trainer.resume()
            trainer.train(progress)
            return trainer.finish(time.monotonic() - started)
        finally:
            run.close()
    finally:
        metrics.close()


class _Trainer:
    """The state of a run in memory: parameters, rows, what may not be published yet."""

    def __init__(self, run: OpenRun, metrics: TrainMetrics) -> None:
        self._run: Final = run
        self._metrics: Final = metrics
        self._shapes: Final = run.parts.summer.parameters
        sizes = tuple(math.prod(shape.shape) for shape in self._shapes)
        self._rows: Final[Rows] = make_rows(run.plan.strategy, run.plan.participation, sizes)
        self._optimiser: Final[PrivateOptimizer] = build_optimiser(run.config, run.parts, run.plan)
        self._constants: Final = constants_digest(run.parts.model)
        self._step = 0
        self._attempts: list[list[int]] = []
        self._unpublished: list[dict[str, Any]] = []
        self._epsilon: Final = run.plan.epsilon(run.config.privacy.delta)
        metrics.begin(run.plan, self._epsilon.value, run.config.privacy.delta)

    def resume(self) -> None:
        """Take up the newest checkpoint, publish what it holds, and settle under which attempt to go on."""
        run = self._run
        checkpoint = run.store.latest()
        if checkpoint is not None:
            self._load(checkpoint)
        published = len(run.publisher.published())
        if max(run.grant.steps_done, published) > self._step:
            raise IntegrityError(
                f"{max(run.grant.steps_done, published)} steps were published, the newest checkpoint holds "
                f"{self._step}: an older copy of the run's folder is not taken up"
            )
        environment = _environment(run.parts.device, run.config)
        replayable = run.parts.device.type == "cpu" and run.state.environment == environment
        if run.state.attempt == 0 or not replayable:
            run.state = run.folder.fresh_attempt(run.state, environment)
        if not self._attempts or self._attempts[-1][0] != run.state.attempt:
            self._attempts.append([run.state.attempt, self._step])
        self._publish()

    def train(self, progress: Progress | None) -> None:
        """The steps that are left."""
        run, steps = self._run, self._run.plan.steps
        noise = run.noise()
        refresh = run.config.probe.refresh_steps or run.plan.participation.batches
        while self._step < steps:
            if self._step % refresh == 0:
                with self._metrics.refresh_seconds.time():
                    run.parts.preconditioner.refresh(run.parts.model, self._step)
            with self._metrics.step_seconds.time():
                self._one_step(noise.draw)
            self._metrics.steps.inc()
            if self._step % run.config.mechanism.checkpoint_steps == 0 or self._step == steps:
                self._checkpoint()
                self._publish()
                if progress is not None:
                    progress(self._step, steps)

    def finish(self, seconds: float) -> RunReport:
        """Export the model, write the report, end the lease, delete what is private."""
        run = self._run
        model = run.publisher.publish_model(
            _MODEL, safetensors.torch.save(_copied(run.parts.model.state_dict()))
        )
        report = make_report(run.config, run.plan, self._epsilon, run.parts, model, seconds)
        report.save(run.folder.path)
        run.budget.close_lease(run.grant.lease_id, run.grant.epoch)
        _delete_private(run.folder.path)
        return report

    def _one_step(self, draw: Callable[[int, int, int], NDArray[np.int64]]) -> None:
        run, plan, step = self._run, self._run.plan, self._step
        batch = run.spool.batch(step % plan.participation.batches)
        self._metrics.batch_units.observe(len(batch.units))
        integers = plan.grid.quantise(self._sums(batch))
        row = [
            exact + draw(step, tensor, exact.size) for tensor, exact in enumerate(self._rows.encode(integers))
        ]
        # from here on everything is a function of the row: post-processing
        gradients = self._rows.decode([part.astype(np.float64) / plan.grid.q for part in row])
        mean = [gradient / plan.divisor for gradient in gradients]
        self._optimiser.step(
            {
                shape.name: torch.from_numpy(gradient.reshape(shape.shape)).to(run.parts.device)
                for shape, gradient in zip(self._shapes, mean, strict=True)
            }
        )
        norm = math.sqrt(math.fsum(float(gradient @ gradient) for gradient in mean))
        line: dict[str, Any] = {
            "step": step,
            "parameters": parameters_digest(run.parts.model),
            "gradient_norm": repr(norm),
        }
        figures = run.parts.preconditioner.metrics()
        if figures and step % (run.config.probe.refresh_steps or plan.participation.batches) == 0:
            line["preconditioner"] = {name: repr(float(value)) for name, value in figures.items()}
        self._unpublished.append(line)
        self._step += 1

    def _sums(self, batch: Batch) -> list[NDArray[np.float64]]:
        summer = self._run.parts.summer
        if self._run.config.data.form.unit:
            found = summer.sum_units(self._unit_batches(batch))
        else:
            found = summer.sum(self._micro_batches(batch, 0, len(batch.labels)))
        return [
            found.tensors[shape.name].detach().to("cpu", torch.float64).numpy().ravel()
            for shape in self._shapes
        ]

    def _unit_batches(self, batch: Batch) -> Iterator[Iterable[MicroBatch]]:
        start = 0
        for stop in batch.units.tolist():
            yield self._micro_batches(batch, start, stop)
            start = stop

    def _micro_batches(self, batch: Batch, start: int, stop: int) -> Iterator[MicroBatch]:
        size = self._run.config.mechanism.micro_batch
        for first in range(start, stop, size):
            part = slice(first, min(first + size, stop))
            features = torch.from_numpy(np.ascontiguousarray(batch.features[part]))
            labels = torch.from_numpy(batch.labels[part].copy())
            yield moved(MicroBatch((features,), labels), self._run.parts.model)

    def _checkpoint(self) -> None:
        run = self._run
        if constants_digest(run.parts.model) != self._constants:
            raise IntegrityError(
                "a buffer or a frozen parameter changed while the model ran and may hold examples: "
                "nothing of these steps is released"
            )
        state: dict[str, Tensor] = {}
        for prefix, tensors in (
            ("model", run.parts.model.state_dict()),
            ("optimiser", self._optimiser.state_dict()),
            ("preconditioner", run.parts.preconditioner.state_dict()),
            ("rows", {name: torch.from_numpy(array) for name, array in self._rows.state().items()}),
        ):
            state |= {f"{prefix}/{name}": t for name, t in _copied(tensors).items()}
        facts = {
            "plan": run.state.plan,
            "manifest": run.state.manifest,
            "lease": run.state.lease_id,
            "attempts": self._attempts,
            "parameters": parameters_digest(run.parts.model),
            "unpublished": self._unpublished,
        }
        run.store.save(Checkpoint(self._step, facts, safetensors.torch.save(state)))
        run.confirm(self._step)

    def _publish(self) -> None:
        if not self._unpublished:
            return
        self._run.publisher.publish(self._unpublished)
        for line in self._unpublished:
            self._metrics.published(line["step"] + 1, line)
        self._unpublished = []

    def _load(self, checkpoint: Checkpoint) -> None:
        run, facts = self._run, checkpoint.facts
        for name, ours in (
            ("plan", run.state.plan),
            ("manifest", run.state.manifest),
            ("lease", run.state.lease_id),
        ):
            if facts[name] != ours:
                raise IntegrityError(f"the checkpoint was made under another {name}")
        state = safetensors.torch.load(checkpoint.state)

        def part(prefix: str) -> dict[str, Tensor]:
            return {
                name.removeprefix(f"{prefix}/"): tensor
                for name, tensor in state.items()
                if name.startswith(f"{prefix}/")
            }

        run.parts.model.load_state_dict(part("model"))
        self._optimiser.load_state_dict(part("optimiser"))
        coordinates = part("preconditioner")
        if coordinates:
            run.parts.preconditioner.load_state_dict(coordinates)
        self._rows.load({name: tensor.numpy() for name, tensor in part("rows").items()})
        if parameters_digest(run.parts.model) != facts["parameters"]:
            raise IntegrityError("the checkpoint's parameters are not those it was made of")
        self._step, self._attempts = checkpoint.step, [list(entry) for entry in facts["attempts"]]
        self._unpublished = list(facts["unpublished"])


def _copied(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Each tensor in memory of its own: the file format refuses two names for one."""
    return {
        name: torch.clone(t.detach().cpu(), memory_format=torch.contiguous_format)
        for name, t in tensors.items()
    }


def _delete_private(folder: Path) -> None:
    """A finished run has no use for its examples, its manifest and its private rows."""
    for name in ("spool", "checkpoints"):
        shutil.rmtree(folder / name, ignore_errors=True)
    (folder / "manifest.sealed").unlink(missing_ok=True)


def _environment(device: torch.device, config: TrainConfig) -> str:
    """What decides the bits of a step besides plan and data: under another one a step is drawn afresh."""
    facts = (
        importlib.metadata.version("evertally"),
        torch.__version__,
        str(device.type),
        torch.get_num_threads(),
        torch.backends.cpu.get_cpu_capability(),
        np.__version__,
        platform.machine(),
        config.mechanism.micro_batch,
    )
    return hashlib.sha256(repr(facts).encode()).hexdigest()
