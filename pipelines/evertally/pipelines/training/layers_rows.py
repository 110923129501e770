"""Rows of a layer: per example, T pairs (a_t, d_t) whose outer products sum to the example's gradient.

Linear: positions of the input. Conv2d: output pixels, the input unfolded into patches. A module used more
than once contributes the rows of every use, so cross terms are in the norm.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from evertally.pipelines.training.layers import Kind, Layer
from evertally.pipelines.training.taps import Tap

__all__ = ["Rows", "normalised_input", "positions", "rows", "token_rows"]


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Rows of some examples in the arithmetic's precision.

    Attributes:
        entered: (examples, T, inputs), without the homogeneous 1.
        gradient: (examples, T, outputs).
    """

    entered: Tensor
    gradient: Tensor

    def __repr__(self) -> str:
        return "Rows(<redacted>)"


def positions(layer: Layer, taps: Sequence[Tap]) -> int:
    """T: rows an example has over all uses of the layer."""
    return sum(_positions(layer, tap) for tap in taps)


def rows(layer: Layer, taps: Sequence[Tap], part: slice | Tensor, dtype: torch.dtype) -> Rows:
    """Rows of the examples in `part`, in `dtype`; Linear and Conv2d only."""
    each = [_rows(layer, tap, part, dtype) for tap in taps]
    if len(each) == 1:
        return each[0]
    return Rows(torch.cat([r.entered for r in each], dim=1), torch.cat([r.gradient for r in each], dim=1))


def token_rows(
    layer: Layer, taps: Sequence[Tap], part: slice | Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Tokens (examples, T) and gradients (examples, T, dimension) of an Embedding; 0 at the padding."""
    padding = cast(nn.Embedding, layer.module).padding_idx
    tokens, gradients = [], []
    for tap in taps:
        count = _examples(tap, part)
        ids = tap.entered[part].reshape(count, -1)
        gradient = tap.gradient[part].to(dtype).reshape(count, ids.shape[1], layer.shape[0])
        if padding is not None:
            gradient = gradient.masked_fill((ids == padding)[..., None], 0.0)
        tokens.append(ids)
        gradients.append(gradient)
    return torch.cat(tokens, dim=1), torch.cat(gradients, dim=1)


def normalised_input(layer: Layer, tap: Tap, part: slice | Tensor, dtype: torch.dtype) -> Rows:
    """What a LayerNorm multiplies by its weight, as rows of its flattened size."""
    module = cast(nn.LayerNorm, layer.module)
    count = _examples(tap, part)
    entered = tap.entered[part].to(dtype)
    normal = functional.layer_norm(entered, module.normalized_shape, eps=module.eps)
    size = layer.shape[1]
    return Rows(normal.reshape(count, -1, size), tap.gradient[part].to(dtype).reshape(count, -1, size))


def _examples(tap: Tap, part: slice | Tensor) -> int:
    """How many examples `part` selects."""
    if isinstance(part, slice):
        return len(range(*part.indices(tap.gradient.shape[0])))
    return int(part.shape[0])


def _positions(layer: Layer, tap: Tap) -> int:
    if layer.kind is Kind.CONV2D:
        return int(tap.gradient.shape[2] * tap.gradient.shape[3])
    if layer.kind is Kind.EMBEDDING:
        return int(tap.entered[0].numel())
    return int(tap.gradient[0].numel()) // layer.shape[1 if layer.kind is Kind.LAYER_NORM else 0]


def _rows(layer: Layer, tap: Tap, part: slice | Tensor, dtype: torch.dtype) -> Rows:
    entered, gradient = tap.entered[part].to(dtype), tap.gradient[part].to(dtype)
    count = _examples(tap, part)
    if layer.kind is Kind.CONV2D:
        patches = _unfold(cast(nn.Conv2d, layer.module), entered)
        return Rows(patches.transpose(1, 2), gradient.reshape(count, layer.shape[0], -1).transpose(1, 2))
    t = _positions(layer, tap)
    return Rows(entered.reshape(count, t, layer.inputs), gradient.reshape(count, t, layer.shape[0]))


def _unfold(module: nn.Conv2d, images: Tensor) -> Tensor:
    """Patches (examples, in_channels * kernel, output pixels) in the order of the weight's elements."""
    padding: int | tuple[int, ...] = 0
    if isinstance(module.padding, str):  # "same" may pad one side more than the other; unfold cannot
        images = functional.pad(images, module._reversed_padding_repeated_twice)
    else:
        padding = module.padding
    return functional.unfold(
        images, module.kernel_size, dilation=module.dilation, padding=padding, stride=module.stride
    )
