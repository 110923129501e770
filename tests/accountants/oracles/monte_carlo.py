"""Monte Carlo divergences of a random-allocation pair: an oracle for tests, never shipped."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def losses(means: Array, sigma: float, direction: str, samples: int, rng: np.random.Generator) -> Array:
    """Samples of log P/Q under P ("remove") or of log Q/P under Q ("add"); means has shape (rows, b)."""
    rows, b = means.shape
    y = rng.normal(0.0, sigma, (samples, rows))
    if direction == "remove":
        y += means[:, rng.integers(b, size=samples)].T
    exponents = (y @ means - 0.5 * (means**2).sum(axis=0)) / sigma**2
    top = exponents.max(axis=1)
    ratio = top + np.log(np.exp(exponents - top[:, None]).mean(axis=1))
    return ratio if direction == "remove" else -ratio


def delta(loss: Array, epsilon: float) -> tuple[float, float]:
    """Estimate of delta and its standard error."""
    values = np.where(loss > epsilon, -np.expm1(np.minimum(epsilon - loss, 0.0)), 0.0)
    return float(values.mean()), float(values.std() / math.sqrt(len(values)))
