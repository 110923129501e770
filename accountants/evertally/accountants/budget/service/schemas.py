"""What travels: strict schemas without a float for any amount, and no field that is not named here.

Amounts are decimal text or integers, so that NaN, infinities and rounding cannot enter. A request has
no field for a mu or a share of the budget: those are recomputed from the public parameters.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PlainValidator,
    StringConstraints,
    WithJsonSchema,
)
from pydantic_core import PydanticCustomError

from evertally.counters.grid import SLACK_HORIZON

__all__ = [
    "ChargeIn",
    "CounterIn",
    "DraftIn",
    "GaussianIn",
    "KeySelectionIn",
    "LineIn",
    "QuoteIn",
    "ScopeIn",
    "TrainingIn",
    "WindowsIn",
]

_INT_MAX = 2**62
_DECIMAL = r"^[0-9]{1,40}(\.[0-9]{1,40})?([eE][+-]?[0-9]{1,3})?$"
_DECIMAL_TEXT = re.compile(_DECIMAL, re.ASCII)
_JSON_DECIMAL = {"type": "string", "pattern": _DECIMAL, "maxLength": 86, "examples": ["0.000001"]}
_JSON_WHOLE = {"type": "integer", "minimum": 1, "maximum": _INT_MAX}


def _amount(value: object) -> str | int:
    if isinstance(value, str) and _DECIMAL_TEXT.fullmatch(value):
        return value
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= _INT_MAX:
        return value
    raise PydanticCustomError("amount", "decimal text such as '0.5', or a whole number from 1 to 2^62")


def _amount_or_zero(value: object) -> str | int:
    return "0" if value == "0" or (value == 0 and type(value) is int) else _amount(value)


def _decimal(value: object) -> str:
    if isinstance(value, str) and _DECIMAL_TEXT.fullmatch(value):
        return value
    raise PydanticCustomError("amount", "decimal text such as '0.000001'")


def _own_delta(value: object) -> str:
    return "" if value == "" else _decimal(value)


Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}$")]
Decimal = Annotated[str, PlainValidator(_decimal), WithJsonSchema(_JSON_DECIMAL)]
PositiveInt = Annotated[int, Field(ge=1, le=_INT_MAX)]
Amount = Annotated[
    str | int, PlainValidator(_amount), WithJsonSchema({"anyOf": [_JSON_DECIMAL, _JSON_WHOLE]})
]
AmountOrZero = Annotated[
    str | int,
    PlainValidator(_amount_or_zero),
    WithJsonSchema({"anyOf": [_JSON_DECIMAL, {**_JSON_WHOLE, "minimum": 0}]}),
]
OwnDelta = Annotated[
    str,
    PlainValidator(_own_delta),
    WithJsonSchema({"anyOf": [_JSON_DECIMAL, {"type": "string", "maxLength": 0}]}),
]
Adjacency = Literal["add-remove", "replace-value", "replace"]
Unit = Annotated[Name, Field(description="'event', or the entity whose contributions are bounded.")]


class Strict(BaseModel):
    """No coercion, no unknown field."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class ScopeIn(Strict):
    """A scope to create; all of it is fixed for ever."""

    name: Name
    unit: Unit
    adjacency: Adjacency
    epsilon_cap: Amount
    delta_cap: Decimal
    delta_lines: Decimal | None = Field(None, description="Part of delta_cap for lines' own deltas.")
    epsilon_lines: AmountOrZero = Field("0", description="Part of epsilon_cap for lines of their own.")
    filter: Literal["gaussian", "renyi"] = "gaussian"
    order: Amount | None = Field(None, description="The one Renyi order of a renyi scope.")
    disjoint: list[Name] = Field(default=[], max_length=1000)
    renews: Annotated[str, StringConstraints(pattern=r"^([A-Za-z0-9][A-Za-z0-9._:/-]{0,127})?$")] = ""


class _CounterFields(Strict):
    mechanism: Name = Field(examples=["rational:W32"])
    keys: Annotated[int, Field(ge=1, le=2**40)]
    clip: PositiveInt = 1
    lower: Annotated[int, Field(ge=-_INT_MAX, le=_INT_MAX)] = 0
    participations: PositiveInt = 1
    min_separation: PositiveInt = 1
    per_tick: PositiveInt = 1
    slack_horizon: Annotated[int, Field(ge=1, le=2**50)] = SLACK_HORIZON


class CounterIn(_CounterFields):
    """A running counter, charged once for ever; sigma = 2^30 / q counts."""

    kind: Literal["counter"]
    q: PositiveInt


class KeySelectionIn(_CounterFields):
    """Keys shown once their noisy count passes a threshold."""

    kind: Literal["key_selection"]
    q: PositiveInt
    threshold: PositiveInt
    horizon: PositiveInt


class _GaussianFields(Strict):
    sensitivity: Amount
    releases: PositiveInt = 1


class GaussianIn(_GaussianFields):
    """Exact Gaussian releases with fresh noise of standard deviation sigma."""

    kind: Literal["gaussian"]
    sigma: Amount


class WindowsIn(Strict):
    """Gaussian releases over time windows."""

    kind: Literal["windows"]
    sensitivity: Amount
    sigma: Amount
    window: Literal["tumbling", "sliding"]
    length_ms: PositiveInt
    stride_ms: PositiveInt
    firings: PositiveInt = 1
    windows_per_unit: PositiveInt | None = None


def _parameter(value: object) -> str | int | bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and _DECIMAL_TEXT.fullmatch(value.removeprefix("-")):
        return value
    if isinstance(value, int) and -_INT_MAX <= value <= _INT_MAX:
        return value
    raise PydanticCustomError("parameter", "true, false, a whole number, or decimal text such as '-0.5'")


_SIGNED = {"type": "string", "pattern": _DECIMAL.replace("^", "^-?"), "maxLength": 87, "examples": ["-0.5"]}
_Number = Annotated[
    str | int | bool,
    PlainValidator(_parameter),
    WithJsonSchema({"anyOf": [_SIGNED, {"type": "integer"}, {"type": "boolean"}]}),
]
_Parameter = _Number | Annotated[list[_Number], Field(max_length=4096)]


class _Described(Strict):
    model_config = ConfigDict(strict=True, extra="allow", frozen=True)
    __pydantic_extra__: dict[str, _Parameter]


class StrategyIn(_Described):
    """A strategy of `evertally.accountants`, with its public parameters."""

    kind: Literal[
        "Identity", "BandedSquareRoot", "BandedInverseSquareRoot", "BandMF", "BandedInverseMF", "BLT"
    ]


class ParticipationIn(_Described):
    """A participation of `evertally.accountants`, with its public parameters."""

    kind: Literal["BallsInBins", "EachEpochOnce", "CyclicPoisson", "Poisson"]


class _TrainingFields(Strict):
    strategy: StrategyIn
    participation: ParticipationIn
    own_delta: OwnDelta = ""
    elements: Annotated[int, Field(ge=0, le=_INT_MAX)] = 0


class TrainingIn(_TrainingFields):
    """A whole planned training run."""

    kind: Literal["training"]
    noise_multiplier: Amount


LineIn = Annotated[
    CounterIn | GaussianIn | WindowsIn | KeySelectionIn | TrainingIn, Field(discriminator="kind")
]


class CounterDraft(_CounterFields):
    """A counter whose q is to be found."""

    kind: Literal["counter"]


class GaussianDraft(_GaussianFields):
    """Gaussian releases whose sigma is to be found."""

    kind: Literal["gaussian"]


class TrainingDraft(_TrainingFields):
    """A training run whose noise multiplier is to be found."""

    kind: Literal["training"]


class DraftIn(Strict):
    """A line without its noise: the answer is the line with the least noise that fits."""

    scope: Name
    line: Annotated[CounterDraft | GaussianDraft | TrainingDraft, Field(discriminator="kind")]
    units: PositiveInt | None = Field(
        None, description="Spend at most this much; all that remains where absent."
    )


class QuoteIn(Strict):
    """A line to be charged to a scope; unit and adjacency are repeated so that a mix-up is refused."""

    scope: Name
    unit: Unit
    adjacency: Adjacency
    line: LineIn
    group: Name | Literal[""] = Field("", description="A disjoint group of the scope.")
    members: list[Annotated[str, StringConstraints(min_length=1, max_length=256)]] = Field(
        default=[], max_length=4096, description="Members of the group whose records the line sees."
    )


class ChargeIn(QuoteIn):
    """A charge: reserved for `ttl_ms`, or committed at once."""

    mode: Literal["reserve", "commit"] = "reserve"
    ttl_ms: Annotated[int, Field(ge=1, le=604_800_000)] = 600_000


class LeaseIn(QuoteIn):
    """A training run to be leased."""

    line: TrainingIn
    ttl_ms: Annotated[int, Field(ge=1, le=604_800_000)] = 600_000
    manifest_digest: Annotated[str, StringConstraints(pattern=r"^([0-9a-f]{64})?$")] = Field(
        "", description="Keyed digest of the training data's manifest."
    )


class AcquireIn(Strict):
    """A takeover of a lease."""

    manifest_digest: Annotated[str, StringConstraints(pattern=r"^([0-9a-f]{64})?$")] = ""


class HolderIn(Strict):
    """The epoch under which a holder works."""

    epoch: PositiveInt


class RenewIn(HolderIn):
    """A holder's report; the first one commits the budget and must come before the first noise."""

    steps_done: Annotated[int, Field(ge=0, le=_INT_MAX)] = 0
