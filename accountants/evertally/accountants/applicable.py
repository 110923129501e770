"""Which bounds apply to a mechanism: its upper curves and its certified lower bound."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal, get_args

from evertally.accountants.allocation_curves import Colour, RandomAllocation
from evertally.accountants.bound import Direction, Source
from evertally.accountants.curves import Conditional, Curve, Gaussian
from evertally.accountants.floor import Floor
from evertally.accountants.lower_triangular import LowerTriangular
from evertally.accountants.participation import (
    BallsInBins,
    CyclicPoisson,
    EachEpochOnce,
    Participation,
    Poisson,
)
from evertally.accountants.poisson_curve import PoissonRenyi
from evertally.accountants.renyi_curve import Renyi
from evertally.accountants.strategies import Identity, Strategy, bands
from evertally.errors import InvalidParameter, UnsupportedMechanism
from evertally.validation import one_of, positive_real

__all__ = ["Directions", "applicable", "left_out"]

Directions = Literal["both", "remove", "add"]

_CC_NOT_ASKED = "conditional composition left out: it takes minutes of its own; ask for it by name, 'cc'"


def applicable(
    strategy: Strategy,
    participation: Participation,
    bounds: Collection[Source] | None,
    direction: Directions,
    time_budget_s: float,
    cc_time_budget_s: float,
) -> tuple[tuple[Curve, ...], Floor]:
    """The upper bounds asked for by name (None: all that apply but "cc"), and the lower bound.

    Raises:
        InvalidParameter: a value is out of its range, or a bound does not apply to this mechanism.
        UnsupportedMechanism: no valid bound is known for the combination.
    """
    one_of("direction", direction, get_args(Directions))
    directions: tuple[Direction, ...] = ("remove", "add") if direction == "both" else (direction,)
    found, floor = _offered(strategy, participation, directions, time_budget_s, cc_time_budget_s)
    offered = {curve.source: curve for curve in found}
    if bounds is None:
        return tuple(curve for curve in found if curve.source != "cc"), floor
    if isinstance(bounds, str) or not bounds:
        raise InvalidParameter("bounds", bounds, "a non-empty set of " + ", ".join(offered))
    for name in bounds:
        one_of("bounds", name, tuple(offered))
    return tuple(curve for name, curve in offered.items() if name in bounds), floor


def _offered(
    strategy: Strategy,
    participation: Participation,
    directions: tuple[Direction, ...],
    time_budget_s: float,
    cc_time_budget_s: float,
) -> tuple[list[Curve], Floor]:
    """All bounds that apply, cheap and strong ones first, and the lower bound."""
    positive_real("time_budget_s", time_budget_s, high=1e6)
    positive_real("cc_time_budget_s", cc_time_budget_s, high=1e6)
    if isinstance(participation, BallsInBins):
        gram = strategy.gram(participation)
        curves: list[Curve] = [Gaussian(gram.maximum)]
        if gram.is_identity:
            curves.append(RandomAllocation(gram.batches, gram.epochs, directions))
        else:
            curves.append(Colour.of(gram, directions))
        curves.append(Renyi.of(gram, directions, time_budget_s))
        curves.append(Conditional(gram, directions, cc_time_budget_s))
        return curves, Floor(gram.maximum, gram, 0.0, directions, gram.lower_scope)
    if isinstance(participation, EachEpochOnce):
        gram = strategy.gram(BallsInBins(participation.batches, participation.epochs))
        floor = Floor(gram.maximum, None, gram.lower_diagonal, directions, gram.lower_scope)
        return [Gaussian(gram.maximum)], floor
    if isinstance(participation, Poisson):
        if not isinstance(strategy, Identity):
            raise UnsupportedMechanism("Poisson sampling is accounted for the identity strategy only")
        rows = participation.rows
        return _sampled(participation.sampling_probability, rows, 1.0, float(rows), directions)
    if isinstance(participation, CyclicPoisson):
        rounds = -(-participation.rows // participation.cycle)
        scheme = BallsInBins(participation.cycle, rounds)
        if bands(strategy, scheme) > participation.cycle:
            raise UnsupportedMechanism("cyclic Poisson sampling needs a strategy with at most `cycle` bands")
        whole = strategy.gram(scheme).maximum
        # no band reaches the next round: a round's sensitivity is one column's norm, and the largest counts;
        # of a Toeplitz matrix the first bin's columns are the largest, and all the same
        even = whole / rounds * (1.0 + 2.0**-50)
        square = strategy.largest_column() if isinstance(strategy, LowerTriangular) else even
        return _sampled(participation.sampling_probability, rounds, square, whole, directions)
    raise InvalidParameter("participation", type(participation).__name__, "a participation of this package")


def _sampled(
    probability_: float, rounds: int, square: float, whole: float, directions: tuple[Direction, ...]
) -> tuple[list[Curve], Floor]:
    """Rounds of squared sensitivity `square` each, at most `whole` together."""
    return [Gaussian(whole), PoissonRenyi(probability_, rounds, square)], Floor(
        whole, None, 0.0, directions, "none"
    )


def left_out(participation: Participation, bounds: Collection[Source] | None) -> tuple[str, ...]:
    """A note for each bound that applies and was not asked for by name."""
    return (_CC_NOT_ASKED,) if bounds is None and isinstance(participation, BallsInBins) else ()
