"""Linear maps of a layer's gradient matrix: Kronecker-factored, elementwise, or none.

A Kronecker transform is X -> scale * L X R with symmetric L and R, each a matrix, a diagonal, or the
identity; (L (x) R) is never formed. An elementwise transform multiplies each entry.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Elementwise", "Kronecker", "Spectrum", "Transform", "multiply_right"]


@dataclass(frozen=True, slots=True, eq=False)
class Spectrum:
    """The square of a root whose factor had low rank: floor I - V diag(drop) V^T.

    A wide layer whose A comes from fewer probes than it has inputs gets norms from r products instead of d.

    Attributes:
        vectors: orthonormal (d, r), r < d.
        drop: (r,), what each direction lies below the floor.
        floor: the largest eigenvalue, of all directions without signal: 1 / gamma but where gamma is tiny.
    """

    vectors: Tensor
    drop: Tensor
    floor: float

    def to(self, device: torch.device, dtype: torch.dtype) -> Spectrum:
        """The same matrix on another device and in another precision."""
        return Spectrum(self.vectors.to(device, dtype), self.drop.to(device, dtype), self.floor)


@dataclass(frozen=True, slots=True, eq=False)
class Kronecker:
    """X -> scale * left X right.

    Attributes:
        left: symmetric (rows, rows), a diagonal (rows,), or None for the identity.
        right: symmetric (columns, columns), a diagonal (columns,), or None for the identity.
        scale: a positive constant.
        spectrum: of `right` squared, where it is known to be cheaper; the same map to rounding.
    """

    left: Tensor | None = None
    right: Tensor | None = None
    scale: float = 1.0
    spectrum: Spectrum | None = None

    def apply(self, matrix: Tensor) -> Tensor:
        """Transform gradient matrices of shape (..., rows, columns)."""
        result = multiply_right(matrix, self.right)
        if self.left is not None:
            result = self.left[:, None] * result if self.left.dim() == 1 else self.left @ result
        return result * self.scale

    def to(self, device: torch.device, dtype: torch.dtype) -> Kronecker:
        """The same map on another device and in another precision."""
        spectrum = None if self.spectrum is None else self.spectrum.to(device, dtype)
        return Kronecker(_to(self.left, device, dtype), _to(self.right, device, dtype), self.scale, spectrum)

    def scaled(self, factor: float) -> Kronecker:
        """The map times a constant."""
        return Kronecker(self.left, self.right, self.scale * factor, self.spectrum)


@dataclass(frozen=True, slots=True, eq=False)
class Elementwise:
    """X -> scale * weights o X, entry by entry.

    Attributes:
        weights: (rows, columns), positive.
        scale: a positive constant.
    """

    weights: Tensor
    scale: float = 1.0

    def apply(self, matrix: Tensor) -> Tensor:
        """Transform gradient matrices of shape (..., rows, columns)."""
        return matrix * self.weights * self.scale

    def to(self, device: torch.device, dtype: torch.dtype) -> Elementwise:
        """The same map on another device and in another precision."""
        return Elementwise(self.weights.to(device, dtype), self.scale)

    def scaled(self, factor: float) -> Elementwise:
        """The map times a constant."""
        return Elementwise(self.weights, self.scale * factor)


Transform = Kronecker | Elementwise


def multiply_right(rows: Tensor, right: Tensor | None) -> Tensor:
    """`rows` (..., columns) times a matrix, a diagonal or the identity."""
    if right is None:
        return rows
    return rows * right if right.dim() == 1 else rows @ right


def _to(tensor: Tensor | None, device: torch.device, dtype: torch.dtype) -> Tensor | None:
    return None if tensor is None else tensor.to(device, dtype)
