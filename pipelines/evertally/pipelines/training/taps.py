"""Taps: what entered each layer and the gradient of the summed loss at what left it.

No weight gradient is computed and nothing is written to the model: the gradients are asked of autograd at
the layers' outputs alone, and the hooks are gone when the call returns.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from evertally.errors import UnsupportedMechanism
from evertally.pipelines.training.interfaces import Loss, MicroBatch
from evertally.pipelines.training.layers import Layer

__all__ = ["Tap", "evaluation_mode", "record"]


@dataclass(frozen=True, slots=True, eq=False)
class Tap:
    """One use of a layer: its input and the gradient at its output, both of shape (examples, ...)."""

    entered: Tensor
    gradient: Tensor

    def __repr__(self) -> str:
        return "Tap(<redacted>)"


@dataclass(slots=True, eq=False)
class _Use:
    layer: str
    entered: Tensor
    version: int
    edge: GradientEdge
    examples: int


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Run with dropout off and restore each module's mode.

    Masks drawn from a global generator would make a replayed step differ from the first run.
    """
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def record(
    model: nn.Module,
    layers: tuple[Layer, ...],
    loss: Loss,
    batch: MicroBatch,
    autocast: torch.dtype | None = None,
) -> dict[str, tuple[Tap, ...]]:
    """Run the model forward and backward once; return each layer's taps, one for each use, in order.

    The gradient of an example's loss stands in its own row, because losses are summed and never averaged.

    Args:
        model: run in evaluation mode; its mode is restored.
        layers: the model's inventory.
        loss: per-example losses.
        batch: examples on the model's device.
        autocast: run the passes in this lower precision (for example torch.bfloat16); None for as they are.

    Raises:
        UnsupportedMechanism: a layer's output does not begin with the examples, or its input was changed in
            place afterwards.
    """
    uses: list[_Use] = []
    lower = torch.autocast(batch.targets.device.type, dtype=autocast, enabled=autocast is not None)
    with evaluation_mode(model), torch.enable_grad(), lower:
        handles = [_tap(layer, uses) for layer in layers]
        try:
            losses = loss.per_example(model(*batch.inputs), batch.targets)
        finally:
            for handle in handles:
                handle.remove()
        if losses.shape != (batch.examples,):
            raise UnsupportedMechanism(f"the loss has shape {tuple(losses.shape)}, not one value an example")
        edges = [use.edge for use in uses]
        gradients = torch.autograd.grad(losses.sum(), edges, allow_unused=True) if edges else ()
    return _collect(layers, uses, gradients, batch.examples)


def _tap(layer: Layer, uses: list[_Use]) -> torch.utils.hooks.RemovableHandle:
    def hook(_module: nn.Module, arguments: tuple[Tensor, ...], output: Tensor) -> None:
        if not output.requires_grad:
            raise UnsupportedMechanism(f"layer {layer.name}: it is trainable and runs under no_grad")
        if not arguments:
            raise UnsupportedMechanism(
                f"layer {layer.name}: its input is a keyword argument; pass it by place"
            )
        entered = arguments[0].detach()
        # The edge is that of the output as it is now; an in-place activation afterwards does not move it.
        edge = get_gradient_edge(output)
        uses.append(_Use(layer.name, entered, entered._version, edge, output.shape[0]))

    return layer.module.register_forward_hook(hook)


def _collect(
    layers: tuple[Layer, ...], uses: list[_Use], gradients: tuple[Tensor | None, ...], examples: int
) -> dict[str, tuple[Tap, ...]]:
    taps: dict[str, list[Tap]] = {layer.name: [] for layer in layers}
    for use, gradient in zip(uses, gradients, strict=True):
        if use.entered._version != use.version:
            raise UnsupportedMechanism(f"layer {use.layer}: its input is changed in place after it was used")
        if use.examples != examples or use.entered.shape[0] != examples:
            raise UnsupportedMechanism(
                f"layer {use.layer}: its first dimension is not the examples; put the batch first"
            )
        if gradient is not None:
            taps[use.layer].append(Tap(use.entered, gradient))
    return {name: tuple(found) for name, found in taps.items()}
