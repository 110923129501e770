"""The two planes of a training run.

Public: functions of the plan, of published rows and of public probes, and they change only when steps are
published. Operators': how long steps take and how many examples they hold, which are exact functions of the
data. Training loss, clipped shares and norms of gradients without noise are on neither.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from prometheus_client import CollectorRegistry, Gauge, generate_latest

from evertally.pipelines.metrics import Answer, Listen, OperatorMetrics, PlaneServer, internal_plane
from evertally.pipelines.metrics.plane import METRICS_TYPE
from evertally.pipelines.training.plan import Plan

__all__ = ["PUBLIC_TRAINING_METRICS", "TrainMetrics"]

PUBLIC_TRAINING_METRICS: Final[dict[str, tuple[tuple[str, ...], str]]] = {
    "train_steps_planned": ((), "Steps of the plan that is paid for."),
    "train_steps_published": ((), "Steps that are published."),
    "train_noise_multiplier": ((), "Noise of the charged line, sigma over the clip norm."),
    "train_epsilon": ((), "Epsilon of the whole plan at train_delta (upper bound)."),
    "train_delta": ((), "Delta at which epsilon is stated."),
    "train_gradient_norm": ((), "Norm of the last published noisy gradient."),
    "train_preconditioner": (("figure",), "Figures of the last refresh from public probes."),
}
"""Name (without the namespace) to labels and help of every public metric of a run."""

_DURATIONS: Final = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
_COUNTS: Final = (0.0, 1.0, 10.0, 100.0, 1e3, 1e4, 1e5)


class TrainMetrics:
    """Both planes; serves those that are asked for until `close`."""

    def __init__(self, private: Listen | None, public: Listen | None) -> None:
        self.operators: Final = OperatorMetrics("train")
        self.registry: Final = CollectorRegistry(auto_describe=False)
        self._public: Final = {
            name: Gauge(f"evertally_{name}", text, labels, registry=self.registry)
            for name, (labels, text) in PUBLIC_TRAINING_METRICS.items()
        }
        self.step_seconds: Final = self.operators.histogram(
            "step_seconds", "Time of one step.", buckets=_DURATIONS
        )
        self.refresh_seconds: Final = self.operators.histogram(
            "refresh_seconds", "Time of one refresh.", buckets=_DURATIONS
        )
        self.batch_units: Final = self.operators.histogram(
            "batch_units", "Privacy units in a step's bin: an exact count.", buckets=_COUNTS
        )
        self.steps: Final = self.operators.counter("steps", "Steps computed by this process.")
        self._planes: Final[list[PlaneServer]] = []
        if private is not None:
            self._planes.append(internal_plane(private, self.operators))
        if public is not None:
            routes = {"/metrics": lambda: Answer(200, METRICS_TYPE, self.public_text())}
            self._planes.append(PlaneServer(public, routes))
        for plane in self._planes:
            plane.start()

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where the planes are served, the operators' first."""
        return tuple(plane.address for plane in self._planes)

    def begin(self, plan: Plan, epsilon: float, delta: float) -> None:
        """Show the plan."""
        for name, value in (
            ("train_steps_planned", float(plan.steps)),
            ("train_noise_multiplier", plan.noise_multiplier),
            ("train_epsilon", epsilon),
            ("train_delta", delta),
        ):
            self._public[name].set(value)

    def published(self, steps: int, line: Mapping[str, Any]) -> None:
        """Show the last published step."""
        self._public["train_steps_published"].set(steps)
        if "gradient_norm" in line:
            self._public["train_gradient_norm"].set(float(line["gradient_norm"]))
        for figure, value in line.get("preconditioner", {}).items():
            self._public["train_preconditioner"].labels(figure).set(float(value))

    def public_text(self) -> bytes:
        """The public plane in Prometheus' text format."""
        return generate_latest(self.registry)

    def close(self) -> None:
        """Stop serving; again is a no-op."""
        while self._planes:
            self._planes.pop().close()
