"""How a record takes part in the rows of a mechanism: public, typed, never guessed.

Each type below is a promise of the sampler that feeds the mechanism. Accounting one sampler and running
another is the commonest way to publish a false epsilon, so every entry point takes one of these as a
required argument and none of their fields has a default.
"""

from __future__ import annotations

from dataclasses import dataclass

from evertally.errors import InvalidParameter
from evertally.validation import positive_integer, real

__all__ = ["BallsInBins", "CyclicPoisson", "EachEpochOnce", "Participation", "Poisson"]

ROWS_MAX = 2**31


@dataclass(frozen=True, slots=True)
class BallsInBins:
    """Each record draws one of `batches` bins, uniformly and independently of all others, once for ever.

    A record of bin i takes part in rows i, i + batches, ..., i + (epochs - 1) batches: the same bin in
    every epoch. A shuffle into batches of equal size is not this scheme (it correlates the records), and
    neither is a fresh draw in every epoch.

    Attributes:
        batches: bins, that is rows in an epoch; >= 1, a public constant.
        epochs: passes over the bins; >= 1, a public constant.
    """

    batches: int
    epochs: int

    def __post_init__(self) -> None:
        _check_rows(self.batches, self.epochs)

    @property
    def rows(self) -> int:
        """Rows of the mechanism in all."""
        return self.batches * self.epochs


@dataclass(frozen=True, slots=True)
class EachEpochOnce:
    """Each record takes part once in every epoch, in a row that an adversary may know: no amplification.

    The row is the same in every epoch, so two participations are `batches` rows apart.

    Attributes:
        batches: rows in an epoch, >= 1.
        epochs: passes, >= 1.
    """

    batches: int
    epochs: int

    def __post_init__(self) -> None:
        _check_rows(self.batches, self.epochs)

    @property
    def rows(self) -> int:
        """Rows of the mechanism in all."""
        return self.batches * self.epochs


@dataclass(frozen=True, slots=True)
class Poisson:
    """Each record takes part in each row with one probability, independently of everything else.

    Offered for comparison, with the identity strategy only.

    Attributes:
        sampling_probability: in (0, 1].
        rows: rows of the mechanism, >= 1.
    """

    sampling_probability: float
    rows: int

    def __post_init__(self) -> None:
        _check_probability(self.sampling_probability)
        positive_integer("rows", self.rows, high=ROWS_MAX)


@dataclass(frozen=True, slots=True)
class CyclicPoisson:
    """The records are split, once, into `cycle` groups; row n samples group n mod cycle by Poisson.

    A strategy with at most `cycle` bands never lets two participations overlap in one row's noise, so a
    record sees ceil(rows / cycle) independent sampled Gaussians (arXiv 2306.08153, theorem 4).

    Attributes:
        sampling_probability: of a record of the row's group, in (0, 1].
        rows: rows of the mechanism, >= 1.
        cycle: groups, >= 1 and at least the strategy's bands.
    """

    sampling_probability: float
    rows: int
    cycle: int

    def __post_init__(self) -> None:
        _check_probability(self.sampling_probability)
        positive_integer("rows", self.rows, high=ROWS_MAX)
        positive_integer("cycle", self.cycle, high=ROWS_MAX)


Participation = BallsInBins | EachEpochOnce | Poisson | CyclicPoisson


def _check_rows(batches: int, epochs: int) -> None:
    positive_integer("batches", batches, high=ROWS_MAX)
    positive_integer("epochs", epochs, high=ROWS_MAX)
    if batches * epochs > ROWS_MAX:
        raise InvalidParameter("batches * epochs", batches * epochs, f"at most {ROWS_MAX} rows")


def _check_probability(value: float) -> None:
    if not real("sampling_probability", value, low=0.0, high=1.0) > 0.0:
        raise InvalidParameter("sampling_probability", value, "a number in (0, 1]")
