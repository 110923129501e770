"""A training run as one ledger line: the whole planned run, from the accountants, before its first step."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, ClassVar, Final

from evertally.accountants.budget.amounts import Amount, decimal_text, exact, nearest_double
from evertally.accountants.budget.canonical import canonical_json
from evertally.accountants.budget.counter_loss import keyed_stream_delta
from evertally.accountants.budget.loss import Loss
from evertally.accountants.budget.scopes import Scope
from evertally.errors import InvalidParameter, UnsupportedMechanism
from evertally.validation import integer

if TYPE_CHECKING:
    from evertally.accountants.participation import BallsInBins, Participation
    from evertally.accountants.strategies import Strategy

__all__ = ["TrainingLine"]

_STRATEGIES: Final = (
    "Identity",
    "BandedSquareRoot",
    "BandedInverseSquareRoot",
    "BandMF",
    "BandedInverseMF",
    "BLT",
)
_PARTICIPATIONS: Final = ("BallsInBins", "EachEpochOnce", "CyclicPoisson", "Poisson")
_OPTIMISED: Final = ("BandMF", "BandedInverseMF")
_CELLS_MAX: Final = 20_000_000


@dataclass(frozen=True, slots=True)
class TrainingLine:
    """A matrix-mechanism training run under its participation scheme.

    The cost reads no clock: the accountant's time budget is counted in operations, so a busy machine
    charges, and verifies, what an idle one does (test_a_training_lines_cost_reads_no_clock).

    In a renyi scope the line costs the larger of a valid remove and a valid add bound at the scope's
    order. With `own_delta` it enters through the sub-budget instead, with the accountant's best epsilon
    at that delta. Parameters that are not integers are decimal text.

    Guarantees:
        - the line holds every number of its strategy: an optimised one without "taps" gets them when the
          line is made, so that the run, the charge and a later check all speak of one matrix
          (test_an_optimised_strategy_travels_with_its_numbers).

    Attributes:
        strategy: {"kind": "BandedSquareRoot", "bands": 4}, the public names of `evertally.accountants`.
        participation: {"kind": "BallsInBins", "batches": 100, "epochs": 10}.
        noise_multiplier: noise standard deviation over the clip norm.
        own_delta: "" for the Renyi value; else the delta the line enters with.
        elements: keyed draws of a row, the model's coordinates: what the keyed stream differs from true
            randomness by is added to delta. 0 where the noise comes from elsewhere.
    """

    strategy: Mapping[str, object] | str
    participation: Mapping[str, object] | str
    noise_multiplier: Amount
    own_delta: Amount = ""
    elements: int = 0
    kind: ClassVar[str] = "training"

    def __post_init__(self) -> None:
        for field, kinds in (("strategy", _STRATEGIES), ("participation", _PARTICIPATIONS)):
            value = getattr(self, field)
            described = json.loads(value) if isinstance(value, str) else value
            if not isinstance(described, Mapping) or described.get("kind") not in kinds:
                raise InvalidParameter(f"line.{field}", type(value).__name__, "a kind: " + ", ".join(kinds))
            object.__setattr__(self, field, canonical_json(f"line.{field}", described))
        object.__setattr__(self, "strategy", self._written_out())
        text = decimal_text("line.noise_multiplier", self.noise_multiplier)
        object.__setattr__(self, "noise_multiplier", text)
        if self.own_delta != "":
            object.__setattr__(self, "own_delta", decimal_text("line.own_delta", self.own_delta))
        integer("line.elements", self.elements, low=0, high=2**63)

    def to_json(self) -> dict[str, object]:
        """Public parameters without floats, with the kind."""
        return {
            "kind": self.kind,
            "strategy": json.loads(str(self.strategy)),
            "participation": json.loads(str(self.participation)),
            "noise_multiplier": self.noise_multiplier,
            "own_delta": self.own_delta,
            **({"elements": self.elements} if self.elements else {}),
        }

    def mechanism(self) -> tuple[Strategy, Participation]:
        """The strategy and participation that are charged for: what a run of this line has to use."""
        accountants = importlib.import_module("evertally.accountants")
        return (
            _described(accountants, "line.strategy", str(self.strategy)),
            _described(accountants, "line.participation", str(self.participation)),
        )

    def loss(self, scope: Scope) -> Loss:
        """The run's loss, whatever is seen of it on the way.

        Raises UnsupportedMechanism where a unit may be replaced: each step would change by twice the clip.
        """
        if scope.adjacency != "add-remove":
            raise UnsupportedMechanism("a training run has a bound under adjacency add-remove only")
        accountants = importlib.import_module("evertally.accountants")
        strategy, participation = self.mechanism()
        # towards less noise: a larger loss
        sigma = nearest_double("line.noise_multiplier", self.noise_multiplier) * (1.0 - 2.0**-52)
        keyed = keyed_stream_delta(self.elements * participation.rows)
        if self.own_delta != "":
            delta = exact("line.own_delta", self.own_delta)
            bound = accountants.account(strategy, participation, sigma).epsilon(
                delta=nearest_double("line.own_delta", self.own_delta) * (1.0 - 2.0**-52)
            )
            return Loss(epsilon=Fraction(bound.value), delta=delta + keyed)
        if scope.renyi_order is None:
            return Loss(renyi=0.0)  # refused by the gaussian filter whatever its value is
        if not isinstance(participation, accountants.BallsInBins):
            raise UnsupportedMechanism(
                "a Renyi line needs participation by BallsInBins; others enter with own_delta"
            )
        renyi = accountants.ledger_renyi(strategy, participation, sigma, scope.renyi_order)
        return Loss(renyi=renyi, delta=keyed)

    def _written_out(self) -> str:
        """The strategy's JSON with the numbers an optimiser found for it."""
        written: dict[str, object] = json.loads(str(self.strategy))
        if written["kind"] not in _OPTIMISED or "taps" in written:
            return str(self.strategy)
        strategy, participation = self.mechanism()
        scheme = _scheme(participation)
        if scheme is None:
            return str(self.strategy)  # refused by the accountant
        if scheme.rows * strategy.bands > _CELLS_MAX:  # type: ignore[attr-defined]  # both optimised ones have it
            raise InvalidParameter("line.strategy.taps", "nothing", "the taps of a run of this size")
        taps = strategy.fixed(scheme).taps  # type: ignore[attr-defined]  # as above
        return canonical_json("line.strategy", {**written, "taps": [repr(tap) for tap in taps]})


def _scheme(participation: Participation) -> BallsInBins | None:
    """The bins under which the accountant reads a strategy, None where it takes the identity only."""
    accountants = importlib.import_module("evertally.accountants")
    scheme: BallsInBins | None = None
    match participation:
        case accountants.BallsInBins():
            scheme = participation
        case accountants.EachEpochOnce(batches=batches, epochs=epochs):
            scheme = accountants.BallsInBins(batches, epochs)
        case accountants.CyclicPoisson(rows=rows, cycle=cycle):
            scheme = accountants.BallsInBins(cycle, -(-rows // cycle))
    return scheme


def _described(accountants: Any, field: str, text: str) -> Any:
    values: dict[str, object] = json.loads(text)
    build = getattr(accountants, str(values.pop("kind")))
    try:
        return build(**{key: _number(field, value) for key, value in values.items()})
    except TypeError:
        raise InvalidParameter(field, "other fields", "the parameters of this kind") from None


def _number(field: str, value: object) -> object:
    """A parameter as Python has it: decimal text, with a sign where it has one, is a double."""
    if isinstance(value, str):
        size = value.removeprefix("-")
        number = 0.0 if size in ("0", "0.0") else nearest_double(field, size)
        return -number if size != value else number
    if isinstance(value, list):
        return tuple(_number(field, item) for item in value)
    return value
