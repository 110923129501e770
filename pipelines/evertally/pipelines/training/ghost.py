"""Ghost DP-KFC: the clipped, preconditioned sum of a logical step without per-example gradients.

The transform is the same for every example of a step, so sum_i c_i U_G d_i a_i^T U_A is
U_G (sum_i c_i d_i a_i^T) U_A: it is applied once, after the clipped sum; only the norms need it example by
example. Micro-batches add raw sums; the transform, like the noise, comes once a logical step.

Reference: docs/proofs/preconditioned-clip.md; arXiv 2605.13418, Algorithm 2; arXiv 2210.00038 (one backward
pass, taps kept).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import torch
from torch import Tensor, nn

from evertally.errors import IntegrityError, InvalidParameter
from evertally.pipelines.training.ghost_contributions import Arithmetic, Contribution, contribution
from evertally.pipelines.training.ghost_determinism import deterministic
from evertally.pipelines.training.interfaces import (
    Loss,
    MicroBatch,
    ParameterShape,
    Preconditioner,
    PrivateSums,
)
from evertally.pipelines.training.layers import inventory, parameters_of
from evertally.pipelines.training.preconditioner_transforms import Transform
from evertally.pipelines.training.taps import record
from evertally.validation import positive_real

__all__ = ["GhostClipper"]

_SLACK: Final = {torch.float64: 2.0**-20, torch.float32: 2.0**-7}


class GhostClipper:
    """The `ClippedSummer` of a model, a loss and a preconditioner.

    Guarantees:
        - an example's transformed gradient, all parameters together, is scaled to norm <= clip_norm; one
          whose norm is not finite contributes 0 (tests/training/test_sensitivity.py).
        - the sums are equal to those of a materialised reference (tests/training/test_ghost.py).
        - no gradient, activation or sum stays on the model (tests/training/test_traps.py).
        - the same bits for the same batch, parameters and thread count.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        preconditioner: Preconditioner,
        *,
        clip_norm: float = 1.0,
        arithmetic: Arithmetic | None = None,
        autocast: torch.dtype | None = None,
    ) -> None:
        """Take stock of the model; what is unsound is refused here, by name.

        Args:
            model: its trainable layers must all be supported (see `layers.inventory`).
            loss: per-example losses.
            preconditioner: gives each layer's transform; refreshed by the caller.
            clip_norm: C, the bound on an example's transformed gradient.
            arithmetic: precision of norms, doubles by default, and memory; sums are in doubles always.
            autocast: run the model's passes in a lower precision; norms and sums are not affected.
        """
        self._model, self._loss, self._preconditioner = model, loss, preconditioner
        self._clip_norm: Final = positive_real("clip_norm", clip_norm)
        self._arithmetic: Final = arithmetic or Arithmetic()
        if self._arithmetic.dtype not in _SLACK:
            raise InvalidParameter(
                "arithmetic.dtype", str(self._arithmetic.dtype), "torch.float64 or torch.float32"
            )
        self._autocast = autocast
        self._layers: Final = inventory(model)
        self._transforms: dict[str, tuple[Transform, Transform]] = {}

    @property
    def parameters(self) -> tuple[ParameterShape, ...]:
        """Trainable parameters in the order of `model.named_parameters()`."""
        shapes = parameters_of(self._layers)
        names = (name for name, _ in self._model.named_parameters())
        return tuple(ParameterShape(name, shapes[name]) for name in names if name in shapes)

    @property
    def sensitivity(self) -> float:
        """The clip norm times one plus the slack of rounding (2^-20, 2^-7 with norms in singles)."""
        return self._clip_norm * (1.0 + _SLACK[self._arithmetic.dtype])

    def sum(self, micro_batches: Iterable[MicroBatch]) -> PrivateSums:
        """Clip each example and sum; no micro-batch, or empty ones, give zeros."""
        with deterministic(self._arithmetic.dtype):
            totals = self._zeros()
            for batch in micro_batches:
                if batch.examples == 0:
                    continue
                parts = self._contributions(batch)
                weights = self._weights(torch.stack([part.squared_norms() for part in parts.values()]).sum(0))
                for name, part in parts.items():
                    totals[name] += part.weighted_sum(weights)
            return self._finish(totals)

    def sum_units(self, units: Iterable[Iterable[MicroBatch]]) -> PrivateSums:
        """Sum each unit's examples, clip the unit, and sum: one unit changes the sums by <= sensitivity.

        Memory: the gradient of one unit at a time, the size of the parameters.
        """
        with deterministic(self._arithmetic.dtype):
            totals = self._zeros()
            for unit in units:
                own = self._zeros()
                for batch in unit:
                    if batch.examples == 0:
                        continue
                    ones = torch.ones(batch.examples, dtype=torch.float64, device=self._device())
                    for name, part in self._contributions(batch).items():
                        own[name] += part.weighted_sum(ones)
                squares = [
                    torch.square(self._exact(layer.name).apply(own[layer.name])).sum()
                    for layer in self._layers
                ]
                weight = self._weights(torch.stack(squares).sum()[None])[0]
                if float(weight) > 0:
                    for name, raw in own.items():
                        totals[name] += weight * raw
            return self._finish(totals)

    def _contributions(self, batch: MicroBatch) -> dict[str, Contribution]:
        taps = record(self._model, self._layers, self._loss, batch, self._autocast)
        return {
            layer.name: contribution(
                layer, taps.pop(layer.name), self._transform(layer.name), self._arithmetic
            )
            for layer in self._layers
            if taps[layer.name]
        }

    def _weights(self, squared_norms: Tensor) -> Tensor:
        """min(1, C/norm), and 0 where the norm is not finite."""
        weights = (self._clip_norm / squared_norms.sqrt()).clamp(max=1.0)
        return torch.where(torch.isfinite(squared_norms), weights, torch.zeros_like(weights))

    def _finish(self, totals: dict[str, Tensor]) -> PrivateSums:
        found: dict[str, Tensor] = {}
        for layer in self._layers:
            found.update(layer.to_parameters(self._exact(layer.name).apply(totals[layer.name])))
        tensors = {shape.name: found[shape.name] for shape in self.parameters}
        if not all(bool(torch.isfinite(tensor).all()) for tensor in tensors.values()):
            raise IntegrityError("a clipped sum is not finite; nothing of this step may be released")
        return PrivateSums(tensors)

    def _zeros(self) -> dict[str, Tensor]:
        return {
            layer.name: torch.zeros(layer.shape, dtype=torch.float64, device=self._device())
            for layer in self._layers
        }

    def _transform(self, name: str) -> Transform:
        """The layer's transform in this arithmetic; converted once a refresh."""
        given = self._preconditioner.transform(name)
        cached = self._transforms.get(name)
        if cached is None or cached[0] is not given:
            cached = (given, given.to(self._device(), self._arithmetic.dtype))
            self._transforms[name] = cached
        return cached[1]

    def _exact(self, name: str) -> Transform:
        """The layer's transform in doubles, for sums."""
        if self._arithmetic.dtype is torch.float64:
            return self._transform(name)
        return self._preconditioner.transform(name).to(self._device(), torch.float64)

    def _device(self) -> torch.device:
        return next(self._model.parameters()).device
