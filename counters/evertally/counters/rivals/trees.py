"""Mechanisms on binary trees, for a known number of ticks."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from evertally.counters.factorization import NoiseSource
from evertally.counters.rivals.protocol import FloatArray, Normals
from evertally.validation import positive_integer

__all__ = ["BinaryTree", "SmoothBinary", "tree_noise"]


def tree_noise(normals: Normals, ticks: int, scale: float) -> Iterator[FloatArray]:
    """Noise of the prefix sums 1 .. ticks of a binary tree whose nodes carry noise of size `scale`.

    Tick t closes the node of level ctz(t) and adds up the nodes of the one-bits of t.
    """
    nodes: dict[int, FloatArray] = {}
    for t in range(1, ticks + 1):
        closing = (t & -t).bit_length() - 1
        nodes = {level: node for level, node in nodes.items() if level > closing}
        nodes[closing] = scale * normals.one()
        yield np.sum(list(nodes.values()), axis=0)


@dataclass(frozen=True, slots=True)
class BinaryTree:
    """The binary tree mechanism for a known number of ticks.

    An item is in log2(n) + 1 nodes, which share the budget evenly; prefix t is a sum of popcount(t) nodes.

    Reference: Dwork, Naor, Pitassi and Rothblum, STOC 2010; Chan, Shi and Song, ACM TISSEC 14(3) 2011,
    Gaussian noise in place of Laplace.

    Attributes:
        ticks: number of ticks n, known in advance.
    """

    ticks: int

    def __post_init__(self) -> None:
        positive_integer("ticks", self.ticks)

    @property
    def name(self) -> str:
        """Name in tables."""
        return "binary tree, n known (mean)"

    @property
    def horizon(self) -> int:
        """The known number of ticks."""
        return self.ticks

    @property
    def levels(self) -> int:
        """Nodes an item is in."""
        return (self.ticks - 1).bit_length() + 1

    def variance(self, t: int) -> float:
        """(log2 n + 1) popcount(t)."""
        return float(self.levels * positive_integer("t", t, high=self.ticks).bit_count())

    def quoted_variance(self, t: int) -> float:
        """Mean over the ticks 0 .. t-1, the same for the ticks 1 .. t but for the root: levels log2(t)/2."""
        positive_integer("t", t, high=self.ticks)
        return self.levels * math.log2(t) / 2.0

    def noise(self, source: NoiseSource) -> Iterator[FloatArray]:
        """One node a tick, popcount(t) nodes a release."""
        return tree_noise(Normals(source), self.ticks, math.sqrt(self.levels))


@dataclass(frozen=True, slots=True)
class SmoothBinary:
    """The smooth binary mechanism: only leaves whose label has as many ones as zeros are used.

    With h even and C(h, h/2) >= n + 1, tick t publishes the sum of the left siblings along the path to the
    t-th balanced leaf: always h/2 nodes, and an item is in h/2 nodes, so every release has variance h^2/4.

    Reference: Andersson and Pagh, arXiv 2306.09666.

    Attributes:
        ticks: number of ticks n, known in advance.
    """

    ticks: int

    def __post_init__(self) -> None:
        positive_integer("ticks", self.ticks)

    @property
    def name(self) -> str:
        """Name in tables."""
        return "smooth binary, n known"

    @property
    def horizon(self) -> int:
        """The known number of ticks."""
        return self.ticks

    @property
    def height(self) -> int:
        """Smallest even h with C(h, h/2) >= n + 1."""
        height = 2
        while math.comb(height, height // 2) < self.ticks + 1:
            height += 2
        return height

    def variance(self, t: int) -> float:
        """h^2/4 at every tick."""
        positive_integer("t", t, high=self.ticks)
        return self.height**2 / 4.0

    def quoted_variance(self, t: int) -> float:
        """The variance."""
        return self.variance(t)

    def noise(self, source: NoiseSource) -> Iterator[FloatArray]:
        """Walk the balanced labels in order; a node is drawn when its prefix first appears."""
        normals = Normals(source)
        height = self.height
        scale = math.sqrt(height / 2.0)
        label = (1 << (height // 2)) - 1
        nodes: dict[int, FloatArray] = {}
        for _ in range(self.ticks):
            following = _next_balanced(label)
            changed = (label ^ following).bit_length()
            nodes = {bit: node for bit, node in nodes.items() if bit >= changed}
            for bit in range(changed):
                if following >> bit & 1:
                    nodes[bit] = scale * normals.one()
            label = following
            yield np.sum(list(nodes.values()), axis=0)


def _next_balanced(label: int) -> int:
    """The next larger integer with as many one-bits."""
    lowest = label & -label
    carried = label + lowest
    return carried | (((label ^ carried) >> 2) // lowest)
