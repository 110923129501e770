"""Does a model keep to what the taps assume? Asked once, on public probes, before any private example.

Two assumptions are invisible in a list of layers: that every gradient flows through the layers' own forward
calls, and that no example's output reads another example.
"""

from __future__ import annotations

import math
from typing import Final

import torch
from torch import Tensor, nn

from evertally.errors import UnsupportedMechanism
from evertally.pipelines.training.ghost_contributions import Arithmetic, contribution
from evertally.pipelines.training.interfaces import Loss, MicroBatch
from evertally.pipelines.training.layers import inventory
from evertally.pipelines.training.preconditioner_transforms import Kronecker
from evertally.pipelines.training.taps import evaluation_mode, record

__all__ = ["check_model"]

_TOLERANCE: Final = 1e-2
_ROUNDING: Final = 1e-5
"""Share of all losses or gradients that may be rounding: a key's bias before a softmax has no gradient."""


def check_model(model: nn.Module, loss: Loss, probes: MicroBatch) -> None:
    """Compare the taps with autograd, and each example alone with the batch, on public probes.

    Args:
        model: the model, on the probes' device.
        loss: per-example losses.
        probes: at least 2 public examples.

    Raises:
        UnsupportedMechanism: a parameter is used outside its layer's forward call, or an example's loss
            depends on the other examples of its batch.
    """
    layers = inventory(model)
    taps = record(model, layers, loss, probes)
    ones = torch.ones(probes.examples, dtype=torch.float64, device=probes.targets.device)
    trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
    with evaluation_mode(model), torch.enable_grad():
        losses = loss.per_example(model(*probes.inputs), probes.targets)
        gradients = torch.autograd.grad(losses.sum(), list(trainable.values()), allow_unused=True)
    with evaluation_mode(model), torch.no_grad():
        alone = loss.per_example(model(*(x[:1] for x in probes.inputs)), probes.targets[:1])
    together = losses.detach()
    if not _close(together[:1], alone, _ROUNDING * float(together.norm())):
        raise UnsupportedMechanism("an example's loss depends on the other examples of its batch")
    expected = dict(zip(trainable, gradients, strict=True))
    rounding = _ROUNDING * math.sqrt(
        sum(float(g.double().square().sum()) for g in gradients if g is not None)
    )
    for layer in layers:
        summed: dict[str, Tensor] = {}
        if taps[layer.name]:
            part = contribution(layer, taps[layer.name], Kronecker(), Arithmetic())
            summed = layer.to_parameters(part.weighted_sum(ones))
        for name in (layer.weight, layer.bias):
            if name is not None and not _close(expected[name], summed.get(name), rounding):
                raise UnsupportedMechanism(
                    f"layer {layer.name}: {name} is used outside the layer's own forward call"
                )


def _close(one: Tensor | None, other: Tensor | None, rounding: float) -> bool:
    """Equal up to the rounding of single precision; None is a gradient of 0."""
    if one is None or other is None:
        found = one if one is not None else other
        return found is None or float(found.abs().max()) <= rounding
    a, b = one.double(), other.double()
    return float((a - b).norm()) <= _TOLERANCE * float(a.norm() + b.norm()) + rounding
