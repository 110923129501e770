"""What each example of a micro-batch contributes to one layer, without a tensor of batch x parameters.

A contribution answers two questions: each example's squared norm after the transform, and the raw sum
under given weights. Examples of weight 0 are left out of the sum, not multiplied by 0, so that a
non-finite example leaves no trace.

Guarantees:
    - equal to a materialised reference for every kind and plan (tests/training/test_ghost.py).
    - the norm belongs to the very matrix that is summed: where the Gram identity cancels, the example is
      materialised instead (tests/training/test_sensitivity.py).

Reference: docs/proofs/preconditioned-clip.md; arXiv 2605.13418, Algorithm 2.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import torch
from torch import Tensor

from evertally.pipelines.training.ghost_plans import Plan, choose_plan, plan_memory
from evertally.pipelines.training.layers import Kind, Layer
from evertally.pipelines.training.layers_rows import Rows, normalised_input, positions, rows, token_rows
from evertally.pipelines.training.preconditioner_transforms import (
    Elementwise,
    Kronecker,
    Transform,
    multiply_right,
)
from evertally.pipelines.training.taps import Tap

__all__ = ["Arithmetic", "Contribution", "contribution", "example_matrices"]

_CANCELLED: Final = {torch.float64: 2.0**-20, torch.float32: 2.0**-10}


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """Precision of norms, and the memory that a chunk of examples may take.

    Attributes:
        dtype: what examples' rows are transformed in: torch.float64, or torch.float32 where doubles are slow.
            Squares and sums are in doubles either way: a single's square underflows, and the rounding of a
            sum in singles, which depends on who else is in the batch, exceeds the slack after the transform.
        memory_bytes: cap on temporary tensors beyond taps and roots.
        plan: force one plan wherever it applies; None chooses by cost.
    """

    dtype: torch.dtype = torch.float64
    memory_bytes: int = 1 << 26
    plan: Plan | None = None

    @property
    def elements(self) -> int:
        """The cap in elements."""
        return self.memory_bytes // 8


class Contribution(Protocol):
    """One layer's share of a micro-batch."""

    def squared_norms(self) -> Tensor:
        """Squared norms of the transformed gradients, (examples,); not finite where a gradient is not."""
        ...

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Sum of weight times raw gradient matrix, (rows, columns); examples of weight 0 are left out."""
        ...


def contribution(
    layer: Layer, taps: Sequence[Tap], transform: Transform, arithmetic: Arithmetic
) -> Contribution:
    """The contribution of a layer's taps (at least one) under a transform."""
    if layer.kind is Kind.EMBEDDING:
        return _Segments(layer, taps, transform, arithmetic)
    if layer.kind is Kind.LAYER_NORM:
        return _Materialised(layer, taps, transform, arithmetic)
    t = positions(layer, taps)
    plan = choose_plan(t, layer.shape[1], layer.shape[0], transform, memory_elements=arithmetic.elements)
    forced = arithmetic.plan
    if forced is Plan.MATERIALISE or (forced is Plan.GRAM and not isinstance(transform, Elementwise)):
        plan = forced
    if plan is Plan.MATERIALISE:
        return _Materialised(layer, taps, transform, arithmetic)
    return _Outer(layer, taps, transform, arithmetic, plan)


def example_matrices(
    layer: Layer, taps: Sequence[Tap], part: slice | Tensor, arithmetic: Arithmetic
) -> Tensor:
    """Raw gradient matrices (examples, rows, columns) of the examples in `part`; not for Embedding."""
    dtype = arithmetic.dtype
    if layer.kind is not Kind.LAYER_NORM:
        return _matrices(layer, rows(layer, taps, part, dtype))
    matrices = []
    for tap in taps:
        one = normalised_input(layer, tap, part, dtype)
        lines = [(one.gradient * one.entered).sum(dim=1)]
        if layer.bias is not None:
            lines.append(one.gradient.sum(dim=1))
        matrices.append(torch.stack(lines, dim=1))
    return torch.stack(matrices).sum(dim=0)


def _chunks(examples: int, elements: int, each: int) -> Iterator[slice]:
    size = max(1, elements // max(1, each))
    for first in range(0, examples, size):
        yield slice(first, min(first + size, examples))


def _left(transform: Transform, gradient: Tensor) -> Tensor:
    """U_G d, in doubles from here on."""
    assert not isinstance(transform, Elementwise)
    return multiply_right(gradient, transform.left).double()


def _right(layer: Layer, transform: Transform, entered: Tensor) -> Tensor:
    """U_A a with the homogeneous 1 of a bias, which is never appended to a; in doubles from here on."""
    assert not isinstance(transform, Elementwise)
    right, size = transform.right, layer.inputs
    if layer.bias is None:
        return multiply_right(entered, right).double()
    if right is not None and right.dim() == 2:
        return (entered @ right[:size] + right[size]).double()
    one = entered.new_ones((*entered.shape[:-1], 1))
    return multiply_right(torch.cat([entered, one], dim=-1), right).double()


def _squared_lengths(layer: Layer, transform: Kronecker, entered: Tensor) -> Tensor:
    """|U_A a|^2 of vectors (examples, inputs); where the spectrum's difference cancels, from U_A a itself."""
    spectrum = transform.spectrum
    if spectrum is None:
        return torch.square(_right(layer, transform, entered)).sum(dim=1)
    size = layer.inputs
    along, whole = (entered @ spectrum.vectors[:size]).double(), torch.square(entered.double()).sum(dim=1)
    if layer.bias is not None:
        along, whole = along + spectrum.vectors[size], whole + 1.0
    most = spectrum.floor * whole
    lengths = most - torch.square(along) @ spectrum.drop.double()
    cancelled = torch.nonzero(lengths < _CANCELLED[entered.dtype] * most).flatten()
    if cancelled.numel():
        lengths[cancelled] = torch.square(_right(layer, transform, entered[cancelled])).sum(dim=1)
    return lengths


def _matrices(layer: Layer, part: Rows) -> Tensor:
    """Raw gradient matrices (examples, rows, columns)."""
    weight = part.gradient.transpose(1, 2) @ part.entered
    if layer.bias is None:
        return weight
    return torch.cat([weight, part.gradient.sum(dim=1)[:, :, None]], dim=2)


class _Outer:
    """Rank one and Gram: norms from rows; the sum is one product of all rows."""

    def __init__(
        self, layer: Layer, taps: Sequence[Tap], transform: Transform, arithmetic: Arithmetic, plan: Plan
    ) -> None:
        self._layer, self._taps, self._transform = layer, taps, transform
        self._arithmetic, self._plan = arithmetic, plan
        self._examples = int(taps[0].gradient.shape[0])
        self._positions = positions(layer, taps)
        self._cancelled = torch.zeros(self._examples, dtype=torch.bool, device=taps[0].gradient.device)

    def squared_norms(self) -> Tensor:
        each = plan_memory(self._plan, self._positions, self._layer.shape[1], self._layer.shape[0])
        norms = [self._norms(part) for part in _chunks(self._examples, self._arithmetic.elements, each)]
        return torch.cat(norms)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        kept = weights > 0
        total = self._outer(weights, kept & ~self._cancelled)
        for index in torch.nonzero(kept & self._cancelled).flatten():
            one = _matrices(self._layer, self._rows(index[None]))[0]
            total += weights[index] * one
        return total

    def _rows(self, part: slice | Tensor, dtype: torch.dtype | None = None) -> Rows:
        return rows(self._layer, self._taps, part, dtype or self._arithmetic.dtype)

    def _norms(self, part: slice) -> Tensor:
        chunk, layer, transform = self._rows(part), self._layer, self._transform
        if self._plan is Plan.RANK_ONE:
            d, a = chunk.gradient[:, 0], chunk.entered[:, 0]
            if isinstance(transform, Elementwise):
                squares = torch.square(transform.weights.double())
                turned = torch.square(d.double()) @ squares
                norms = (turned[:, : layer.inputs] * torch.square(a.double())).sum(dim=1)
                if layer.bias is not None:
                    norms = norms + turned[:, -1]
            else:
                lengths = _squared_lengths(layer, transform, a)
                norms = torch.square(_left(transform, d)).sum(dim=1) * lengths
            return norms * transform.scale**2
        d, a = _left(transform, chunk.gradient), _right(layer, transform, chunk.entered)
        of_d, of_a = d @ d.transpose(1, 2), a @ a.transpose(1, 2)
        norms = (of_d * of_a).sum(dim=(1, 2))
        lengths = of_d.diagonal(dim1=1, dim2=2) * of_a.diagonal(dim1=1, dim2=2)
        bound = torch.square(lengths.sqrt().sum(dim=1))
        cancelled = norms < _CANCELLED[self._arithmetic.dtype] * bound
        for index in torch.nonzero(cancelled).flatten():
            one = _matrices(layer, self._rows(index[None] + part.start))
            norms[index] = torch.square(transform.apply(one).double() / transform.scale).sum()
        self._cancelled[part] = cancelled
        return norms * transform.scale**2

    def _outer(self, weights: Tensor, kept: Tensor) -> Tensor:
        """One product D^T diag(w) A over the kept examples, in chunks of rows."""
        layer = self._layer
        total = weights.new_zeros(layer.shape)
        every = bool(kept.all())
        each = 2 * self._positions * sum(layer.shape)
        for part in _chunks(self._examples, self._arithmetic.elements, each):
            members = torch.nonzero(kept[part]).flatten() + part.start
            if not members.numel():
                continue
            chosen = part if every else members
            chunk = self._rows(chosen, torch.float64)
            d = (chunk.gradient * weights[chosen][:, None, None]).reshape(-1, layer.shape[0])
            total[:, : layer.inputs] += d.T @ chunk.entered.reshape(-1, layer.inputs)
            if layer.bias is not None:
                total[:, -1] += d.sum(dim=0)
        return total


class _Materialised:
    """Raw gradients of a chunk of examples; kept for the sum where they take no more room than the taps."""

    def __init__(
        self, layer: Layer, taps: Sequence[Tap], transform: Transform, arithmetic: Arithmetic
    ) -> None:
        self._layer, self._taps, self._transform, self._arithmetic = layer, taps, transform, arithmetic
        self._examples = int(taps[0].gradient.shape[0])
        taken = sum(tap.entered.numel() + tap.gradient.numel() for tap in taps)
        room = self._examples * layer.shape[0] * layer.shape[1]
        self._keep = room <= min(taken, arithmetic.elements)
        self._kept: list[Tensor] = []

    def squared_norms(self) -> Tensor:
        norms = []
        for _, raw in self._raw():
            norms.append(torch.square(self._transform.apply(raw).double()).sum(dim=(1, 2)))
        return torch.cat(norms)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        total = weights.new_zeros(self._layer.shape)
        for part, raw in self._raw():
            kept = weights[part] > 0
            chosen = raw if bool(kept.all()) else raw[kept]
            total += torch.tensordot(weights[part][kept], chosen.double(), dims=1)
        return total

    def _raw(self) -> Iterator[tuple[slice, Tensor]]:
        t = positions(self._layer, self._taps)
        each = 2 * self._layer.shape[0] * self._layer.shape[1] + 2 * t * sum(self._layer.shape)
        parts = list(_chunks(self._examples, self._arithmetic.elements, each))
        if self._kept:
            yield from zip(parts, self._kept, strict=True)
            return
        kept = []
        for part in parts:
            raw = example_matrices(self._layer, self._taps, part, self._arithmetic)
            if self._keep:
                kept.append(raw)
            yield part, raw
        self._kept = kept


class _Segments:
    """Embedding: gradients of equal tokens of one example are added first, so nothing cancels in a norm."""

    def __init__(
        self, layer: Layer, taps: Sequence[Tap], transform: Transform, arithmetic: Arithmetic
    ) -> None:
        self._layer, self._transform, self._dtype = layer, transform, arithmetic.dtype
        tokens, gradient = token_rows(layer, taps, slice(None), arithmetic.dtype)
        self._examples, t = tokens.shape
        vocabulary = layer.shape[1]
        owner = torch.arange(self._examples, device=tokens.device).repeat_interleave(t)
        keys, inverse = torch.unique(owner * vocabulary + tokens.reshape(-1), return_inverse=True)
        self._owner, self._token = keys // vocabulary, keys % vocabulary
        flat = gradient.reshape(-1, layer.shape[0])
        self._sums = flat.new_zeros((len(keys), layer.shape[0])).index_add_(0, inverse, flat)

    def squared_norms(self) -> Tensor:
        transform = self._transform
        if isinstance(transform, Elementwise):
            turned = (self._sums * transform.weights.T[self._token]).double()
        else:
            turned = _left(transform, self._sums)
            if transform.right is not None:
                turned = turned * transform.right[self._token][:, None]
        squares = torch.square(turned * transform.scale).sum(dim=1)
        return squares.new_zeros(self._examples).index_add_(0, self._owner, squares)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        kept = weights[self._owner] > 0
        scaled = self._sums[kept].double() * weights[self._owner[kept]][:, None]
        columns = weights.new_zeros((self._layer.shape[1], self._layer.shape[0]))
        return columns.index_add_(0, self._token[kept], scaled).T
