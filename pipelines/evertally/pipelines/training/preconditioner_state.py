"""Transforms and public figures as named tensors, for a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from evertally.errors import IntegrityError
from evertally.pipelines.training.layers import Layer
from evertally.pipelines.training.preconditioner_transforms import Elementwise, Kronecker, Spectrum, Transform

__all__ = ["pack", "unpack"]


def pack(transforms: Mapping[str, Transform], metrics: Mapping[str, float]) -> dict[str, Tensor]:
    """Named tensors: `layer|left`, `layer|right` or `layer|weights`, `layer|scale`, and `|metric|name`."""
    state: dict[str, Tensor] = {}
    for name, transform in transforms.items():
        state[f"{name}|scale"] = torch.tensor(transform.scale, dtype=torch.float64)
        if isinstance(transform, Elementwise):
            state[f"{name}|weights"] = transform.weights
            continue
        for side, tensor in (("left", transform.left), ("right", transform.right)):
            if tensor is not None:
                state[f"{name}|{side}"] = tensor
        if transform.spectrum is not None:
            state[f"{name}|vectors"] = transform.spectrum.vectors
            state[f"{name}|drop"] = transform.spectrum.drop
            state[f"{name}|floor"] = torch.tensor(transform.spectrum.floor, dtype=torch.float64)
    for name, value in metrics.items():
        state[f"|metric|{name}"] = torch.tensor(value, dtype=torch.float64)
    return state


def unpack(
    state: Mapping[str, Tensor], layers: tuple[Layer, ...]
) -> tuple[dict[str, Transform], dict[str, float]]:
    """What `pack` was given; empty for an empty state.

    Raises:
        IntegrityError: a tensor is missing, of another shape, not finite, or of no layer of the model.
    """
    left_over = dict(state)
    metrics = {
        name.removeprefix("|metric|"): float(left_over.pop(name))
        for name in list(left_over)
        if name.startswith("|metric|")
    }
    transforms: dict[str, Transform] = {}
    for layer in layers if left_over else ():
        try:
            scale = float(left_over.pop(f"{layer.name}|scale"))
        except KeyError:
            raise IntegrityError(f"the checkpoint holds no transform of layer {layer.name}") from None
        weights = left_over.pop(f"{layer.name}|weights", None)
        if weights is not None:
            _check(layer, weights, (layer.shape,))
            transforms[layer.name] = Elementwise(weights, scale)
            continue
        sides: list[Tensor | None] = []
        for side, size in zip(("left", "right"), layer.shape, strict=True):
            tensor = left_over.pop(f"{layer.name}|{side}", None)
            if tensor is not None:
                _check(layer, tensor, ((size,), (size, size)))
            sides.append(tensor)
        spectrum = _spectrum(layer, left_over)
        transforms[layer.name] = Kronecker(sides[0], sides[1], scale, spectrum)
    if left_over:
        raise IntegrityError(f"the checkpoint holds {len(left_over)} tensors of no layer of this model")
    return transforms, metrics


def _spectrum(layer: Layer, left_over: dict[str, Tensor]) -> Spectrum | None:
    drop = left_over.pop(f"{layer.name}|drop", None)
    if drop is None:
        return None
    vectors = left_over.pop(f"{layer.name}|vectors", torch.empty(0))
    floor = left_over.pop(f"{layer.name}|floor", torch.tensor(torch.nan))
    _check(layer, vectors, ((layer.shape[1], len(drop)),))
    _check(layer, floor, ((),))
    return Spectrum(vectors, drop, float(floor))


def _check(layer: Layer, tensor: Tensor, shapes: tuple[tuple[int, ...], ...]) -> None:
    if tuple(tensor.shape) not in shapes or not bool(torch.isfinite(tensor).all()):
        raise IntegrityError(f"the checkpoint's transform of layer {layer.name} does not fit the model")
