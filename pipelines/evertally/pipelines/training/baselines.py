"""Rivals of Kronecker-factored preconditioning behind the same seams.

Reference: arXiv 2202.05963 (AdaDPS: diagonal statistics of public gradients).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import torch
from torch import Tensor, nn

from evertally.errors import IntegrityError
from evertally.pipelines.training.ghost_contributions import Arithmetic, contribution
from evertally.pipelines.training.ghost_determinism import deterministic
from evertally.pipelines.training.interfaces import Loss, Preconditioner, PrivateOptimizer, Probe
from evertally.pipelines.training.layers import inventory
from evertally.pipelines.training.preconditioner_scale import median_norm, moved
from evertally.pipelines.training.preconditioner_state import pack, unpack
from evertally.pipelines.training.preconditioner_transforms import Elementwise, Kronecker, Transform
from evertally.pipelines.training.taps import record
from evertally.validation import positive_integer, positive_real

__all__ = ["AdaptiveDiagonal", "PreconditionAfter"]


class AdaptiveDiagonal:
    """AdaDPS: each coordinate times (E[g^2] + gamma)^(-1/2), g being mean gradients of public micro-batches.

    E[g^2] is divided by its mean over the model first, so gamma is relative, and the median probe's norm is
    scaled to 1 as for the Kronecker transform.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        probe: Probe,
        *,
        gamma: float = 0.5,
        probes: int = 512,
        micro_batch: int = 64,
    ) -> None:
        """Fix the public constants; call `refresh` before the first step."""
        self._layers: Final = inventory(model)
        self._loss, self._probe = loss, probe
        self._gamma: Final = positive_real("gamma", gamma)
        self._probes: Final = positive_integer("probes", probes)
        self._micro_batch: Final = positive_integer("micro_batch", micro_batch)
        self._transforms: dict[str, Transform] = {}
        self._metrics: dict[str, float] = {}

    def refresh(self, model: nn.Module, step: int) -> None:
        """Recompute every coordinate's scale from the probes of `step`."""
        with deterministic(torch.float64):
            self._refresh(model, step)

    def transform(self, layer: str) -> Transform:
        """The layer's scales; the same object until the next refresh."""
        if not self._transforms:
            raise IntegrityError("the preconditioner was never refreshed")
        return self._transforms[layer]

    def state_dict(self) -> dict[str, Tensor]:
        """Transforms and figures of the last refresh; empty before the first."""
        return pack(self._transforms, self._metrics)

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state_dict` gave."""
        self._transforms, self._metrics = unpack(state, self._layers)

    def metrics(self) -> dict[str, float]:
        """Public figures: `probe_norm`, `scale`, `refreshes`."""
        return dict(self._metrics)

    def describe(self) -> dict[str, object]:
        """Public parameters; JSON values."""
        return {
            "preconditioner": "adaptive-diagonal",
            "gamma": self._gamma,
            "probes": self._probes,
            "micro_batch": self._micro_batch,
            "probe": self._probe.describe(),
        }

    def _refresh(self, model: nn.Module, step: int) -> None:
        device = next(model.parameters()).device
        batches = [
            moved(self._probe.batch(step, first, min(self._micro_batch, self._probes - first)), model)
            for first in range(0, self._probes, self._micro_batch)
        ]
        squares = {
            layer.name: torch.zeros(layer.shape, dtype=torch.float64, device=device) for layer in self._layers
        }
        for batch in batches:
            taps = record(model, self._layers, self._loss, batch)
            mean = torch.full((batch.examples,), 1.0 / batch.examples, dtype=torch.float64, device=device)
            for layer in self._layers:
                if taps[layer.name]:
                    part = contribution(layer, taps[layer.name], Kronecker(), Arithmetic())
                    squares[layer.name] += torch.square(part.weighted_sum(mean)) / len(batches)
        count = sum(square.numel() for square in squares.values())
        level = sum(float(square.sum()) for square in squares.values()) / count
        usable = 0.0 < level < float("inf")
        transforms: dict[str, Transform] = {
            name: Elementwise((square / level + self._gamma).rsqrt()) if usable else Kronecker()
            for name, square in squares.items()
        }
        norm = median_norm(model, self._layers, self._loss, batches, transforms)
        scale = 1.0 / norm if 0.0 < norm < float("inf") else 1.0
        self._transforms = {name: transform.scaled(scale) for name, transform in transforms.items()}
        refreshes = self._metrics.get("refreshes", 0.0) + 1.0
        self._metrics = {"refreshes": refreshes, "probe_norm": norm, "scale": scale}


class PreconditionAfter:
    """Transforms gradients after the noise instead of before the clip: post-processing, the weaker rival."""

    def __init__(self, model: nn.Module, preconditioner: Preconditioner, optimizer: PrivateOptimizer) -> None:
        """Wrap an optimiser; the preconditioner is refreshed by the caller."""
        self._layers: Final = inventory(model)
        self._preconditioner, self._optimizer = preconditioner, optimizer

    def step(self, gradients: Mapping[str, Tensor]) -> None:
        """Transform and hand on."""
        turned: dict[str, Tensor] = {}
        for layer in self._layers:
            names = [name for name in (layer.weight, layer.bias) if name is not None]
            matrix = layer.to_matrix({name: gradients[name].to(torch.float64) for name in names})
            transform = self._preconditioner.transform(layer.name).to(matrix.device, torch.float64)
            turned.update(layer.to_parameters(transform.apply(matrix)))
        self._optimizer.step(turned)

    def state_dict(self) -> dict[str, Tensor]:
        """The optimiser's state."""
        return self._optimizer.state_dict()

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore the optimiser's state."""
        self._optimizer.load_state_dict(state)
