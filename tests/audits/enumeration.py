"""The snapped mechanism on a grid so coarse that every outcome can be written down.

A draw has standard deviation `width` grid units instead of 2^30; everything else is the shipped engine and
the shipped addition. All paths of the noise up to 7.5 standard deviations are enumerated with their exact
probabilities, the rest is counted as lost, and delta(epsilon) follows by summation.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from evertally.counters.bank import noise_in_counts
from evertally.counters.factorization import Factorization
from evertally.counters.grid import Grid
from evertally.testing import FixedNoise

IntArray = NDArray[np.int64]
Policy = Callable[[int, Sequence[IntArray]], IntArray]
"""(tick, releases before it in grid units) -> what enters at that tick, for every path at once."""

_DEVIATIONS = 7.5


@dataclass(frozen=True, slots=True)
class Outcomes:
    """Every history that can be released and how likely it is.

    Attributes:
        grid_units: a_1 .. a_n, shape (n, paths).
        counts: what is published of it, same shape.
        probability: of each path, shape (paths,).
    """

    grid_units: IntArray
    counts: IntArray
    probability: NDArray[np.float64]


class Enumeration:
    """All paths of n draws through one engine."""

    def __init__(self, factorization: Factorization, width: int, ticks: int) -> None:
        reach = math.ceil(_DEVIATIONS * width)
        one = np.arange(-reach, reach + 1)
        z = np.array(list(itertools.product(one.tolist(), repeat=ticks)), np.int64).T
        edge = np.abs(one)
        single = ndtr(-(edge - 0.5) / width) - ndtr(-(edge + 0.5) / width)
        probability = np.ones(1)
        for _ in range(ticks):
            probability = (probability[:, None] * single[None, :]).ravel()
        self.lost = 1.0 - (1.0 - 2.0 * float(ndtr(-(reach + 0.5) / width))) ** ticks
        self._z, self._h = factorization.engine(FixedNoise(z)).run(ticks)
        assert (self._z == z).all()
        self._probability = probability

    def outcomes(self, q: int, policy: Policy) -> Outcomes:
        """Releases of a data set that may react to what was released before."""
        total = np.zeros(self._z.shape[1], np.int64)
        grid_units: list[IntArray] = []
        counts: list[IntArray] = []
        noise = noise_in_counts(self._z, self._h, q)
        for t in range(1, len(self._z) + 1):
            total = total + policy(t, grid_units)
            grid_units.append(q * total + self._z[t - 1] + self._h[t - 1])
            counts.append(total + noise[t - 1])
        return Outcomes(np.array(grid_units), np.array(counts), self._probability)


def accountant_mu(factorization: Factorization, width: int, q: int, ticks: int) -> tuple[float, float]:
    """(mu with the slack of `ticks` ticks, mu of the ideal mechanism) at this width of a draw."""
    sensitivity = math.sqrt(factorization.sensitivity_squared(1, 1, ticks))
    slack = Grid.for_sigma(factorization, 1.0, sensitivity, slack_horizon=ticks).slack
    return (sensitivity * q + slack) / width, sensitivity * q / width


def deltas(
    one: IntArray, other: IntArray, left: Outcomes, right: Outcomes, eps: Sequence[float]
) -> list[float]:
    """delta(eps) of the first world against the second, over the enumerated histories `one` and `other`."""
    p, q = _joined(one, other, left.probability, right.probability)
    return [float(np.maximum(p - math.exp(e) * q, 0.0).sum()) for e in eps]


def _joined(
    one: IntArray, other: IntArray, p: NDArray[np.float64], q: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Probabilities of each distinct history in both worlds."""
    both = np.concatenate([one, other], axis=1)
    low = both.min(axis=1, keepdims=True)
    spans = (both.max(axis=1, keepdims=True) - low + 1).ravel().tolist()
    assert math.prod(spans) < 2**62
    code = np.zeros(both.shape[1], np.int64)
    for row, span in zip(both - low, spans, strict=True):
        code = code * span + row
    _, place = np.unique(code, return_inverse=True)
    size = int(place.max()) + 1
    left = np.bincount(place[: one.shape[1]], weights=p, minlength=size)
    right = np.bincount(place[one.shape[1] :], weights=q, minlength=size)
    return left.astype(np.float64), right.astype(np.float64)
