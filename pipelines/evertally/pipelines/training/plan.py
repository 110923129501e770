"""The plan of a run: every public constant that its privacy rests on, fixed before the first draw.

The plan is what a lease is taken for. Its digest, with the manifest's keyed digest, is bound into the
idempotency key of the lease and into each checkpoint; nothing that a loader, a model or a sampler does later
can change b, k, sigma or the divisor.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from evertally.accountants.bound import Bound
from evertally.accountants.budget.canonical import plain_json
from evertally.accountants.budget.charges import ChargeRequest
from evertally.accountants.budget.scopes import Scope
from evertally.accountants.budget.training import TrainingLine
from evertally.accountants.participation import BallsInBins
from evertally.accountants.strategies import BLT, Strategy
from evertally.errors import InvalidParameter, UnsupportedMechanism
from evertally.pipelines.training.noise_rows import row_rounding, slack_buffer
from evertally.pipelines.training.quantise import StepGrid
from evertally.validation import positive_integer, positive_real

__all__ = ["Plan", "TrainingLoss", "line_of", "make_plan"]

_UNIT: Final = 2.0**30
_CONVERGE: Final = 4


@dataclass(frozen=True, slots=True)
class TrainingLoss:
    """How the noise of a run is found; exactly one of the two.

    Attributes:
        noise_multiplier: sigma over the clip norm.
        epsilon, delta: the least noise that gives them.
    """

    noise_multiplier: float | None = None
    epsilon: float | None = None
    delta: float | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """All of it is public.

    Attributes:
        strategy: the matrix whose inverse correlates the noise.
        participation: bins b and epochs k; b k rows.
        line: what the ledger charges; its strategy bounds `strategy` entry by entry.
        grid: integers of a step.
        divisor: the constant that a step's noisy sum is divided by; never a batch's size.
        clip: clip norm of one unit.
        sensitivity: the clip norm with the slack of its arithmetic.
        constants: whatever else fixes a run (model, optimiser, probes, seeds), as canonical JSON.
    """

    strategy: Strategy
    participation: BallsInBins
    line: TrainingLine
    grid: StepGrid
    divisor: float
    clip: float
    sensitivity: float
    constants: str

    @property
    def steps(self) -> int:
        """Rows of the plan."""
        return self.participation.rows

    @property
    def noise_multiplier(self) -> float:
        """Sigma of the charged line."""
        return float(self.line.noise_multiplier)

    def to_json(self) -> dict[str, object]:
        """Public description; amounts as decimal text."""
        return {
            "line": self.line.to_json(),
            "strategy": repr(self.strategy),
            "q": repr(self.grid.q),
            "elements": self.grid.elements,
            "reach": self.grid.reach,
            "divisor": repr(self.divisor),
            "clip": repr(self.clip),
            "sensitivity": repr(self.sensitivity),
            "constants": json.loads(self.constants),
        }

    def digest(self) -> str:
        """SHA-256 of the description, in hexadecimal."""
        return hashlib.sha256(plain_json(self.to_json()).encode()).hexdigest()

    def request(self, scope: Scope, idempotency_key: str) -> ChargeRequest:
        """The charge of the whole plan."""
        return ChargeRequest(
            scope.name, scope.unit, scope.adjacency, self.line, idempotency_key=idempotency_key
        )

    def epsilon(self, delta: float) -> Bound:
        """Epsilon of the whole plan at `delta`, from the accountants, with the bound that gave it."""
        from evertally.accountants.accountant import account  # noqa: PLC0415 - loads the accountants

        strategy, participation = self.line.mechanism()
        return account(strategy, participation, self.noise_multiplier * (1.0 - 2.0**-52)).epsilon(delta=delta)


def make_plan(
    strategy: Strategy,
    participation: BallsInBins,
    loss: TrainingLoss,
    *,
    clip: float,
    sensitivity: float,
    elements: int,
    units_max: int,
    divisor: float,
    constants: Mapping[str, Any],
    own_delta: str = "",
) -> Plan:
    """The plan with the least noise that meets `loss`.

    Args:
        strategy: an optimised one is fixed here, number by number.
        participation: bins and epochs.
        loss: noise, or epsilon and delta.
        clip: clip norm of one unit.
        sensitivity: the clip norm with the slack of its arithmetic, at least `clip`.
        elements: trainable parameters.
        units_max: units that one step's sum can hold; public.
        divisor: what sums are divided by.
        constants: JSON values; whatever else fixes the run.
        own_delta: enter the ledger with the accountant's best epsilon at this delta, decimal text.

    Raises:
        InvalidParameter: a constant out of its range.
        UnsupportedMechanism: a strategy or a size without a bound here.
    """
    positive_real("training.divisor", divisor, high=2.0**60)
    positive_real("training.clip", clip, high=2.0**30)
    positive_integer("training.elements", elements)
    if not clip <= sensitivity <= clip * 1.01:
        raise InvalidParameter("training.sensitivity", sensitivity, "the clip norm and a little slack")
    first = line_of(strategy, participation, "1", own_delta)
    fixed = first.mechanism()[0]
    charged, sigma, grid = fixed, 0.0, None
    for _ in range(_CONVERGE if isinstance(fixed, BLT) else 1):
        sigma = _noise(charged, participation, loss) * (1.0 + (2.0**-20 if isinstance(fixed, BLT) else 0.0))
        reach = units_max * _UNIT / sigma
        grid = StepGrid.fit(
            noise_multiplier=sigma,
            sensitivity=sensitivity,
            elements=elements,
            units_max=units_max,
            row_rounding=row_rounding(fixed, participation, reach),
        )
        charged = slack_buffer(fixed, participation, elements, grid.record_norm, grid.reach)
    assert grid is not None
    line = line_of(charged, participation, repr(sigma), own_delta, elements)
    plan = Plan(fixed, participation, line, grid, divisor, clip, sensitivity, plain_json(dict(constants)))
    if loss.epsilon is not None and loss.delta is not None and plan.epsilon(loss.delta).value > loss.epsilon:
        raise UnsupportedMechanism(
            "privacy.epsilon: rounding takes this run past its target; train fewer parameters"
        )
    return plan


def line_of(
    strategy: Strategy,
    participation: BallsInBins,
    noise_multiplier: str,
    own_delta: str = "",
    elements: int = 0,
) -> TrainingLine:
    """The ledger line of a strategy; numbers as decimal text that reads back as the same doubles."""
    described: dict[str, object] = {"kind": type(strategy).__name__}
    for name in getattr(type(strategy), "__dataclass_fields__", {}):
        value = getattr(strategy, name)
        if isinstance(value, tuple):
            if value:
                described[name] = [repr(float(number)) for number in value]
        elif value is not False:
            described[name] = value
    bins = {"kind": "BallsInBins", "batches": participation.batches, "epochs": participation.epochs}
    return TrainingLine(described, bins, noise_multiplier, own_delta, elements)


def _noise(strategy: Strategy, participation: BallsInBins, loss: TrainingLoss) -> float:
    if (loss.noise_multiplier is None) == (loss.epsilon is None or loss.delta is None):
        raise InvalidParameter("privacy", "not one of the two", "noise_multiplier, or epsilon and delta")
    if loss.noise_multiplier is not None:
        return positive_real("privacy.noise_multiplier", loss.noise_multiplier, high=2.0**20)
    from evertally.accountants import calibrate_noise_multiplier  # noqa: PLC0415 - as above

    assert loss.epsilon is not None
    assert loss.delta is not None
    return calibrate_noise_multiplier(
        strategy, participation, epsilon=loss.epsilon, delta=loss.delta
    ).value * (1.0 + 2.0**-40)
