"""The comparison of mechanisms at equal privacy: who stands in it and what each row says.

Every contender is calibrated to mu = 1 for one contribution of 1, with its true sensitivity. The rows
marked "as published" carry the sensitivity that double precision finds for the log-perturbed family
instead; they are not private at the stated mu and stand there to show what the published figures assumed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Final

import numpy as np

from evertally.counters.log_perturbed import LogPerturbed
from evertally.counters.rational import Rational
from evertally.counters.rivals import (
    BinaryTree,
    DoublingTrick,
    FixedBudget,
    Hybrid,
    IndependentNoise,
    MatrixHybrid,
    MatrixRival,
    PowerPerturbation,
    Rival,
    SmoothBinary,
    SquareRoot,
)
from evertally.counters.yardstick import yardstick, yardstick_variance
from evertally.validation import positive_integer, positive_real, real

__all__ = [
    "PUBLISHED_ALPHA",
    "PUBLISHED_RATIOS",
    "Contender",
    "Row",
    "comparison_rows",
    "contenders",
    "double_precision_norm_squared",
    "largest_step",
    "published_ratio",
    "square_root_bound",
]

PUBLISHED_ALPHA: Final = 0.01
"""The alpha that arXiv 2506.15018 recommends and measures."""
PUBLISHED_RATIOS: Final[dict[str, float]] = {"δ=0": 0.0, "δ=-γ": 1.0, "δ=-6γ/5": 1.2}
"""Its three choices of delta = -ratio * gamma."""
_STRAW_MAN: Final = 0.05
_SMOOTH_FROM: Final = 16
_SMOOTH_TO: Final = 1 << 10
_SMALLEST_ANGLE: Final = 2.0**-53
_LEGENDRE_PANELS: Final = 64


@dataclass(frozen=True, slots=True)
class Contender:
    """One mechanism of the comparison.

    Attributes:
        key: short name, unique.
        label: name in tables.
        rival: the mechanism for a stream of t ticks; the same for every t where `unbounded`.
        unbounded: whether one instance serves a stream of unknown length.
        claimed_norm_squared: sensitivity^2 assumed by a row "as published" in place of the true one, or None.
        jumps: whether the variance jumps from tick to tick, so that figures show the quoted one.
    """

    key: str
    label: str
    rival: Callable[[int], Rival]
    unbounded: bool
    claimed_norm_squared: float | None = None
    jumps: bool = False

    def variance(self, t: int) -> float:
        """What the table quotes for tick t (a mechanism of known horizon is made for exactly t)."""
        return self._claimed(self.rival(t).quoted_variance(t))

    def curve(self, t: int) -> float:
        """What a figure draws at tick t: the variance at t itself unless it jumps."""
        return self.variance(t) if self.jumps else self._claimed(self.rival(t).variance(t))

    def _claimed(self, variance: float) -> float:
        if self.claimed_norm_squared is None:
            return variance
        rival = self.rival(1)
        return variance * self.claimed_norm_squared / rival.variance(1)


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the table; variances and ratios in the order of the ticks asked for.

    Attributes:
        contender: the mechanism.
        variances: variance at unit privacy at each tick.
        ratios: the same over V_t^2.
        largest_step: max V(t+1)/V(t) for 16 <= t < 1024.
    """

    contender: Contender
    variances: tuple[float, ...]
    ratios: tuple[float, ...]
    largest_step: float


def comparison_rows(ticks: tuple[int, ...]) -> Iterator[Row]:
    """The rows of the table at the given ticks, in the order of `contenders`, each when it is computed."""
    for t in ticks:
        positive_integer("ticks", t)
    yard = [yardstick_variance(t) for t in ticks]
    for contender in contenders():
        variances = tuple(contender.variance(t) for t in ticks)
        ratios = tuple(v / y for v, y in zip(variances, yard, strict=True))
        yield Row(contender, variances, ratios, largest_step(contender.rival(_SMOOTH_TO)))


def largest_step(rival: Rival) -> float:
    """max V(t+1)/V(t) for 16 <= t < 1024: near 1 for a smooth mechanism."""
    if isinstance(rival, MatrixRival):
        power = np.cumsum(rival.factorization.noise_coefficients(_SMOOTH_TO) ** 2)[_SMOOTH_FROM - 1 :]
        return float((power[1:] / power[:-1]).max())
    variances = [rival.variance(t) for t in range(_SMOOTH_FROM, _SMOOTH_TO + 1)]
    return max(after / before for before, after in pairwise(variances))


def double_precision_norm_squared(alpha: float, ratio: float) -> float:
    """||R||^2 of the log-perturbed R as far as double precision sees it: angles above 2^-53 only.

    (1/pi) int |f_R(e^{i th})|^2 dth over [2^-53, pi]. The rest of the integral, most of it for small
    alpha, lies at angles that 1 - e^{i th} cannot tell from 0 in double precision. These values reproduce
    the published variances, which is how they are used here and nowhere else.
    """
    gamma = -0.5 - positive_real("alpha", alpha)
    delta = -real("ratio", ratio, low=0.0) * gamma
    node, weight = np.polynomial.legendre.leggauss(16)
    edges = np.linspace(math.log(_SMALLEST_ANGLE), math.log(math.pi), _LEGENDRE_PANELS + 1)
    half = 0.5 * np.diff(edges)[:, None]
    angle = np.exp(edges[:-1, None] + half * (1.0 + node))
    chord = 2.0 * np.sin(angle / 2.0)
    log_a = np.log(-np.log(chord) + 0.5j * (math.pi - angle)) - 1j * angle
    log_square = 2.0 * gamma * log_a.real + 2.0 * delta * np.log(2.0 * np.abs(log_a)) - np.log(chord)
    return float((half * weight * angle * np.exp(log_square)).sum()) / math.pi


def square_root_bound(n: int) -> float:
    """1 + ln(4n-3)/pi, the bound on V_n that the published table divides by, next to V_t itself at t."""
    return 1.0 + math.log(4.0 * positive_integer("n", n) - 3.0) / math.pi


def published_ratio(ratio: float, t: int, known: int) -> float:
    """Variance at t as published over that of the square root made for `known` ticks, as published."""
    mechanism = LogPerturbed(PUBLISHED_ALPHA, ratio)
    claimed = double_precision_norm_squared(PUBLISHED_ALPHA, ratio)
    return claimed * mechanism.noise_power(t) / (square_root_bound(known) * yardstick(t))


@cache
def contenders() -> tuple[Contender, ...]:
    """All mechanisms, known horizons first, then unbounded ones."""
    return (*_known_horizon(), *_rational(), *_log_perturbed(), *_older())


def _known_horizon() -> Iterator[Contender]:
    yield Contender(
        "sqrt", "square root, T=t known", lambda t: MatrixRival(SquareRoot(t), "square root"), False
    )
    yield Contender("smooth-binary", "smooth binary, n=t known", SmoothBinary, False)
    yield Contender("tree", "binary tree, n=t known (mean)", BinaryTree, False, jumps=True)


def _rational() -> Iterator[Contender]:
    for name, note in (("W32", ", the default"), ("H24", ""), ("H40", ""), ("H48", "")):
        rival = MatrixRival(Rational.preset(name), f"rational {name}")
        yield _always(name, f"rational {name}{note}", rival)


def _log_perturbed() -> Iterator[Contender]:
    for text, ratio in PUBLISHED_RATIOS.items():
        rival = MatrixRival(LogPerturbed(PUBLISHED_ALPHA, ratio), f"log-perturbed α=.01 {text}, true")
        yield _always(f"log-{ratio:g}", rival.label, rival)
        claimed = double_precision_norm_squared(PUBLISHED_ALPHA, ratio)
        label = f"log-perturbed α=.01 {text}, as published"
        yield _always(f"log-{ratio:g}-published", label, rival, claimed_norm_squared=claimed)
    for text, ratio in PUBLISHED_RATIOS.items():
        constant = LogPerturbed(PUBLISHED_ALPHA, ratio, memory="constant")
        rival = MatrixRival(constant, f"log-perturbed α=.01 {text}, constant memory")
        yield _always(f"log-{ratio:g}-constant", rival.label, rival)
    rival = MatrixRival(LogPerturbed(1.0, 1.2), "log-perturbed α=1 δ=-6γ/5")
    yield _always("log-default", rival.label, rival)


def _older() -> Iterator[Contender]:
    across = MatrixHybrid(LogPerturbed(1.0, 1.2), "paper's hybrid (worst of segment)")
    yield _always("paper-hybrid", across.name, across, jumps=True)
    yield _always("doubling", "doubling trick", DoublingTrick())
    yield _always("hybrid", "hybrid of Chan et al. (mean)", Hybrid(), jumps=True)
    power = MatrixRival(PowerPerturbation(_STRAW_MAN), f"power perturbation a={_STRAW_MAN}")
    yield _always("power", power.label, power)
    yield _always("independent", "independent noise per tick", IndependentNoise())
    yield _always("fixed-budget", "fixed budget over all releases", FixedBudget())


def _always(
    key: str, label: str, rival: Rival, *, claimed_norm_squared: float | None = None, jumps: bool = False
) -> Contender:
    return Contender(key, label, lambda _t: rival, True, claimed_norm_squared, jumps)
