"""Synthetic inputs with the second-order statistics of natural data: 1/f^alpha noise, and labels.

Power falls as 1/f^alpha along the radius in cycles a pixel; every channel of every image has mean 0 and
standard deviation 1. The law gives no power to the mean of an image; `brightness` does. Inputs of one
dimension are filtered along the feature index.

Reference: arXiv 2605.13418, section 4 and Algorithm 3 (whose code filters amplitudes by 1/f^alpha instead:
`convention="amplitude"`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from evertally.errors import InvalidParameter
from evertally.pipelines.training.interfaces import MicroBatch
from evertally.pipelines.training.probes_stream import PublicStream
from evertally.validation import one_of, positive_integer, positive_real, real

__all__ = ["NormalTargets", "PinkNoise", "Targets", "UniformLabels", "pink_filter"]

_CONVENTIONS: Final = ("power", "amplitude")


class Targets(Protocol):
    """Targets that are independent of the inputs."""

    def draw(self, seed: bytes, step: int, first: int, count: int) -> Tensor:
        """Targets of probes first .. first+count-1."""
        ...

    def describe(self) -> dict[str, object]:
        """Public parameters; JSON values."""
        ...


@dataclass(frozen=True, slots=True)
class UniformLabels:
    """Labels uniform over 0 .. classes-1, one an example, or one a position.

    Attributes:
        classes: number of classes.
        positions: shape of an example's labels; () for a single label.
    """

    classes: int
    positions: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        positive_integer("classes", self.classes)

    def draw(self, seed: bytes, step: int, first: int, count: int) -> Tensor:
        """int64 of shape (count, *positions)."""
        each = math.prod(self.positions)
        labels = [
            PublicStream(seed, "labels", step, first + i).integers(0, self.classes, each)
            for i in range(count)
        ]
        return torch.from_numpy(np.array(labels, dtype=np.int64).reshape(count, *self.positions))

    def describe(self) -> dict[str, object]:
        """Public parameters; JSON values."""
        return {"labels": "uniform", "classes": self.classes, "positions": list(self.positions)}


@dataclass(frozen=True, slots=True)
class NormalTargets:
    """Targets of a regression: normal with mean 0 and a standard deviation of `scale`."""

    shape: tuple[int, ...]
    scale: float = 1.0

    def __post_init__(self) -> None:
        positive_real("scale", self.scale)

    def draw(self, seed: bytes, step: int, first: int, count: int) -> Tensor:
        """float32 of shape (count, *shape)."""
        each = math.prod(self.shape)
        targets = [PublicStream(seed, "labels", step, first + i).normal(each) for i in range(count)]
        return torch.from_numpy(
            (self.scale * np.array(targets)).astype(np.float32).reshape(count, *self.shape)
        )

    def describe(self) -> dict[str, object]:
        """Public parameters; JSON values."""
        return {"targets": "normal", "shape": list(self.shape), "scale": self.scale}


@dataclass(frozen=True, slots=True)
class PinkNoise:
    """1/f^alpha noise of any channels x height x width, or along one dimension.

    Attributes:
        seed: public bytes, at least 16.
        shape: (channels, height, width), (height, width) or (features,), without the batch.
        targets: labels or values, independent of the inputs.
        alpha: exponent of the power spectrum, in [0, 4]; 0 is white.
        convention: "power" (power 1/f^alpha) or "amplitude" (amplitude 1/f^alpha, as the paper's code).
        mean: added to every input; a public guess at the data's mean.
        scale: multiplies every input; a public guess at the data's standard deviation.
        brightness: standard deviation of one normal draw a channel that is added to all of its pixels, in
            units of `scale`; 0 for none. For inputs that are not centred: without it A holds nothing along
            an image's mean, and a level that all inputs share is taken for a direction without signal.
    """

    seed: bytes = field(repr=False)
    shape: tuple[int, ...]
    targets: Targets
    alpha: float = 2.0
    convention: str = "power"
    mean: float = 0.0
    scale: float = 1.0
    brightness: float = 0.0

    def __post_init__(self) -> None:
        if not 1 <= len(self.shape) <= 3:
            raise InvalidParameter("shape", self.shape, "1, 2 or 3 dimensions")
        for size in self.shape:
            positive_integer("shape", size)
        if math.prod(self.shape[-2:]) < 2:
            raise InvalidParameter("shape", self.shape, "at least 2 pixels or features")
        real("alpha", self.alpha, low=0.0, high=4.0)
        one_of("convention", self.convention, _CONVENTIONS)
        real("mean", self.mean)
        positive_real("scale", self.scale)
        real("brightness", self.brightness, low=0.0, high=1e6)

    def batch(self, step: int, first: int, count: int) -> MicroBatch:
        """float32 inputs of shape (count, *shape) and their targets."""
        size = math.prod(self.shape)
        white = np.empty((count, size))
        for i in range(count):
            white[i] = PublicStream(self.seed, "inputs", step, first + i).normal(size)
        exponent = self.alpha if self.convention == "amplitude" else self.alpha / 2
        noise = pink_filter(white.reshape(count, *self.shape), exponent)
        if self.brightness:
            noise += self.brightness * self._levels(step, first, count)
        inputs = self.mean + self.scale * noise
        return MicroBatch(
            (torch.from_numpy(inputs.astype(np.float32)),), self.targets.draw(self.seed, step, first, count)
        )

    def describe(self) -> dict[str, object]:
        """Public parameters; JSON values."""
        return {
            "probe": "pink",
            "seed": self.seed.hex(),
            "shape": list(self.shape),
            "alpha": self.alpha,
            "convention": self.convention,
            "mean": self.mean,
            "scale": self.scale,
            "brightness": self.brightness,
            **self.targets.describe(),
        }

    def _levels(self, step: int, first: int, count: int) -> NDArray[np.float64]:
        """One normal draw a channel, of a stream of its own: (count, [channels,] 1, 1) or (count, 1)."""
        channels = self.shape[:-2]
        each = math.prod(channels)
        drawn = [PublicStream(self.seed, "brightness", step, first + i).normal(each) for i in range(count)]
        return np.array(drawn).reshape(count, *channels, *(1 for _ in self.shape[-2:]))


def pink_filter(white: NDArray[np.float64], exponent: float) -> NDArray[np.float64]:
    """Filter white noise to an amplitude of r^-exponent, then to mean 0 and standard deviation 1 an image.

    Args:
        white: (examples, [channels,] height, width) or (examples, features).
        exponent: of the amplitude; the power's is twice as large.

    Returns:
        The same shape; the mean frequency is removed, so each image's mean is 0.
    """
    axes = (-1,) if white.ndim == 2 else (-2, -1)
    grids = np.meshgrid(*(np.fft.fftfreq(white.shape[axis]) for axis in axes), indexing="ij")
    radius = np.sqrt(sum(np.square(grid) for grid in grids))
    amplitude = np.zeros_like(radius)
    amplitude[radius > 0] = radius[radius > 0] ** -exponent
    filtered = np.fft.ifftn(np.fft.fftn(white, axes=axes) * amplitude, axes=axes).real
    filtered -= filtered.mean(axis=axes, keepdims=True)
    deviation = filtered.std(axis=axes, keepdims=True)
    return np.asarray(filtered / np.maximum(deviation, np.finfo(np.float64).tiny))
