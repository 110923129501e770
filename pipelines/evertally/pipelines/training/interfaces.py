"""What passes between the mathematics of a training step and the plan that pays for its noise.

One logical step: `ClippedSummer.sum` turns micro-batches into private sums; the caller quantises them,
adds the noise of the step, divides by a configured constant and hands the result to a
`PrivateOptimizer`. Between steps, and from public inputs only, `Preconditioner.refresh` moves the
coordinates.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, NoReturn, Protocol

from torch import Tensor, nn

from evertally.pipelines.training.preconditioner_transforms import Transform

__all__ = [
    "ClippedSummer",
    "Loss",
    "MicroBatch",
    "ParameterShape",
    "Preconditioner",
    "PrivateOptimizer",
    "PrivateSums",
    "Probe",
]


class MicroBatch(NamedTuple):
    """Examples that are evaluated together.

    Attributes:
        inputs: positional arguments of the model, each of shape (examples, ...).
        targets: what the loss compares with, of shape (examples, ...).
    """

    inputs: tuple[Tensor, ...]
    targets: Tensor

    @property
    def examples(self) -> int:
        """Number of examples."""
        return int(self.targets.shape[0])


@dataclass(frozen=True, slots=True)
class ParameterShape:
    """A trainable parameter: its name in `model.named_parameters()` and its shape."""

    name: str
    shape: tuple[int, ...]


class PrivateSums:
    """Clipped sums before noise: as sensitive as the examples. Never logged, pickled or kept.

    Attributes:
        tensors: parameter name -> sum in the parameter's shape, contiguous, in doubles,
            on the model's device; one entry for each trainable parameter, in the
            order of `ClippedSummer.parameters`.
    """

    __slots__ = ("tensors",)

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self.tensors = tensors

    def __repr__(self) -> str:
        return f"PrivateSums(<{len(self.tensors)} tensors>)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("sums without noise do not leave their process")


class Loss(Protocol):
    """A loss that is a sum of independent terms, one an example."""

    def per_example(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Losses of shape (examples,), differentiable; an example's loss reads no other example."""
        ...


class Probe(Protocol):
    """Public inputs: functions of a public seed or folder and of constants, never of private data."""

    def batch(self, step: int, first: int, count: int) -> MicroBatch:
        """Probes first .. first+count-1 of the refresh before `step`; the same bits at every call."""
        ...

    def describe(self) -> dict[str, object]:
        """Public parameters for the run's manifest; JSON values."""
        ...


class ClippedSummer(Protocol):
    """Turns the examples of one logical step into one clipped sum a parameter.

    Guarantees:
        - adding or removing one example changes the sums, all parameters together, by an l2 norm of at most
          `sensitivity`.
        - nothing of the private batch stays behind: no `.grad`, no activation, no attribute.
    """

    @property
    def parameters(self) -> tuple[ParameterShape, ...]:
        """Trainable parameters in the model's order."""
        ...

    @property
    def sensitivity(self) -> float:
        """The clip norm and the slack of rounding; what noise is scaled by."""
        ...

    def sum(self, micro_batches: Iterable[MicroBatch]) -> PrivateSums:
        """Clip each example and sum; no micro-batch, or empty ones, give zeros."""
        ...

    def sum_units(self, units: Iterable[Iterable[MicroBatch]]) -> PrivateSums:
        """Sum each unit's examples, clip the unit, and sum: the guarantee is for units."""
        ...


class Preconditioner(Protocol):
    """Coordinates of the update: a function of parameters that were released, and of public inputs."""

    def refresh(self, model: nn.Module, step: int) -> None:
        """Recompute from the model's present parameters and the public probes of `step`.

        Deterministic: the same parameters, seed, constants and thread count give the same bits.
        """
        ...

    def transform(self, layer: str) -> Transform:
        """The map of a layer's gradient matrix; the same object until the next refresh."""
        ...

    def state_dict(self) -> dict[str, Tensor]:
        """Tensors that restore the coordinates without a refresh; public; none before the first one."""
        ...

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state_dict` gave; a wrong name or shape is refused."""
        ...

    def metrics(self) -> dict[str, float]:
        """Public figures of the last refresh: condition numbers, scale and probe norms."""
        ...

    def describe(self) -> dict[str, object]:
        """Public parameters for the run's manifest; JSON values."""
        ...


class PrivateOptimizer(Protocol):
    """Post-processing of privatised gradients; free of charge."""

    def step(self, gradients: Mapping[str, Tensor]) -> None:
        """Update the parameters in place from noisy gradients, already divided by the constant."""
        ...

    def state_dict(self) -> dict[str, Tensor]:
        """Tensors that resume the optimiser."""
        ...

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state_dict` gave; a wrong name or shape is refused."""
        ...
