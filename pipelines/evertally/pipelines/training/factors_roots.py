"""Damped inverse square roots of Kronecker factors, in doubles on the CPU.

Relative damping divides a factor by its mean eigenvalue first, so that the root does not change when inputs
or losses are rescaled: an absolute damping hides a factor whose scale is small altogether.

Reference: arXiv 2605.13418, Algorithm 1, for the absolute form.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from evertally.pipelines.training.preconditioner_transforms import Spectrum

__all__ = ["Damping", "InverseRoot", "inverse_root"]

_ATTEMPTS: Final = 8
_RANGE: Final = 2.0**-20
_EPSILON: Final = torch.finfo(torch.float64).eps


@dataclass(frozen=True, slots=True)
class Damping:
    """What is added to a factor's eigenvalues.

    Attributes:
        gamma: added to every eigenvalue.
        relative: divide the factor by its mean eigenvalue first.
    """

    gamma: float
    relative: bool


@dataclass(frozen=True, slots=True, eq=False)
class InverseRoot:
    """(M + gamma I)^(-1/2) of a factor.

    Attributes:
        root: symmetric (d, d), or (d,) for a diagonal factor; None where the factor was unusable (identity).
        condition: largest over smallest eigenvalue of the root.
        smallest: smallest eigenvalue of the factor before damping (relative to the mean where so damped).
        spectrum: the root's square in low rank, where at most half of the eigenvalues are not 0, else None.
    """

    root: Tensor | None
    condition: float
    smallest: float
    spectrum: Spectrum | None = None


def inverse_root(factor: Tensor, damping: Damping) -> InverseRoot:
    """The damped inverse root of a symmetric factor (d, d), or of a diagonal one (d,).

    No eigenvalue counts as less than 2^-20 of the largest: a wider range would turn the rounding of a sum's
    large directions, which depends on who else is in the batch, into more than the slack of the clip norm
    in its small ones (docs/proofs/preconditioned-clip.md, section 4).

    A decomposition that fails is tried again with twice the damping; a factor that is zero or not finite
    gives the identity. Directions without any signal get 1/sqrt(gamma), never more.

    Returns:
        float64 on the CPU.

    Guarantees:
        - U (M + gamma I) U = I to 1e-10 (tests/training/test_factors.py).

    >>> found = inverse_root(torch.tensor([[2.0, 1.0], [1.0, 2.0]]), Damping(0.0, relative=False)).root
    >>> round(float(found[0, 0]), 12)
    0.788675134595
    """
    matrix = factor.detach().to("cpu", torch.float64)
    matrix = matrix if matrix.dim() == 1 else (matrix + matrix.T) / 2
    if damping.relative:
        matrix = matrix / (matrix.mean() if matrix.dim() == 1 else matrix.diagonal().mean())
    if not bool(torch.isfinite(matrix).all()):
        return InverseRoot(None, 1.0, 0.0)
    if matrix.dim() == 1:
        shifted = matrix.clamp(min=0.0) + damping.gamma
        return InverseRoot(shifted.rsqrt(), _condition(shifted), float(matrix.min()))
    gamma = damping.gamma
    for _ in range(_ATTEMPTS):
        try:
            values, vectors = torch.linalg.eigh(matrix)
        except RuntimeError:  # torch.linalg.LinAlgError is one
            matrix = matrix + gamma * torch.eye(len(matrix), dtype=torch.float64)
            gamma *= 2.0
            continue
        # what rounding left of a zero is a zero, for the root and for its low-rank form alike
        values = torch.where(values > len(values) * _EPSILON * values[-1], values, 0.0)
        shifted = values + damping.gamma
        floor = max(damping.gamma, _RANGE * float(shifted.max()))
        shifted = shifted.clamp(min=floor)
        root = (vectors * shifted.rsqrt()) @ vectors.T
        spectrum = _spectrum(shifted, vectors, floor)
        return InverseRoot((root + root.T) / 2, _condition(shifted), float(values[0]), spectrum)
    return InverseRoot(None, 1.0, 0.0)


def _spectrum(shifted: Tensor, vectors: Tensor, floor: float) -> Spectrum | None:
    kept = shifted > floor
    if 2 * int(kept.sum()) > len(shifted):
        return None
    # 1/floor - 1/shifted, without a difference of inverses
    drop = (shifted[kept] - floor) / (floor * shifted[kept])
    return Spectrum(vectors[:, kept].contiguous(), drop, 1.0 / floor)


def _condition(shifted: Tensor) -> float:
    return float((shifted.max() / shifted.min()).sqrt())
