"""Random allocation as an upper bound: exact for C = I, by colours for any other strategy.

Of two directions one usually loses far less: where its bound on a coarse grid is already below the other's
on the full grid, it is not computed any finer, and the larger of the two is what it was.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from evertally.accountants import colour
from evertally.accountants.bound import Direction, Source
from evertally.accountants.curves import TINIEST, Answer, Curve
from evertally.accountants.gram import Gram
from evertally.accountants.random_allocation import CELLS, RandomAllocationPLD

__all__ = ["Colour", "RandomAllocation"]

_POINTS = 3
_SLOPE_STEP = 0.98
_RIVAL = 1.7
"""How far a delta may be above the best one and still be looked at a few hundredths away."""
_TAIL_MIN, _TAIL_MAX = 1e-12, 7.0
_DELTA_FLOOR = 1e-16
"""Below it a delta is all certified error of grids and transforms, which does not shrink with the noise:
the bound is this and not less, so that more noise never seems to lose more."""


@dataclass(frozen=True, slots=True)
class Colour:
    """The colour bound: bins split into classes, each a random allocation and one Gaussian.

    Attributes:
        gram: the strategy's Gram matrix.
        directions: which to bound.
        colours: the numbers of colours to try, for each direction.
        cells: grid points of each law.
    """

    gram: Gram
    directions: tuple[Direction, ...]
    colours: tuple[tuple[int, ...], ...]
    cells: int = CELLS
    source: ClassVar[Source] = "colour"

    @classmethod
    def of(cls, gram: Gram, directions: tuple[Direction, ...]) -> Colour:
        """All numbers of colours worth trying."""
        return cls(gram, directions, (colour.candidates(gram),) * len(directions))

    def delta(self, sigma: float, epsilon: float) -> Answer:
        """The larger of the directions."""
        found = self._larger(lambda d, p, n: colour.delta(self.gram, sigma, epsilon, d, p, n))
        return Answer(max(found, _DELTA_FLOOR))

    def epsilon(self, sigma: float, delta: float) -> Answer:
        """The larger of the directions."""
        return Answer(self._larger(lambda d, p, n: colour.epsilon(self.gram, sigma, delta, d, p, n)))

    def focused(self, sigma: float, epsilon: float) -> Colour:
        """The number of colours that is best nearby, on a coarse grid."""
        best = tuple((found[0][1],) for found in self._screened(sigma, epsilon))
        return replace(self, colours=best, cells=colour.SCREEN_CELLS)

    def sharpened(self, sigma: float, epsilon: float) -> Colour:
        """The best two numbers of colours compared on the full grid, in the larger direction."""
        screened = self._screened(sigma, epsilon)
        largest = max(found[0][0] for found in screened)
        best = tuple(
            found[0][1]
            if found[0][0] < largest or len(found) == 1
            else min(
                (colour.delta(self.gram, sigma, epsilon, direction, p, self.cells), p) for _, p in found[:2]
            )[1]
            for direction, found in zip(self.directions, screened, strict=True)
        )
        return replace(self, colours=tuple((p,) for p in best))

    def shortlisted(self, sigma: float, epsilon: float) -> Colour:
        """The numbers of colours that come near the best one on a coarse grid."""
        near = tuple(
            tuple(sorted(p for value, p in found if value <= _RIVAL * found[0][0]))
            for found in self._screened(sigma, epsilon)
        )
        return replace(self, colours=near)

    def covers(self, other: Curve) -> bool:
        """Whether this is the same choice of colours."""
        return self == other

    def forecast(self, known: Sequence[float], sigma: float, epsilon: float) -> float:
        """By the values at the noises evaluated last, the first slope by the coarse grid."""
        return _interpolated(self, replace(self, cells=colour.SCREEN_CELLS), known, sigma, epsilon)

    def _screened(self, sigma: float, epsilon: float) -> list[list[tuple[float, int]]]:
        """For each direction, delta on a coarse grid and the number of colours, the best first."""
        return [
            sorted(
                (colour.delta(self.gram, sigma, epsilon, direction, p, colour.SCREEN_CELLS), p)
                for p in colours
            )
            for direction, colours in zip(self.directions, self.colours, strict=True)
        ]

    def _larger(self, bound: Callable[[Direction, Sequence[int], int], float]) -> float:
        colours = dict(zip(self.directions, self.colours, strict=True))

        def one(direction: Direction, cells: int) -> float:
            return bound(direction, colours[direction], cells)

        return _larger(self.directions, self.cells, one)


@dataclass(frozen=True, slots=True)
class RandomAllocation:
    """The exact privacy loss distribution of C = I, rounded outward."""

    batches: int
    epochs: int
    directions: tuple[Direction, ...]
    cells: int = CELLS
    source: ClassVar[Source] = "random-allocation"

    def delta(self, sigma: float, epsilon: float) -> Answer:
        """The larger of the directions."""
        found = _larger(self.directions, self.cells, lambda d, n: self._pld(sigma, d, n).delta(epsilon))
        return Answer(max(found, _DELTA_FLOOR))

    def epsilon(self, sigma: float, delta: float) -> Answer:
        """The larger of the directions."""
        return Answer(
            _larger(self.directions, self.cells, lambda d, cells: self._pld(sigma, d, cells).epsilon(delta))
        )

    def focused(self, sigma: float, epsilon: float) -> RandomAllocation:  # noqa: ARG002  as the others
        """Itself, on a coarse grid."""
        return replace(self, cells=colour.SCREEN_CELLS)

    def sharpened(self, sigma: float, epsilon: float) -> RandomAllocation:  # noqa: ARG002  as the others
        """Itself, on the full grid."""
        return replace(self, cells=CELLS)

    def shortlisted(self, sigma: float, epsilon: float) -> RandomAllocation:  # noqa: ARG002  as the others
        """Itself."""
        return self

    def covers(self, other: Curve) -> bool:
        """Whether this is the same curve."""
        return self == other

    def forecast(self, known: Sequence[float], sigma: float, epsilon: float) -> float:
        """By the values at the noises evaluated last, the first slope by the coarse grid."""
        return _interpolated(self, replace(self, cells=colour.SCREEN_CELLS), known, sigma, epsilon)

    def _pld(self, sigma: float, direction: Direction, cells: int) -> RandomAllocationPLD:
        return RandomAllocationPLD(self.batches, sigma, direction, epochs=self.epochs, cells=cells)


def _larger(directions: tuple[Direction, ...], cells: int, bound: Callable[[Direction, int], float]) -> float:
    """The largest bound over directions on a grid of `cells`, computed no finer than it matters."""
    rough = {direction: bound(direction, colour.SCREEN_CELLS) for direction in directions}
    found = 0.0
    for direction in sorted(directions, key=lambda d: -rough[d]):
        if rough[direction] > found:
            found = max(found, bound(direction, cells))
    return max(found, TINIEST)


def _interpolated(curve: Curve, coarse: Curve, known: Sequence[float], sigma: float, epsilon: float) -> float:
    """log delta, by Lagrange's polynomial through the last values; by the coarse slope while there is one.

    The logarithm of -log delta is nearly linear in log sigma, as it is for a Gaussian tail.
    """
    at = math.log(sigma)
    nodes = [math.log(noise) for noise in known[-_POINTS:]]
    values = [_tail(curve.delta(noise, epsilon).value) for noise in known[-_POINTS:]]
    if len(nodes) == 1:
        near, far = (_tail(coarse.delta(known[0] * scale, epsilon).value) for scale in (1.0, _SLOPE_STEP))
        guess = values[0] + (far - near) * (at - nodes[0]) / math.log(_SLOPE_STEP)
    else:
        guess = math.fsum(
            value * math.prod((at - other) / (node - other) for j, other in enumerate(nodes) if j != i)
            for i, (node, value) in enumerate(zip(nodes, values, strict=True))
        )
    return -math.exp(min(guess, _TAIL_MAX))


def _tail(delta: float) -> float:
    """log(-log delta)."""
    return math.log(max(-math.log(delta), _TAIL_MIN))
