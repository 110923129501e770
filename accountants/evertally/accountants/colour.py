"""The colour bound: random allocation of any strategy, split into classes of bins that hardly overlap.

Colour the bins by their residue modulo p. The first law of the pair is the average of one law a class, so
by joint convexity its hockey-stick is at most the average of those of the classes. Inside a class of n
bins the Gram matrix lies below (g - tau) I + tau 11^T, with g the largest diagonal and tau the largest other
entry, wrap included; by Kahane's inequality the class loses at most what random allocation of n bins at
variance (g - tau)/sigma^2, composed with one Gaussian of mu = sqrt(tau)/sigma, loses. Dense strategies are
welcome, both directions hold, and the cost does not depend on rows, epochs or delta.

Reference: docs/proofs/colour.md, docs/proofs/kahane.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from evertally.accountants.curve import epsilon_at
from evertally.accountants.gaussian import gaussian_epsilon
from evertally.accountants.gram import Gram
from evertally.accountants.random_allocation import CELLS, DIRECTIONS, RandomAllocationPLD
from evertally.validation import integer, one_of, positive_real, probability, real

__all__ = ["SCREEN_CELLS", "ColourPLD", "candidates", "delta", "epsilon"]

SCREEN_CELLS = 64
_SMALL_COLOURS = 32
_GROUPS_MAX = 2


def delta(
    gram: Gram,
    sigma: float,
    epsilon: float,
    direction: str,
    colours: int | Sequence[int] | None = None,
    cells: int = CELLS,
) -> float:
    """Upper bound on delta at `epsilon`; the smallest over several numbers of colours (None: all candidates).

    Raises:
        InvalidParameter: an argument is out of range.
    """
    real("epsilon", epsilon, low=0.0)
    return _smallest(gram, sigma, direction, colours, cells, lambda bound: bound.delta(epsilon))


def epsilon(
    gram: Gram,
    sigma: float,
    delta: float,
    direction: str,
    colours: int | Sequence[int] | None = None,
    cells: int = CELLS,
) -> float:
    """Upper bound on the epsilon at `delta`; the smallest over several numbers of colours, as above."""
    probability("delta", delta)
    return _smallest(gram, sigma, direction, colours, cells, lambda bound: bound.epsilon(delta))


def _smallest(
    gram: Gram,
    sigma: float,
    direction: str,
    colours: int | Sequence[int] | None,
    cells: int,
    value: Callable[[ColourPLD], float],
) -> float:
    """Screened on a coarse grid, and the best two on the full one."""
    among = candidates(gram) if colours is None else [colours] if isinstance(colours, int) else colours
    if len(among) == 1:
        return value(ColourPLD(gram, sigma, direction, among[0], cells))
    screened = sorted((value(ColourPLD(gram, sigma, direction, p, SCREEN_CELLS)), p) for p in among)
    return min(screened[0][0], *(value(ColourPLD(gram, sigma, direction, p, cells)) for _, p in screened[:2]))


@lru_cache(maxsize=32)
def candidates(gram: Gram) -> tuple[int, ...]:
    """Numbers of colours worth trying: the divisors of b and the small ones, each with a smaller overlap
    than every smaller number of colours (more colours at the same overlap only lose).
    """
    b = gram.batches
    divisors = {d for q in range(1, math.isqrt(b) + 1) if b % q == 0 for d in (q, b // q)}
    kept: list[int] = []
    least = math.inf
    for colours in sorted(divisors | set(range(1, min(b, _SMALL_COLOURS) + 1))):
        overlap = max(tau for _, _, tau in _classes(gram, colours))
        if overlap < 0.97 * least or not kept:
            kept.append(colours)
            least = overlap
        if least == 0.0:
            break
    return tuple(kept)


@dataclass(frozen=True, slots=True)
class ColourPLD:
    """The colour bound at one noise level and one number of colours.

    Guarantees:
        - `delta` and `epsilon` are upper bounds for every strategy with this Gram matrix.

    Attributes:
        gram: the Gram matrix of the strategy.
        sigma: noise standard deviation over the clip norm.
        direction: "remove" or "add".
        colours: p, in 1 .. b; it need not divide b.
        cells: grid points of each law.
    """

    gram: Gram
    sigma: float
    direction: str
    colours: int
    cells: int = CELLS
    _parts: tuple[tuple[float, RandomAllocationPLD], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        positive_real("sigma", self.sigma)
        one_of("direction", self.direction, DIRECTIONS)
        integer("colours", self.colours, low=1, high=self.gram.batches)
        parts = []
        for count, (size, top, overlap) in _grouped(_classes(self.gram, self.colours)):
            # at least a rounding's worth stays apart, so that (g - tau) + tau is not below g
            apart = max(top - overlap, top * 2.0**-50)
            part = RandomAllocationPLD(
                size,
                self.sigma / math.sqrt(apart),
                self.direction,
                gaussian_mu=math.sqrt(overlap) / self.sigma,
                cells=self.cells,
            )
            parts.append((count * size / self.gram.batches, part))
        object.__setattr__(self, "_parts", tuple(parts))

    def delta(self, epsilon: float) -> float:
        """Upper bound on delta at `epsilon` >= 0."""
        total = sum(weight * part.delta(epsilon) for weight, part in self._parts) * (1.0 + 2.0**-40)
        return max(math.ulp(0.0), min(1.0, total))

    def epsilon(self, delta: float) -> float:
        """Upper bound on the epsilon at `delta`."""
        probability("delta", delta)
        if len(self._parts) == 1:
            return self._parts[0][1].epsilon(delta)
        unamplified = math.sqrt(self.gram.maximum) / self.sigma
        high = gaussian_epsilon(delta * (1.0 - 2.0**-30), unamplified)
        return epsilon_at(self.delta, delta, high)


@lru_cache(maxsize=4096)
def _classes(gram: Gram, colours: int) -> tuple[tuple[int, float, float], ...]:
    return tuple(gram.classes(colours))


def _grouped(
    classes: tuple[tuple[int, float, float], ...],
) -> list[tuple[int, tuple[int, float, float]]]:
    """(count, class) with equal classes merged, and close ones replaced by their entrywise maximum."""
    groups: list[tuple[int, tuple[int, float, float]]] = []
    for size in sorted({n for n, _, _ in classes}):
        same = sorted((top, overlap) for n, top, overlap in classes if n == size)
        distinct = len(set(same))
        pieces = (
            np.array_split(np.arange(len(same)), min(distinct, _GROUPS_MAX))
            if distinct > 1
            else [range(len(same))]
        )
        for piece in pieces:
            members = [same[i] for i in piece]
            groups.append((len(members), (size, max(m[0] for m in members), max(m[1] for m in members))))
    return groups
