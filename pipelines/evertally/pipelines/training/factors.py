"""Kronecker factors of the empirical Fisher from probes: A of what enters a layer, G of what comes back.

A is the mean of a a^T and G the mean of d d^T over all rows of all probes, with d the gradient of the
*summed* loss: with a mean over M probes G would carry 1/M^2 and any fixed damping would erase it. A bias
adds a 1 to a. Embedding: A is the diagonal of token frequencies, in closed form where the probe knows
them. LayerNorm: the mean square of per-example gradients.

Reference: arXiv 2605.13418, Algorithm 1; arXiv 2311.00636 (positions pooled: KFAC-expand).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, cast

import torch
from torch import Tensor, nn

from evertally.pipelines.training.ghost_contributions import Arithmetic, example_matrices
from evertally.pipelines.training.layers import Kind, Layer
from evertally.pipelines.training.layers_rows import rows, token_rows
from evertally.pipelines.training.taps import Tap

__all__ = ["FactorSums", "Factors"]

_DOUBLES: Final = torch.float64


@dataclass(frozen=True, slots=True, eq=False)
class Factors:
    """Factors of one layer, in doubles.

    Attributes:
        left: G, (rows, rows) or its diagonal (rows,); None for LayerNorm.
        right: A, (columns, columns) or its diagonal (columns,); None for LayerNorm.
        squares: mean squared gradients (rows, columns) of a LayerNorm, else None.
    """

    left: Tensor | None
    right: Tensor | None
    squares: Tensor | None = None


class FactorSums:
    """Sums over probes; how they are split into micro-batches changes rounding alone."""

    def __init__(self, layer: Layer, *, dense_max: int, frequencies: Tensor | None = None) -> None:
        """Begin at zero.

        Args:
            layer: the layer.
            dense_max: a side longer than this keeps its factor's diagonal only.
            frequencies: expected share of each token where this Embedding reads the probe's own tokens, or
                None to count them.
        """
        self._layer, self._dense_max, self._frequencies = layer, dense_max, frequencies
        self._left: Tensor | None = None
        self._right: Tensor | None = None
        self._squares: Tensor | None = None
        self._rows = 0
        self._examples = 0

    def add(self, taps: Sequence[Tap]) -> None:
        """Add the taps of a micro-batch of probes."""
        if not taps:
            return
        self._examples += int(taps[0].gradient.shape[0])
        if self._layer.kind is Kind.LAYER_NORM:
            matrices = example_matrices(self._layer, taps, slice(None), Arithmetic())
            self._squares = _plus(self._squares, torch.square(matrices).sum(dim=0))
        elif self._layer.kind is Kind.EMBEDDING:
            self._add_tokens(taps)
        else:
            part = rows(self._layer, taps, slice(None), _DOUBLES)
            a = part.entered.reshape(-1, self._layer.inputs)
            if self._layer.bias is not None:
                a = torch.cat([a, a.new_ones((len(a), 1))], dim=1)
            d = part.gradient.reshape(-1, self._layer.shape[0])
            self._rows += len(d)
            self._left = _plus(self._left, self._second_moment(d))
            self._right = _plus(self._right, self._second_moment(a))

    def factors(self) -> Factors:
        """The means; zeros where no probe reached the layer."""
        if self._layer.kind is Kind.LAYER_NORM:
            squares = self._squares if self._squares is not None else torch.zeros(self._layer.shape)
            return Factors(None, None, squares.to(_DOUBLES) / max(1, self._examples))
        count = max(1, self._rows)
        left = self._left if self._left is not None else torch.zeros(self._layer.shape[0], dtype=_DOUBLES)
        right = self._right if self._right is not None else torch.zeros(self._layer.shape[1], dtype=_DOUBLES)
        if self._frequencies is not None:
            return Factors(left / count, self._without_padding(self._frequencies.to(_DOUBLES)))
        return Factors(left / count, right / count)

    def _add_tokens(self, taps: Sequence[Tap]) -> None:
        tokens, gradient = token_rows(self._layer, taps, slice(None), _DOUBLES)
        flat = gradient.reshape(-1, self._layer.shape[0])
        self._rows += len(flat)
        self._left = _plus(self._left, self._second_moment(flat))
        counts = torch.bincount(tokens.reshape(-1).cpu(), minlength=self._layer.shape[1]).to(_DOUBLES)
        self._right = _plus(self._right, self._without_padding(counts))

    def _without_padding(self, values: Tensor) -> Tensor:
        padding = cast(nn.Embedding, self._layer.module).padding_idx
        if padding is None:
            return values
        values = values.clone()
        values[padding] = 0.0
        return values

    def _second_moment(self, flat: Tensor) -> Tensor:
        if flat.shape[1] > self._dense_max:
            return torch.square(flat).sum(dim=0)
        return flat.T @ flat


def _plus(total: Tensor | None, part: Tensor) -> Tensor:
    return part if total is None else total + part
