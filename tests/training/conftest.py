"""Training tests need PyTorch; without it nothing in this folder is collected."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from torch import Tensor, nn

    from evertally.pipelines.training.interfaces import Loss, MicroBatch, Preconditioner

collect_ignore_glob = [] if importlib.util.find_spec("torch") else ["test_*.py"]


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Small tensors gain nothing from threads, and other tests want the cores."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def materialised() -> Callable[..., tuple[dict[str, Tensor], Tensor]]:
    """The reference: one autograd call an example, the dense transform, the clip, the sum; in doubles."""
    return _materialised


def _materialised(
    model: nn.Module, loss: Loss, preconditioner: Preconditioner, batch: MicroBatch, clip_norm: float
) -> tuple[dict[str, Tensor], Tensor]:
    import torch

    from evertally.pipelines.training.layers import inventory

    layers = inventory(model)
    trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
    totals = {name: torch.zeros(p.shape, dtype=torch.float64) for name, p in trainable.items()}
    norms = []
    for i in range(batch.examples):
        one = tuple(x[i : i + 1] for x in batch.inputs)
        value = loss.per_example(model(*one), batch.targets[i : i + 1]).sum()
        found = torch.autograd.grad(value, list(trainable.values()), allow_unused=True)
        raw = {
            name: (torch.zeros_like(p) if g is None else g).double()
            for (name, p), g in zip(trainable.items(), found, strict=True)
        }
        turned = {}
        for layer in layers:
            own = {name: raw[name] for name in (layer.weight, layer.bias) if name is not None}
            turned[layer.name] = preconditioner.transform(layer.name).apply(layer.to_matrix(own))
        norm = torch.stack([torch.square(matrix).sum() for matrix in turned.values()]).sum().sqrt()
        norms.append(norm)
        factor = min(1.0, clip_norm / float(norm)) if float(norm) else 1.0
        for layer in layers:
            for name, tensor in layer.to_parameters(turned[layer.name]).items():
                totals[name] += factor * tensor
    return totals, torch.stack(norms)
