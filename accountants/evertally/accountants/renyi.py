"""The Renyi accountant: the least of several valid bounds on every order, and what follows from them.

For the remove direction, per order: the banded sweep at several widths (with the residue of what it cuts
off), exact sums for the lowest orders or few bins, the colour bound as a Renyi line, and the Gaussian without
amplification. For the add direction: exact for C = I, else the colour line, the closed form and the Gaussian.
Each is an upper bound (docs/proofs/renyi.md, truncation.md, domination.md), so their minimum is one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from evertally.accountants.banded_moments import banded_log_moments, flush_order_max, sweep_operations
from evertally.accountants.bound import Direction
from evertally.accountants.conversion import (
    SMALLEST_DELTA,
    epsilon_from_moments,
    fractional_moment,
    log_delta_from_moments,
)
from evertally.accountants.gram import DENSE_BATCHES_MAX, Gram
from evertally.accountants.negative_moments import allocation_add_log_moments
from evertally.accountants.participation import BallsInBins
from evertally.accountants.small_moments import (
    diagonal_log_moments,
    direct_log_moments,
    enumerated_log_moments,
    enumeration_terms,
)
from evertally.accountants.strategies import Strategy
from evertally.accountants.truncation import Band, band_of
from evertally.errors import InvalidParameter
from evertally.validation import one_of, positive_real, real

__all__ = [
    "ORDER_MAX",
    "RenyiResult",
    "TIME_BUDGET_S",
    "delta",
    "epsilon",
    "ledger_renyi",
    "log_moments",
    "renyi_divergence",
    "scaled_entry",
]

FloatArray = NDArray[np.float64]

ORDER_MAX = 1024
"""Largest order that can be asked for."""
TIME_BUDGET_S = 0.1
"""Default seconds for one sweep at one noise multiplier; turned into operations, so results never depend on load."""
CONVERSION_ORDER_MAX = 256
_OPERATIONS_PER_S = 3e8
_WIDTHS = (2, 3, 4, 6, 8, 12, 16)
_REACH_MIN = 6
_SCALED_MAX = 1e12
_FEW_BATCHES = 12
_ENUMERATED_MAX = 200_000


@dataclass(frozen=True, slots=True)
class RenyiResult:
    """A converted figure.

    Attributes:
        value: epsilon or delta.
        order: the integer order that gave it.
        on_edge: whether that is the largest order computed, so that larger ones might do better.
    """

    value: float
    order: int
    on_edge: bool


def renyi_divergence(
    strategy: Strategy,
    participation: BallsInBins,
    noise_multiplier: float,
    order: float,
    direction: Direction = "remove",
    *,
    time_budget_s: float = TIME_BUDGET_S,
) -> float:
    """Upper bound on the Renyi divergence of a real order > 1, natural logarithm.

    Args:
        strategy: the matrix C.
        participation: one bin per record.
        noise_multiplier: sigma over the clip norm; C is not normalised unless the strategy says so.
        order: 1 < order <= 1024. Between integers (a - 1) R_a is interpolated, which is an upper bound.
        direction: "remove" (the record is in P) or "add".
        time_budget_s: work allowed for one sweep; exact orders within it, valid bounds beyond.

    Raises:
        InvalidParameter: order <= 1 or > 1024, or another argument outside its range.

    Guarantees:
        - never below the exact divergence of the dominating pair, up or down the order grid.

    Reference: arXiv 2601.21636; docs/proofs/renyi.md.

    >>> from evertally.accountants.strategies import Identity
    >>> round(renyi_divergence(Identity(), BallsInBins(batches=10, epochs=1), 1.0, 2), 10)
    0.1585650787
    """
    order = real("order", order)
    if not 1.0 < order <= ORDER_MAX:
        raise InvalidParameter("order", order, f"a number above 1 and at most {ORDER_MAX}")
    one_of("direction", direction, ("remove", "add"))
    gram = strategy.gram(participation)
    moments = log_moments(gram, noise_multiplier, math.ceil(order), direction, time_budget_s)
    return fractional_moment(moments, order) / (order - 1.0) * (1.0 + 2.0**-51)


def ledger_renyi(
    strategy: Strategy, participation: BallsInBins, noise_multiplier: float, order: float
) -> float:
    """The Renyi charge of one order for a ledger: the larger of valid remove and add bounds.

    Charges of one order add up over mechanisms; conversions at different orders do not.
    """
    return max(
        renyi_divergence(strategy, participation, noise_multiplier, order, "remove"),
        renyi_divergence(strategy, participation, noise_multiplier, order, "add"),
    )


def delta(
    gram: Gram, sigma: float, epsilon: float, direction: Direction, *, time_budget_s: float = TIME_BUDGET_S
) -> RenyiResult:
    """Upper bound on delta at `epsilon` >= 0; never 0."""
    for order_max in _order_caps():
        moments = log_moments(gram, sigma, order_max, direction, time_budget_s)
        log_delta, order = log_delta_from_moments(moments, epsilon)
        if order < order_max - 1:
            break
    return RenyiResult(max(math.exp(log_delta), SMALLEST_DELTA), order, order >= CONVERSION_ORDER_MAX)


def epsilon(
    gram: Gram, sigma: float, delta: float, direction: Direction, *, time_budget_s: float = TIME_BUDGET_S
) -> RenyiResult:
    """Upper bound on epsilon at `delta`; >= 0."""
    for order_max in _order_caps():
        moments = log_moments(gram, sigma, order_max, direction, time_budget_s)
        value, order = epsilon_from_moments(moments, delta)
        if order < order_max - 1:
            break
    return RenyiResult(value, order, order >= CONVERSION_ORDER_MAX)


def log_moments(
    gram: Gram, sigma: float, order_max: int, direction: Direction, time_budget_s: float = TIME_BUDGET_S
) -> FloatArray:
    """(a - 1) R_a, rounded up, of orders a = 0..order_max; shape (order_max + 1,), entries 0 and 1 are 0."""
    operations = positive_real("time_budget_s", time_budget_s, high=1e6) * _OPERATIONS_PER_S
    scaled_entry(gram.maximum, sigma)
    compute = _remove_moments if direction == "remove" else _add_moments
    return compute(gram, sigma, order_max, operations)


def scaled_entry(entry: float, sigma: float) -> float:
    """entry / sigma^2, rounded up; refuses noise so small or so large that nothing can be said."""
    sigma = positive_real("noise_multiplier", sigma, high=1e9)
    scaled = entry / sigma / sigma
    if not scaled <= _SCALED_MAX:
        raise InvalidParameter("noise_multiplier", sigma, f"at least {math.sqrt(entry / _SCALED_MAX):.3g}")
    return scaled * (1.0 + 2.0**-50)


def _order_caps() -> list[int]:
    caps = [8]
    while caps[-1] < CONVERSION_ORDER_MAX:
        caps.append(2 * caps[-1])
    return caps


def _gaussian_moments(scaled: float, order_max: int) -> FloatArray:
    orders = np.arange(order_max + 1, dtype=np.float64)
    moments = orders * (orders - 1.0) / 2.0 * scaled * (1.0 + 2.0**-50)
    moments[:2] = 0.0
    return moments


@lru_cache(maxsize=1024)
def _remove_moments(gram: Gram, sigma: float, order_max: int, operations: float) -> FloatArray:
    scale = scaled_entry(1.0, sigma)
    best = _gaussian_moments(scaled_entry(gram.maximum, sigma), order_max)
    batches = gram.batches
    if batches == 1:
        return best
    if not gram.is_identity and batches <= DENSE_BATCHES_MAX:
        exact = 2 if batches > 1024 else (3 if batches > 128 else 4)
        _lower(best, direct_log_moments(gram.matrix * scale, min(order_max, exact)))
    if batches <= _FEW_BATCHES and not gram.is_identity and enumeration_terms(batches, order_max) <= _ENUMERATED_MAX:
        _lower(best, enumerated_log_moments(gram.matrix * scale, order_max))
        return best
    for width in _widths(gram):
        band = _band(gram, width)
        reach = min(order_max, _reach(batches, width, band.cyclic, operations))
        if width == 1:
            moments = diagonal_log_moments(band.diagonals[:, 0] * scale, reach)
        elif _reach(batches, width, band.cyclic, operations) >= _REACH_MIN:
            moments = banded_log_moments(band.diagonals * scale, reach, cyclic=band.cyclic)
        else:
            continue
        _lower(best, moments + _gaussian_moments(band.residue * scale, reach))
    if not gram.is_identity:
        for colouring in _colourings(gram):
            _lower(best, _colour_moments(colouring, batches, scale, order_max, "remove"))
    return best


@lru_cache(maxsize=1024)
def _add_moments(gram: Gram, sigma: float, order_max: int, operations: float) -> FloatArray:
    scale = scaled_entry(1.0, sigma)
    best = _gaussian_moments(scaled_entry(gram.maximum, sigma), order_max)
    batches = gram.batches
    if batches == 1:
        return best
    if gram.is_identity:
        _lower(best, allocation_add_log_moments(batches, gram.maximum * scale, order_max))
        return best
    _lower(best, _closed_add_moments(gram, scale, order_max))
    for colouring in _colourings(gram):
        _lower(best, _colour_moments(colouring, batches, scale, order_max, "add"))
    return best


def _closed_add_moments(gram: Gram, scale: float, order_max: int) -> FloatArray:
    """tr G / (2 b s^2) + (a - 1) sum G / (2 b^2 s^2) as R_a: valid, without any amplification of the first term."""
    orders = np.arange(order_max + 1, dtype=np.float64)
    mean_diagonal = float(gram.diagonal.mean())
    mean = float(gram.entries.mean())
    divergence = scale * (mean_diagonal + (orders - 1.0) * mean) / 2.0
    moments = (orders - 1.0) * divergence * (1.0 + 2.0**-30)
    moments[:2] = 0.0
    return moments


def _lower(best: FloatArray, moments: FloatArray) -> None:
    np.minimum(best[: moments.size], moments, out=best[: moments.size])


def _reach(batches: int, width: int, cyclic: bool, operations: float) -> int:
    """Largest order that a sweep of this width affords."""
    if width == 1:
        return ORDER_MAX
    order = 2
    while (
        order < min(CONVERSION_ORDER_MAX, flush_order_max(batches))
        and sweep_operations(batches, width, order + 1, cyclic=cyclic) <= operations
    ):
        order += 1
    return order


@lru_cache(maxsize=32)
def _widths(gram: Gram) -> tuple[int, ...]:
    """Band widths worth trying: the whole band, and a few narrower ones."""
    if gram.is_identity:
        return (1,)
    cyclic = _cyclic(gram)
    most = (gram.batches + 1) // 2 if cyclic else gram.batches
    widths = {1}
    for width in sorted({*_WIDTHS, most}):
        if width > most or width > _WIDTHS[-1]:
            break
        widths.add(width)
        if _band(gram, width).residue == 0.0:
            full = width
            while full > 1 and _band(gram, full - 1).residue == 0.0:
                full -= 1
            widths.add(full)
            return tuple(sorted(w for w in widths if w <= full))
    return tuple(sorted(widths))


def _cyclic(gram: Gram) -> bool:
    return gram.epochs > 1 or (gram.is_circulant and not gram.is_identity)


@lru_cache(maxsize=256)
def _band(gram: Gram, width: int) -> Band:
    return band_of(gram, width, cyclic=_cyclic(gram))


_Colouring = tuple[tuple[int, int, float, float], ...]


@lru_cache(maxsize=32)
def _colourings(gram: Gram) -> tuple[_Colouring, ...]:
    """Colourings for the colour line: few colours, or as many as the band is wide, moved to a near divisor."""
    batches = gram.batches
    wanted = (1, 2, 4, 8, 16, 32, _widths(gram)[-1])
    return tuple(_colouring(gram, colours) for colours in sorted({_near_divisor(batches, w) for w in wanted}))


def _near_divisor(batches: int, colours: int) -> int:
    return next((c for c in range(colours, 2 * colours + 1) if batches % c == 0), min(colours, batches))


def _colouring(gram: Gram, colours: int) -> _Colouring:
    """(bins in all, class size, max G_ii, max G_ij within a class) for each size of class.

    Classes of one size share the largest entries among them: fewer integrals, and entries may only rise.
    """
    by_size: dict[int, list[tuple[float, float]]] = {}
    for size, peak, residue in gram.classes(colours):
        by_size.setdefault(size, []).append((peak, residue))
    return tuple(
        (size * len(found), size, max(peak for peak, _ in found), max(residue for _, residue in found))
        for size, found in by_size.items()
    )


def _colour_moments(
    colouring: _Colouring, batches: int, scale: float, order_max: int, direction: Direction
) -> FloatArray:
    """The moment is at most the classes' average; a class is random allocation plus one common Gaussian."""
    lines = []
    for bins, size, peak, residue in colouring:
        spread = max(peak - residue, 0.0) * scale * (1.0 + 2.0**-50)
        if direction == "remove":
            allocation = diagonal_log_moments(np.full(size, spread), order_max)
        else:
            allocation = allocation_add_log_moments(size, spread, order_max)
        lines.append(allocation + _gaussian_moments(residue * scale, order_max) + math.log(bins / batches))
    averaged = np.logaddexp.reduce(np.array(lines), axis=0)
    averaged = np.maximum(averaged, 0.0) * (1.0 + 2.0**-49) + 2.0**-49
    averaged[:2] = 0.0
    return np.asarray(averaged)
