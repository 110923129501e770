"""The models a configuration can name, and the door for one's own."""

from __future__ import annotations

import importlib
import math
from typing import Final

import safetensors.torch
import torch
from torch import nn

from evertally.errors import InvalidParameter
from evertally.pipelines.training.config_sections import ModelConfig
from evertally.pipelines.training.examples import ExampleForm

__all__ = ["build_model"]

_KERNEL: Final = 3


def build_model(config: ModelConfig, form: ExampleForm, seed: int) -> nn.Module:
    """The model with its starting parameters: a function of the public seed, or of a public file.

    Raises:
        InvalidParameter: a factory that cannot be imported, gives no module, or another one at each call; a
            file that does not fit.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = _own(config.factory) if config.kind == "factory" else _built_in(config, form)
        if config.kind == "factory" and config.init is None:
            torch.manual_seed(seed)
            _check_same(config.factory, model, _own(config.factory))
    if config.init is not None:
        try:
            model.load_state_dict(safetensors.torch.load_file(str(config.init)), strict=True)
        except (RuntimeError, ValueError, OSError, safetensors.SafetensorError):
            raise InvalidParameter(
                "model.init", str(config.init), "tensors of this model's names and shapes"
            ) from None
    return model


def _own(factory: str) -> nn.Module:
    module, _, name = factory.partition(":")
    try:
        made = getattr(importlib.import_module(module), name)()
    except (ImportError, AttributeError) as error:
        raise InvalidParameter(
            "model.factory", factory, f"an importable function ({type(error).__name__})"
        ) from None
    if not isinstance(made, nn.Module):
        raise InvalidParameter(
            "model.factory", type(made).__name__, "a function that returns a torch.nn.Module"
        )
    return made


def _check_same(factory: str, one: nn.Module, other: nn.Module) -> None:
    """A start that differs from call to call is another plan at a resume, whose budget is spent by then."""
    first, second = one.state_dict(), other.state_dict()
    if first.keys() != second.keys() or not all(torch.equal(t, second[name]) for name, t in first.items()):
        raise InvalidParameter(
            "model.factory",
            factory,
            "the same parameters at every call (draw from torch's generator, or give init)",
        )


def _built_in(config: ModelConfig, form: ExampleForm) -> nn.Module:
    outputs = form.classes or 1
    if form.tokens:
        raise InvalidParameter("model.kind", config.kind, "a factory for token features")
    if config.kind == "cnn":
        return _convolutional(config.hidden, form, outputs)
    layers: list[nn.Module] = [nn.Flatten()]
    width = math.prod(form.shape)
    for hidden in config.hidden if config.kind == "mlp" else ():
        layers += [nn.Linear(width, hidden), nn.ReLU()]
        width = hidden
    layers.append(nn.Linear(width, outputs))
    return nn.Sequential(*layers) if form.classes else nn.Sequential(*layers, nn.Flatten(0))


def _convolutional(hidden: tuple[int, ...], form: ExampleForm, outputs: int) -> nn.Module:
    """Convolutions with a pooling by 2 after each, then one hidden layer: the last number is its width."""
    if len(form.shape) != 3 or len(hidden) < 2:
        raise InvalidParameter(
            "model.kind", "cnn", "data.shape [channels, height, width], two sizes in hidden"
        )
    channels, height, width = form.shape
    layers: list[nn.Module] = []
    for size in hidden[:-1]:
        layers += [nn.Conv2d(channels, size, _KERNEL, padding=_KERNEL // 2), nn.ReLU(), nn.MaxPool2d(2)]
        channels, height, width = size, height // 2, width // 2
    if height < 1 or width < 1:
        raise InvalidParameter("data.shape", form.shape, "images that every pooling leaves a pixel of")
    layers += [nn.Flatten(), nn.Linear(channels * height * width, hidden[-1]), nn.ReLU()]
    layers.append(nn.Linear(hidden[-1], outputs))
    return nn.Sequential(*layers) if form.classes else nn.Sequential(*layers, nn.Flatten(0))
