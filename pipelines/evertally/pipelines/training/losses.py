"""Losses that are sums of independent terms, one an example."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from evertally.errors import InvalidParameter
from evertally.validation import one_of

__all__ = ["CrossEntropy", "MeanSquaredError"]


@dataclass(frozen=True, slots=True)
class CrossEntropy:
    """Cross-entropy of logits whose last dimension is the classes.

    Logits (examples, classes) with targets (examples,), or (examples, positions..., classes) with targets
    (examples, positions...). Positions whose target is `ignore_index` count for nothing; an example's loss is
    the mean (or sum) over its own remaining positions, so padding never dilutes it.
    """

    ignore_index: int = -100
    reduction: str = "mean"

    def __post_init__(self) -> None:
        one_of("reduction", self.reduction, ("mean", "sum"))

    def per_example(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Losses of shape (examples,); 0 where every position is ignored."""
        if outputs.shape[:-1] != targets.shape:
            raise InvalidParameter(
                "targets", tuple(targets.shape), f"shape {tuple(outputs.shape[:-1])}, as the logits have"
            )
        classes = outputs.shape[-1]
        terms = functional.cross_entropy(
            outputs.reshape(-1, classes),
            targets.reshape(-1).long(),
            ignore_index=self.ignore_index,
            reduction="none",
        ).reshape(targets.shape[0], targets[0].numel() if len(targets) else 1)
        total = terms.sum(dim=1)
        if self.reduction == "sum":
            return total
        counted = (targets != self.ignore_index).reshape(terms.shape).sum(dim=1)
        return total / counted.clamp(min=1)


@dataclass(frozen=True, slots=True)
class MeanSquaredError:
    """Squared error, averaged (or summed) over an example's own outputs."""

    reduction: str = "mean"

    def __post_init__(self) -> None:
        one_of("reduction", self.reduction, ("mean", "sum"))

    def per_example(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Losses of shape (examples,)."""
        if outputs.shape != targets.shape:
            raise InvalidParameter(
                "targets", tuple(targets.shape), f"shape {tuple(outputs.shape)}, as the outputs have"
            )
        squares = torch.square(outputs - targets).reshape(len(outputs), -1)
        return squares.mean(dim=1) if self.reduction == "mean" else squares.sum(dim=1)
