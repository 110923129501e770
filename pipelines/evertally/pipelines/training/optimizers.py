"""Optimisers of privatised gradients: post-processing, since noise came before, so free of charge.

Reference: arXiv 2312.14334 (DP-AdamBC); arXiv 2410.03883 (DiSK, in its one-gradient form).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import torch
from torch import Tensor, nn

from evertally.errors import IntegrityError, InvalidParameter
from evertally.validation import positive_real, real

__all__ = ["Disk", "DpAdamBC", "Momentum"]


class Momentum:
    """Gradient descent with heavy-ball momentum: m <- momentum m + g, theta <- theta - rate m."""

    def __init__(self, model: nn.Module, *, rate: float, momentum: float = 0.9) -> None:
        """Bind the trainable parameters; `momentum` lies in [0, 1)."""
        self._parameters: Final = _trainable(model)
        self._rate: Final = positive_real("rate", rate)
        self._momentum: Final = _below_one("momentum", momentum)
        self._velocity: Final = _zeros(self._parameters)

    def step(self, gradients: Mapping[str, Tensor]) -> None:
        """Move the parameters."""
        for name, gradient in _matched(self._parameters, gradients):
            velocity = self._velocity[name].mul_(self._momentum).add_(gradient)
            _move(self._parameters[name], velocity, self._rate)

    def state_dict(self) -> dict[str, Tensor]:
        """The velocity, in doubles."""
        return {f"velocity|{name}": tensor for name, tensor in self._velocity.items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore the velocity."""
        _restore({f"velocity|{name}": tensor for name, tensor in self._velocity.items()}, state)


class DpAdamBC:
    """Adam whose second moment is freed of the noise's variance: v - noise_std^2, at least floor^2."""

    def __init__(
        self,
        model: nn.Module,
        *,
        rate: float,
        noise_std: float,
        betas: tuple[float, float] = (0.9, 0.999),
        floor: float = 1e-2,
    ) -> None:
        """Bind the trainable parameters.

        Args:
            model: the model.
            rate: learning rate.
            noise_std: standard deviation of the noise in each coordinate of the gradients that `step` gets,
                noise_multiplier * sensitivity / divisor; public.
            betas: decay of the first and second moment, in [0, 1).
            floor: lower bound on the root of the corrected second moment.
        """
        self._parameters: Final = _trainable(model)
        self._rate: Final = positive_real("rate", rate)
        self._variance: Final = real("noise_std", noise_std, low=0.0) ** 2
        self._betas: Final = (_below_one("betas", betas[0]), _below_one("betas", betas[1]))
        self._floor: Final = positive_real("floor", floor) ** 2
        self._first: Final = _zeros(self._parameters)
        self._second: Final = _zeros(self._parameters)
        self._steps: Final = torch.zeros((), dtype=torch.int64)

    def step(self, gradients: Mapping[str, Tensor]) -> None:
        """Move the parameters."""
        self._steps.add_(1)
        t = int(self._steps)
        b1, b2 = self._betas
        for name, gradient in _matched(self._parameters, gradients):
            first = self._first[name].mul_(b1).add_(gradient, alpha=1 - b1)
            second = self._second[name].mul_(b2).add_(torch.square(gradient), alpha=1 - b2)
            corrected = (second / (1 - b2**t) - self._variance).clamp(min=self._floor)
            _move(self._parameters[name], first / (1 - b1**t) / corrected.sqrt(), self._rate)

    def state_dict(self) -> dict[str, Tensor]:
        """Moments in doubles and the number of steps."""
        return {
            "steps": self._steps,
            **{f"first|{name}": tensor for name, tensor in self._first.items()},
            **{f"second|{name}": tensor for name, tensor in self._second.items()},
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore the moments."""
        _restore(self.state_dict(), state)


class Disk:
    """Gradients smoothed by a Kalman filter of constant gain, g <- (1 - gain) g + gain g~, then descent.

    This is the simplified filter that needs one gradient a step; the look-ahead gradient of the full method
    is left out.
    """

    def __init__(self, model: nn.Module, *, rate: float, gain: float = 0.1) -> None:
        """Bind the trainable parameters; `gain` lies in (0, 1]."""
        self._parameters: Final = _trainable(model)
        self._rate: Final = positive_real("rate", rate)
        self._gain: Final = positive_real("gain", gain, high=1.0)
        self._filtered: Final = _zeros(self._parameters)
        self._steps: Final = torch.zeros((), dtype=torch.int64)

    def step(self, gradients: Mapping[str, Tensor]) -> None:
        """Move the parameters; the first gradient starts the filter."""
        gain = self._gain if int(self._steps) else 1.0
        self._steps.add_(1)
        for name, gradient in _matched(self._parameters, gradients):
            filtered = self._filtered[name].mul_(1 - gain).add_(gradient, alpha=gain)
            _move(self._parameters[name], filtered, self._rate)

    def state_dict(self) -> dict[str, Tensor]:
        """The filtered gradient, in doubles, and the number of steps."""
        return {
            "steps": self._steps,
            **{f"filtered|{name}": tensor for name, tensor in self._filtered.items()},
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore the filter."""
        _restore(self.state_dict(), state)


def _trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def _zeros(parameters: Mapping[str, nn.Parameter]) -> dict[str, Tensor]:
    return {name: torch.zeros_like(p, dtype=torch.float64) for name, p in parameters.items()}


def _matched(
    parameters: Mapping[str, nn.Parameter], gradients: Mapping[str, Tensor]
) -> list[tuple[str, Tensor]]:
    """Gradients in doubles on the parameters' device, one for each parameter."""
    if set(gradients) != set(parameters):
        raise InvalidParameter(
            "gradients", f"{len(gradients)} tensors", f"{len(parameters)}, by parameter name"
        )
    pairs = []
    for name, parameter in parameters.items():
        gradient = gradients[name]
        if gradient.shape != parameter.shape:
            raise InvalidParameter("gradients", tuple(gradient.shape), f"shape {tuple(parameter.shape)}")
        pairs.append((name, gradient.detach().to(parameter.device, torch.float64)))
    return pairs


@torch.no_grad()
def _move(parameter: nn.Parameter, direction: Tensor, rate: float) -> None:
    parameter.sub_((rate * direction).to(parameter.dtype))


def _restore(own: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> None:
    if set(own) != set(state):
        raise IntegrityError("the checkpoint's optimiser state is of another optimiser or model")
    for name, tensor in own.items():
        given = state[name]
        if given.shape != tensor.shape or given.dtype != tensor.dtype:
            raise IntegrityError("the checkpoint's optimiser state does not fit the model")
        tensor.copy_(given)


def _below_one(field: str, value: float) -> float:
    checked = real(field, value, low=0.0, high=1.0)
    if checked == 1.0:
        raise InvalidParameter(field, value, "a number in [0, 1)")
    return checked
