"""The tables of a training configuration, one frozen type each. All of it is public but paths to secrets."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from evertally.accountants.budget.scopes import Scope
from evertally.accountants.participation import BallsInBins
from evertally.accountants.strategies import Strategy
from evertally.pipelines.kafka.broker import Broker
from evertally.pipelines.training.examples import ExampleForm
from evertally.pipelines.training.plan import TrainingLoss

__all__ = [
    "BudgetConfig",
    "DataConfig",
    "MechanismConfig",
    "ModelConfig",
    "OptimiserConfig",
    "PrivacyConfig",
    "ProbeConfig",
]


@dataclass(frozen=True, slots=True)
class DataConfig:
    """Where examples come from.

    Attributes:
        format: "npz", "csv", "jsonl" or "kafka".
        path: the file; None for Kafka.
        form: the declared form of an example.
        records_per_unit: at most so many records of a unit are used.
        held_out: a file declared public, in the format of its name; accuracy is measured there.
        broker, topic: for Kafka.
    """

    format: str
    path: Path | None
    form: ExampleForm
    records_per_unit: int
    held_out: Path | None
    broker: Broker | None
    topic: str


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """What is trained.

    Attributes:
        kind: "linear", "mlp", "cnn", or "factory".
        factory: "package.module:function"; called without arguments, returns a torch.nn.Module.
        hidden: widths of the MLP's hidden layers, or channels of the CNN's convolutions and then its width.
        init: public safetensors file that the parameters start from; None starts from the run's seed.
    """

    kind: str
    factory: str
    hidden: tuple[int, ...]
    init: Path | None


@dataclass(frozen=True, slots=True)
class ProbeConfig:
    """How the preconditioner is made.

    Attributes:
        transform: "relative", "paper", "diagonal" (AdaDPS) or "none" (DP-SGD).
        kind: of the public inputs; "public" reads `folder`.
        folder: public arrays.
        alpha: exponent of pink noise, or of the Zipf law.
        brightness: standard deviation of the mean of a pink or white probe, over that of its pixels.
        gamma: damping; None takes the transform's own.
        count: probes of a refresh.
        refresh_steps: steps between refreshes; 0 refreshes once an epoch.
        low, first_token, last_token: of token probes; None where there is none.
    """

    transform: str
    kind: str
    folder: Path | None
    alpha: float
    brightness: float
    gamma: float | None
    count: int
    refresh_steps: int
    low: int
    first_token: int | None
    last_token: int | None


@dataclass(frozen=True, slots=True)
class OptimiserConfig:
    """Post-processing of noisy gradients."""

    kind: str
    rate: float
    momentum: float
    gain: float
    floor: float


@dataclass(frozen=True, slots=True)
class MechanismConfig:
    """The noise and who takes part in it.

    Attributes:
        strategy, participation: what the accountant is asked about.
        clip: clip norm of one unit.
        divisor: what noisy sums are divided by; a constant.
        units_max: units that one step's sum can hold.
        micro_batch: examples evaluated together; changes no result but by rounding.
        checkpoint_steps: steps between checkpoints; nothing is published in between.
        arithmetic: "float64" or "float32", of norms; sums are in doubles.
        bf16: evaluate the model in bfloat16.
    """

    strategy: Strategy
    participation: BallsInBins
    clip: float
    divisor: float
    units_max: int
    micro_batch: int
    checkpoint_steps: int
    arithmetic: str
    bf16: bool


@dataclass(frozen=True, slots=True)
class PrivacyConfig:
    """What may be lost, and at which delta the report states epsilon.

    Attributes:
        loss: how the noise is found; None spends what remains in the scope.
        delta: of the report.
        own_delta: the line enters the ledger with epsilon at this delta, decimal text; "" for a Renyi line.
    """

    loss: TrainingLoss | None
    delta: float
    own_delta: str


@dataclass(frozen=True, slots=True)
class BudgetConfig:
    """Who pays.

    Attributes:
        scope: its definition; created where it does not exist.
        create: False for a scope that must exist already; only name, unit and adjacency are then known.
        ledger: a SQLite path or postgresql:// address; "" for a service.
        chain_key_file: the ledger's, where it does not lie beside it.
        service: address of a budget service; "" for a ledger of one's own.
        token_file: bearer token of the service.
        ca: PEM file of the service's CA.
    """

    scope: Scope | None
    name: str
    unit: str
    adjacency: str
    ledger: str = field(repr=False)
    chain_key_file: Path | None
    service: str
    token_file: Path | None
    ca: Path | None
