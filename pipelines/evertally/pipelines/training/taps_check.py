"""Does a model keep to what the taps assume? Asked once, on public probes, before any private example.

Three assumptions are invisible in a list of layers: that every gradient flows through the layers' own forward
calls, that no example's output or row reads another example, and that a run of the model leaves it as it was.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import torch
from torch import Tensor, nn

from evertally.errors import UnsupportedMechanism
from evertally.pipelines.training.ghost_contributions import Arithmetic, Contribution, contribution
from evertally.pipelines.training.ghost_determinism import deterministic
from evertally.pipelines.training.interfaces import Loss, MicroBatch
from evertally.pipelines.training.layers import Layer, inventory
from evertally.pipelines.training.preconditioner_transforms import Kronecker
from evertally.pipelines.training.taps import evaluation_mode, record

__all__ = ["check_model", "state_of"]

_TOLERANCE: Final = 1e-2
_ROUNDING: Final = 1e-5
"""Share of all losses or gradients that may be rounding: a key's bias before a softmax has no gradient."""


def check_model(model: nn.Module, loss: Loss, probes: MicroBatch) -> None:
    """Compare the taps with autograd, examples alone with the batch, and the model with itself afterwards.

    Args:
        model: the model, on the probes' device.
        loss: per-example losses.
        probes: at least 2 public examples, unlike each other.

    Raises:
        UnsupportedMechanism: a parameter is used outside its layer's forward call, an example's loss or row
            of a layer depends on the other examples of its batch, or the model changes as it runs.
    """
    layers = inventory(model)
    with deterministic(torch.float64):
        _check_state(model, loss, probes)
        _check_losses(model, loss, probes)
        taps = record(model, layers, loss, probes)
        parts = {
            layer.name: contribution(layer, taps[layer.name], Kronecker(), Arithmetic())
            for layer in layers
            if taps[layer.name]
        }
        whole = torch.ones(probes.examples, dtype=torch.float64, device=probes.targets.device)
        _check_gradients(
            model, loss, probes, layers, parts, whole, "{name} is used outside the layer's own forward call"
        )
        for index in range(probes.examples):
            one = torch.zeros_like(whole)
            one[index] = 1.0
            alone = _alone(probes, index)
            _check_gradients(
                model, loss, alone, layers, parts, one, "its rows are not the examples' in their order"
            )


def state_of(model: nn.Module) -> dict[str, Tensor]:
    """All that a model holds besides what is trained: frozen parameters and every buffer."""
    frozen = {name: p for name, p in model.named_parameters() if not p.requires_grad}
    return {**frozen, **dict(model.named_buffers())}


def _check_state(model: nn.Module, loss: Loss, probes: MicroBatch) -> None:
    """The same examples give the same bits again, and nothing of them stays in the model.

    A mask drawn at random would make a replayed step another one; a buffer that sees examples would be
    published with the model.
    """
    held = {**state_of(model), **dict(model.named_parameters())}
    before = {name: tensor.detach().clone() for name, tensor in held.items()}
    place = probes.targets.device
    generator = _generator(place)
    first = _losses(model, loss, probes)
    for index in range(probes.examples):
        _losses(model, loss, _alone(probes, index))
    again = _losses(model, loss, probes)
    after = {**state_of(model), **dict(model.named_parameters())}
    moved = [
        name
        for name in sorted(before.keys() | after.keys())
        if name not in before or name not in after or not _same(before[name], after[name])
    ]
    if moved:
        raise UnsupportedMechanism(
            f"{moved[0]} changes when the model runs: what it keeps of examples would be published with it"
        )
    if not (_same(first, again) and torch.equal(generator, _generator(place))):
        raise UnsupportedMechanism(
            "evaluated again, the same examples would give other losses: the model draws at random "
            "(functional dropout without training=self.training?) or remembers earlier examples"
        )


def _check_losses(model: nn.Module, loss: Loss, probes: MicroBatch) -> None:
    together = _losses(model, loss, probes)
    rounding = _ROUNDING * float(together.norm())
    for index in range(probes.examples):
        alone = _losses(model, loss, _alone(probes, index))
        if not _close(together[index : index + 1], alone, rounding):
            raise UnsupportedMechanism("an example's loss depends on the other examples of its batch")


def _check_gradients(
    model: nn.Module,
    loss: Loss,
    examples: MicroBatch,
    layers: tuple[Layer, ...],
    parts: Mapping[str, Contribution],
    weights: Tensor,
    words: str,
) -> None:
    """The weighted sum of taps is what autograd finds for `examples`."""
    trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
    with evaluation_mode(model), torch.enable_grad():
        losses = loss.per_example(model(*examples.inputs), examples.targets)
        gradients = torch.autograd.grad(losses.sum(), list(trainable.values()), allow_unused=True)
    expected = {
        name: None if gradient is None else gradient.to_dense() if gradient.is_sparse else gradient
        for name, gradient in zip(trainable, gradients, strict=True)
    }
    found = [g for g in expected.values() if g is not None]
    rounding = _ROUNDING * math.sqrt(sum(float(g.double().square().sum()) for g in found))
    for layer in layers:
        summed: dict[str, Tensor] = {}
        if layer.name in parts:
            summed = layer.to_parameters(parts[layer.name].weighted_sum(weights))
        for name in (layer.weight, layer.bias):
            if name is not None and not _close(expected[name], summed.get(name), rounding):
                raise UnsupportedMechanism(f"layer {layer.name}: {words.format(name=name)}")


def _alone(probes: MicroBatch, index: int) -> MicroBatch:
    part = slice(index, index + 1)
    return MicroBatch(tuple(x[part] for x in probes.inputs), probes.targets[part])


def _losses(model: nn.Module, loss: Loss, examples: MicroBatch) -> Tensor:
    with evaluation_mode(model), torch.no_grad():
        return loss.per_example(model(*examples.inputs), examples.targets)


def _generator(place: torch.device) -> Tensor:
    """State of torch's global generator: a model that leaves it alone draws nothing from it."""
    return torch.cuda.get_rng_state(place) if place.type == "cuda" else torch.get_rng_state()


def _same(one: Tensor, other: Tensor) -> bool:
    """Equal in bits; where both are NaN too."""
    return one.shape == other.shape and torch.equal(
        torch.nan_to_num(one, nan=0.5), torch.nan_to_num(other, nan=0.5)
    )


def _close(one: Tensor | None, other: Tensor | None, rounding: float) -> bool:
    """Equal up to the rounding of single precision; None is a gradient of 0."""
    if one is None or other is None:
        found = one if one is not None else other
        return found is None or float(found.abs().max()) <= rounding
    a, b = one.double(), other.double()
    return float((a - b).norm()) <= _TOLERANCE * float(a.norm() + b.norm()) + rounding
