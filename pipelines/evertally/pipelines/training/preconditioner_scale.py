"""One constant that makes the median probe's transformed gradient have norm 1.

A clip norm then means the same after every refresh: it is a multiple of a typical probe's norm.
The constant is a function of parameters that were released and of public probes, so it costs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from evertally.pipelines.training.ghost_contributions import Arithmetic, contribution
from evertally.pipelines.training.interfaces import Loss, MicroBatch
from evertally.pipelines.training.layers import Layer
from evertally.pipelines.training.preconditioner_transforms import Transform
from evertally.pipelines.training.taps import record

__all__ = ["median_norm", "moved"]


def moved(batch: MicroBatch, model: nn.Module) -> MicroBatch:
    """The batch on the model's device, its real numbers in the model's precision."""
    like = next(model.parameters())

    def move(tensor: Tensor) -> Tensor:
        return tensor.to(like.device, like.dtype if tensor.is_floating_point() else tensor.dtype)

    return MicroBatch(tuple(move(tensor) for tensor in batch.inputs), move(batch.targets))


def median_norm(
    model: nn.Module,
    layers: tuple[Layer, ...],
    loss: Loss,
    batches: Sequence[MicroBatch],
    transforms: Mapping[str, Transform],
) -> float:
    """The median over probes of the joint norm of the transformed gradient; 0 without probes."""
    norms = []
    arithmetic = Arithmetic()
    for batch in batches:
        taps = record(model, layers, loss, batch)
        squares = [
            contribution(layer, taps[layer.name], transforms[layer.name], arithmetic).squared_norms()
            for layer in layers
            if taps[layer.name]
        ]
        if squares:
            norms.append(torch.stack(squares).sum(dim=0).sqrt())
    return float(torch.cat(norms).median()) if norms else 0.0
