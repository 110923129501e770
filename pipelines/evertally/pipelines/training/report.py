"""The final report: what was promised and by which bound, what was measured, and what was not."""

from __future__ import annotations

import json
import math
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
import torch

from evertally.accountants.bound import Bound
from evertally.errors import IntegrityError, InvalidParameter
from evertally.pipelines.guarantee import rounded_down, rounded_up
from evertally.pipelines.training.checkpoint import write_durably
from evertally.pipelines.training.config import TrainConfig
from evertally.pipelines.training.examples_files import FILE_FORMATS, FileExamples
from evertally.pipelines.training.interfaces import MicroBatch
from evertally.pipelines.training.plan import Plan
from evertally.pipelines.training.preconditioner_scale import moved
from evertally.pipelines.training.run_components import Components

__all__ = ["RunReport", "check_held_out", "make_report", "read_report"]

_REPORT: Final = "report.json"
_NOT_MEASURED: Final = "not measured"
_BATCH: Final = 1024


@dataclass(frozen=True, slots=True)
class RunReport:
    """Attributes: what anybody may read, but `seconds`, which is the operator's and is not stored.

    epsilon, delta: of the whole plan, under add or remove of one unit.
    source: the bound that gave epsilon; `lower` is a certified lower bound on it.
    accuracy: share of right answers (or the mean squared error) on the declared public file, or why not.
    """

    run: str
    unit: str
    adjacency: str
    steps: int
    strategy: str
    participation: str
    noise_multiplier: float
    clip: float
    divisor: float
    epsilon: float
    delta: float
    source: str
    lower: float
    gap: float
    scope: str
    model: str
    measure: str
    measured: float | None
    seconds: float | None = None

    @property
    def accuracy(self) -> str:
        """The measurement in words."""
        return _NOT_MEASURED if self.measured is None else f"{self.measured:.4f} ({self.measure})"

    def save(self, folder: Path) -> None:
        """Write the public part; the time of a run depends on its data."""
        fields = {key: value for key, value in asdict(self).items() if key != "seconds"}
        write_durably(folder / _REPORT, json.dumps({**fields, "joules": _NOT_MEASURED}, indent=1).encode())
        (folder / _REPORT).chmod(0o644)

    def text(self, folder: Path) -> str:
        """The report for a terminal; `folder` is the run's."""
        lines = [
            f"{self.run}: {self.steps} steps, {self.strategy}, {self.participation}",
            f"guarantee: epsilon {rounded_up(self.epsilon)} at delta {rounded_up(self.delta)} for adding or "
            f"removing one {self.unit}, by {self.source} (certified lower bound {rounded_down(self.lower)}, "
            f"gap {self.gap:.3g})",
            f"noise multiplier {self.noise_multiplier:.6g} at clip norm {self.clip:g}; sums divided by "
            f"{self.divisor:g}; paid by scope {self.scope}",
            f"quality on public data: {self.accuracy}",
            f"cost: {'was said when it ended' if self.seconds is None else f'{self.seconds:.1f} s'};"
            f" joules {_NOT_MEASURED}",
            f"model: {folder / self.model}",
        ]
        return "\n".join(lines)


def make_report(
    config: TrainConfig, plan: Plan, epsilon: Bound, parts: Components, model: Path, seconds: float
) -> RunReport:
    """The report of a finished run. Quality is measured on the declared public file alone."""
    measure, measured = _measured(config, parts)
    return RunReport(
        run=config.name,
        unit=config.budget.unit,
        adjacency=config.budget.adjacency,
        steps=plan.steps,
        strategy=repr(config.mechanism.strategy),
        participation=repr(plan.participation),
        noise_multiplier=plan.noise_multiplier,
        clip=plan.clip,
        divisor=plan.divisor,
        epsilon=epsilon.value,
        delta=config.privacy.delta,
        source=epsilon.source,
        lower=epsilon.lower,
        gap=epsilon.gap,
        scope=config.budget.name,
        model=model.name,
        measure=measure,
        measured=measured,
        seconds=seconds,
    )


def read_report(config: TrainConfig) -> RunReport | None:
    """The report of a finished run, None where it is not finished.

    Raises:
        IntegrityError: it is damaged.
        InvalidParameter: it tells of another run than the configuration does.
    """
    report = _stored(config.folder / _REPORT)
    if report is not None:
        for field, (asked, done) in _promises(config, report).items():
            if asked != done:
                expected = (
                    f"{done}, as the finished run in {config.folder.name} has it; or another run.folder"
                )
                raise InvalidParameter(field, asked, expected)
    return report


def _promises(config: TrainConfig, report: RunReport) -> dict[str, tuple[object, object]]:
    """What a configuration asks for and what a report says, by field."""
    mechanism, loss = config.mechanism, config.privacy.loss
    pairs: dict[str, tuple[object, object]] = {
        "run.name": (config.name, report.run),
        "privacy.unit": (config.budget.unit, report.unit),
        "privacy.delta": (config.privacy.delta, report.delta),
        "budget.scope": (config.budget.name, report.scope),
        "training.strategy": (repr(mechanism.strategy), report.strategy),
        "training.batches": (repr(mechanism.participation), report.participation),
        "training.clip": (mechanism.clip, report.clip),
        "training.divisor": (mechanism.divisor, report.divisor),
    }
    if loss is not None and loss.epsilon is not None and report.epsilon > loss.epsilon:
        pairs["privacy.epsilon"] = (loss.epsilon, report.epsilon)
    if loss is not None and loss.noise_multiplier is not None:
        same = math.isclose(loss.noise_multiplier, report.noise_multiplier, rel_tol=2.0**-19)
        if not same:  # a buffered strategy's is raised by 2^-20
            pairs["privacy.noise_multiplier"] = (loss.noise_multiplier, report.noise_multiplier)
    return pairs


def _stored(path: Path) -> RunReport | None:
    if not path.exists():
        return None
    try:
        said = dict(json.loads(path.read_text("utf-8")))
        said.pop("joules")
        return RunReport(**said)
    except (ValueError, TypeError, KeyError, RecursionError):
        raise IntegrityError(f"{_REPORT} is damaged") from None


def check_held_out(config: TrainConfig) -> None:
    """Read the declared public file once, so that a file of another form is known before any charge.

    Raises InvalidParameter for a file that cannot be measured on.
    """
    with tempfile.TemporaryDirectory() as folder:  # the run has none yet
        source = _held_out(config, Path(folder))
        if source is not None:
            source.freeze()


def _held_out(config: TrainConfig, folder: Path) -> FileExamples | None:
    path = config.data.held_out
    if path is None:
        return None
    suffix = path.name.removesuffix(".gz").rpartition(".")[2]
    if suffix not in FILE_FORMATS:
        raise InvalidParameter("data.held_out", path.name, "a file named .npz, .csv or .jsonl")
    form = replace(config.data.form, unit="")  # whose records they are is of no account where all is public
    return FileExamples(path, suffix, form, folder / "refused-held-out.jsonl")


def _measured(config: TrainConfig, parts: Components) -> tuple[str, float | None]:
    source = _held_out(config, config.folder)
    if source is None:
        return _NOT_MEASURED, None
    form = config.data.form
    right, count = 0.0, 0
    training = parts.model.training
    parts.model.eval()
    with torch.no_grad():
        for block in source.read(source.freeze()):
            for first in range(0, len(block), _BATCH):
                part = slice(first, first + _BATCH)
                features = torch.from_numpy(np.ascontiguousarray(block.features[part]))
                examples = MicroBatch((features,), torch.from_numpy(block.labels[part].copy()))
                (features,), labels = moved(examples, parts.model)
                outputs = parts.model(features)
                if form.classes:
                    right += float((outputs.argmax(-1) == labels).sum())
                else:
                    right += float(torch.square(outputs.reshape(labels.shape) - labels).sum())
                count += len(labels)
    parts.model.train(training)
    measure = "accuracy" if form.classes else "mean squared error"
    assert config.data.held_out is not None
    return f"{measure} on {config.data.held_out.name}, declared public", right / count if count else None
