"""Which layers can be preconditioned and clipped from their taps, and how their gradients read as matrices.

Every trainable parameter must belong to exactly one supported layer. What would make the per-example
norm wrong (layers that mix examples, parameters with two owners) is refused by name.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

import torch
from torch import Tensor, nn

from evertally.errors import InvalidParameter, UnsupportedMechanism

__all__ = ["Kind", "Layer", "inventory", "parameters_of"]


class Kind(Enum):
    """How a layer's gradient arises from its input and its output's gradient."""

    LINEAR = "linear"
    CONV2D = "conv2d"
    EMBEDDING = "embedding"
    LAYER_NORM = "layer_norm"


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """A supported layer with trainable parameters.

    Its gradient is handled as a matrix of shape (rows, columns): Linear and Conv2d (out, in [+ 1]), the last
    column being the bias; Embedding (dimension, vocabulary); LayerNorm (1 or 2, size), weight above bias.

    Attributes:
        name: the module's name in `model.named_modules()`.
        module: the module itself.
        kind: how its gradient arises.
        weight: name of the weight parameter.
        bias: name of the bias parameter, or None.
        shape: (rows, columns) of the gradient matrix.
        weight_shape: shape of the weight parameter.
    """

    name: str
    module: nn.Module
    kind: Kind
    weight: str
    bias: str | None
    shape: tuple[int, int]
    weight_shape: tuple[int, ...]

    @property
    def inputs(self) -> int:
        """Columns that belong to the weight: the size of the input without the homogeneous 1."""
        return self.shape[1] - (1 if self._bias_is_a_column() else 0)

    def _bias_is_a_column(self) -> bool:
        return self.bias is not None and self.kind is not Kind.LAYER_NORM

    def to_parameters(self, matrix: Tensor) -> dict[str, Tensor]:
        """Split a gradient matrix into contiguous tensors of the parameters' shapes."""
        if self.kind is Kind.EMBEDDING:
            return {self.weight: matrix.T.contiguous()}
        if self.kind is Kind.LAYER_NORM:
            parts = {self.weight: matrix[0].reshape(self.weight_shape).contiguous()}
            if self.bias is not None:
                parts[self.bias] = matrix[1].reshape(self.weight_shape).contiguous()
            return parts
        parts = {self.weight: matrix[:, : self.inputs].reshape(self.weight_shape).contiguous()}
        if self.bias is not None:
            parts[self.bias] = matrix[:, -1].contiguous()
        return parts

    def to_matrix(self, parameters: dict[str, Tensor]) -> Tensor:
        """The gradient matrix of tensors in the parameters' shapes; undoes `to_parameters`."""
        weight = parameters[self.weight]
        if self.kind is Kind.EMBEDDING:
            return weight.T
        bias = [] if self.bias is None else [parameters[self.bias]]
        if self.kind is Kind.LAYER_NORM:
            return torch.stack([weight.reshape(-1), *(b.reshape(-1) for b in bias)])
        return torch.cat([weight.reshape(self.shape[0], -1), *(b[:, None] for b in bias)], dim=1)


_MIXES_EXAMPLES: Final = (
    nn.modules.batchnorm._BatchNorm,  # the only common ancestor, lazy and sync kinds included
    nn.modules.instancenorm._InstanceNorm,  # as above; it may keep running statistics
)
_REASONS: Final[dict[type[nn.Module], str]] = {
    nn.ConvTranspose1d: "transposed convolution",
    nn.ConvTranspose2d: "transposed convolution",
    nn.ConvTranspose3d: "transposed convolution",
    nn.MultiheadAttention: "its projections are functional; use a Linear for each of q, k, v or a fused one",
    nn.EmbeddingBag: "its output sums positions; use Embedding and sum",
    nn.Bilinear: "it has two inputs",
}


def inventory(model: nn.Module) -> tuple[Layer, ...]:
    """The trainable layers of a model, in the order of `named_modules`.

    Frozen layers are left out: no taps, no noise.

    Raises:
        UnsupportedMechanism: a layer or a sharing of parameters for which no sound norm is built; the message
            names it.
        InvalidParameter: the model has no trainable parameter.
    """
    owners: dict[int, str] = {}
    layers: list[Layer] = []
    for name, module in model.named_modules(remove_duplicate=True):
        label = name or type(module).__name__
        if isinstance(module, _MIXES_EXAMPLES):
            raise UnsupportedMechanism(
                f"layer {label}: {type(module).__name__} mixes examples or keeps private statistics; "
                "use LayerNorm, or none"
            )
        own = {key: p for key, p in module.named_parameters(recurse=False) if p.requires_grad}
        for key, parameter in own.items():
            if id(parameter) in owners:
                raise UnsupportedMechanism(
                    f"layer {label}: its {key} is tied to {owners[id(parameter)]}; per-example gradients of "
                    "both uses add up before the norm"
                )
            owners[id(parameter)] = f"{name}.{key}" if name else key
        if own:
            layers.append(_layer(name, label, module, own))
    if not layers:
        raise InvalidParameter("model", "no trainable parameter", "at least one trainable layer")
    return tuple(layers)


def parameters_of(layers: tuple[Layer, ...]) -> dict[str, tuple[int, ...]]:
    """Shapes of the layers' parameters by name."""
    shapes: dict[str, tuple[int, ...]] = {}
    for layer in layers:
        shapes[layer.weight] = layer.weight_shape
        if layer.bias is not None:
            shapes[layer.bias] = (
                layer.weight_shape if layer.kind is Kind.LAYER_NORM else layer.weight_shape[:1]
            )
    return shapes


def _layer(name: str, label: str, module: nn.Module, own: dict[str, Tensor]) -> Layer:
    kind = _kind(label, module)
    unknown = sorted(set(own) - {"weight", "bias"})
    if unknown:
        raise UnsupportedMechanism(
            f"layer {label}: {', '.join(unknown)} is no parameter of a {type(module).__name__} of its own "
            "(weight_norm, spectral_norm, an adapter?); make it a layer, or freeze it"
        )
    if any(parameter.numel() == 0 for parameter in own.values()):
        raise UnsupportedMechanism(f"layer {label}: it has parameters without elements")
    present = {key for key, p in module.named_parameters(recurse=False) if p is not None}
    if set(own) != present:
        raise UnsupportedMechanism(
            f"layer {label}: {', '.join(sorted(present - set(own)))} is frozen and "
            f"{', '.join(sorted(own))} is not; freeze all of a layer or nothing"
        )
    prefix = f"{name}." if name else ""
    weight = own["weight"]
    bias = f"{prefix}bias" if "bias" in own else None
    if kind is Kind.EMBEDDING:
        shape = (weight.shape[1], weight.shape[0])
    elif kind is Kind.LAYER_NORM:
        shape = (len(own), weight.numel())
    else:
        shape = (weight.shape[0], weight[0].numel() + (1 if bias else 0))
    return Layer(name, module, kind, f"{prefix}weight", bias, shape, tuple(weight.shape))


def _kind(label: str, module: nn.Module) -> Kind:
    """The kind of an exact type; a subclass may compute anything, so it is refused."""
    if type(module) is nn.Linear:
        return Kind.LINEAR
    if type(module) is nn.Conv2d:
        _check_convolution(label, module)
        return Kind.CONV2D
    if type(module) is nn.Embedding:
        if module.max_norm is not None:
            raise UnsupportedMechanism(f"layer {label}: Embedding with max_norm changes weights in forward")
        if module.scale_grad_by_freq:
            raise UnsupportedMechanism(f"layer {label}: scale_grad_by_freq reads the whole batch")
        return Kind.EMBEDDING
    if type(module) is nn.LayerNorm:
        return Kind.LAYER_NORM
    reason = next((text for kind, text in _REASONS.items() if isinstance(module, kind)), None)
    raise UnsupportedMechanism(
        f"layer {label}: {type(module).__name__} has trainable parameters and is not supported"
        + (f" ({reason})" if reason else "")
        + "; supported: Linear, Conv2d, Embedding, LayerNorm. Freeze it or replace it"
    )


def _check_convolution(label: str, module: nn.Conv2d) -> None:
    if module.groups != 1:
        raise UnsupportedMechanism(f"layer {label}: Conv2d with groups={module.groups} is not supported")
    if module.padding_mode != "zeros":
        raise UnsupportedMechanism(
            f"layer {label}: Conv2d with padding_mode={module.padding_mode!r} is not supported"
        )
