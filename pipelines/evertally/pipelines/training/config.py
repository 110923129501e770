"""The configuration of `evertally train`: one TOML file. docs/how-to-train.md describes each key.

Every path in it is relative to the file's own folder; EVERTALLY_KAFKA_PASSWORD is for kafka.password.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from evertally.accountants.budget.amounts import decimal_text
from evertally.accountants.budget.canonical import name as checked_name
from evertally.accountants.budget.scopes import Scope
from evertally.errors import InvalidParameter
from evertally.pipelines.config_parts import as_written
from evertally.pipelines.config_table import ConfigTable, InvalidConfig, Mistakes
from evertally.pipelines.kafka.connection_config import read_broker
from evertally.pipelines.metrics import Listen, parse_listen, read_metrics_listen
from evertally.pipelines.training.config_sections import (
    BudgetConfig,
    DataConfig,
    MechanismConfig,
    ModelConfig,
    OptimiserConfig,
    PrivacyConfig,
    ProbeConfig,
)
from evertally.pipelines.training.config_tables import (
    read_data,
    read_mechanism,
    read_model,
    read_optimiser,
    read_probe,
)
from evertally.pipelines.training.plan import TrainingLoss

__all__ = ["TrainConfig", "load_train_config"]

_TABLES: Final = (
    *("run", "data", "kafka", "model", "preconditioner", "optimiser", "training", "privacy", "budget"),
    "metrics",
)
_PASSWORD: Final = "EVERTALLY_KAFKA_PASSWORD"  # noqa: S105 - the variable's name
_ORDER: Final = 16


@dataclass(frozen=True, slots=True)
class TrainConfig:
    """All of a run.

    Attributes:
        name: of the run; part of its secrets' derivation.
        folder: its folder.
        key_file: the master secret, mode 0600.
        seed: public seed of the model's parameters and the probes.
        metrics: the operators' plane; None for none.
        public_metrics: host and port of the public plane; None for none.
    """

    name: str
    folder: Path
    key_file: Path
    seed: int
    data: DataConfig
    model: ModelConfig
    probe: ProbeConfig
    optimiser: OptimiserConfig
    mechanism: MechanismConfig
    privacy: PrivacyConfig
    budget: BudgetConfig
    metrics: Listen | None
    public_metrics: Listen | None


def load_train_config(path: Path, environment: Mapping[str, str] = os.environ) -> TrainConfig:
    """Read and check a configuration.

    Raises:
        InvalidConfig: with every mistake in it.
        InvalidParameter: the file cannot be read, or is no TOML.
    """
    try:
        data = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise InvalidParameter("config", str(path), f"a readable file ({error.strerror})") from None
    except (ValueError, RecursionError) as error:
        raise InvalidParameter("config", str(path), f"a TOML file in UTF-8 ({error})") from None
    mistakes = Mistakes()
    for name in data:
        if name not in _TABLES:
            mistakes.add(name, "an unknown table or key", "one of [" + "], [".join(_TABLES) + "]")
    kafka = data.get("kafka")
    if isinstance(kafka, dict) and _PASSWORD in environment:
        kafka["password"] = environment[_PASSWORD]
    tables = {name: ConfigTable(name, data.get(name), mistakes) for name in _TABLES}
    config = _assemble(tables, path.parent, mistakes, kafka=kafka is not None)
    for name, table in tables.items():
        if name in data:
            table.finish()
    if config is None or mistakes.found:
        raise InvalidConfig(str(path), tuple(mistakes.found))
    return config


def _assemble(
    tables: dict[str, ConfigTable], folder: Path, mistakes: Mistakes, *, kafka: bool
) -> TrainConfig | None:
    run, privacy, metrics = tables["run"], tables["privacy"], tables["metrics"]
    name = run.text("name", "a name for the run")
    if name is not None and mistakes.attempt(lambda: checked_name("run.name", name)) is None:
        name = None
    place = run.text("folder", "the run's folder, made where there is none")
    key_file = run.text("key_file", "the key file, made where there is none")
    seed = run.integer("seed", low=0, high=2**62) or 0
    unit = privacy.text("unit", "event, or what a unit is, for example person", required=False) or "event"
    broker = read_broker(tables["kafka"], folder, mistakes) if kafka else None
    topic = tables["kafka"].text("topic", "the topic of labelled events") if kafka else None
    data = read_data(tables["data"], folder, broker, topic, unit, mistakes)
    model = read_model(tables["model"], folder, mistakes)
    probe = read_probe(tables["preconditioner"], None if data is None else data.form, folder, mistakes)
    optimiser = read_optimiser(tables["optimiser"], mistakes)
    mechanism = read_mechanism(tables["training"], mistakes)
    loss = _privacy(privacy, mistakes)
    budget = _budget(tables["budget"], folder, unit, privacy, mistakes)
    listen = read_metrics_listen(metrics, folder, mistakes)
    public = _public(metrics, mistakes)
    if mistakes.found or not (name and place and key_file and data and mechanism and loss and budget):
        return None
    return TrainConfig(
        name,
        folder / place,
        folder / key_file,
        seed,
        data,
        model,
        probe,
        optimiser,
        mechanism,
        loss,
        budget,
        listen,
        public,
    )


def _privacy(privacy: ConfigTable, mistakes: Mistakes) -> PrivacyConfig | None:
    """Noise, epsilon at delta, or what remains; delta is of the report too."""
    delta = privacy.positive("delta", "a number strictly between 0 and 1", high=0.999999, required=True)
    epsilon = privacy.positive("epsilon", "a number > 0", high=1000.0)
    noise = privacy.positive("noise_multiplier", "sigma over the clip norm", high=2.0**20)
    spend = privacy.text("spend", '"remaining"', required=False)
    own = privacy.text("own_delta", "a delta as text", required=False)
    if spend not in (None, "remaining"):
        mistakes.add("privacy.spend", spend, '"remaining"')
    if [epsilon is not None, noise is not None, spend is not None].count(True) != 1:
        mistakes.add(
            "privacy",
            "not one of the three",
            'epsilon, noise_multiplier, or spend = "remaining": exactly one',
        )
        return None
    if own is not None:
        own = mistakes.attempt(lambda: decimal_text("privacy.own_delta", own or ""))
    if delta is None:
        return None
    if spend is not None:
        return PrivacyConfig(None, delta, own or "")
    loss = TrainingLoss(noise) if noise is not None else TrainingLoss(None, epsilon, delta)
    return PrivacyConfig(loss, delta, own or "")


def _budget(
    budget: ConfigTable, folder: Path, unit: str, privacy: ConfigTable, mistakes: Mistakes
) -> BudgetConfig | None:
    adjacency = privacy.choice("adjacency", ("add-remove",), "add-remove")
    name = budget.text("scope", "the name of the scope that pays")
    epsilon = budget.positive("epsilon_cap", "a number > 0", high=1000.0)
    delta = budget.positive("delta_cap", "a number strictly between 0 and 1", high=0.999999)
    lines = budget.positive("epsilon_lines", "a part of epsilon_cap", high=1000.0)
    order = budget.positive("order", "a number > 1", low=1.0 + 2**-20, high=1024.0)
    ledger = budget.text(
        "ledger", "path of a ledger, or a postgresql:// address", required=False, secret=True
    )
    chain = budget.text("chain_key_file", "the ledger's chain key", required=False)
    service = budget.text("service", "address of a budget service", required=False)
    token = budget.text("token_file", "a file with the service's token", required=False)
    ca = budget.text("ca", "a PEM file", required=False)
    if (ledger is None) == (service is None):
        mistakes.add("budget.ledger", "both or neither", "ledger, or service")
        return None
    if name is None:
        return None
    scope = None
    if epsilon is not None:
        scope = mistakes.attempt(
            lambda: Scope(
                name,
                unit,
                adjacency,
                as_written(epsilon),
                delta or 1e-6,
                epsilon_lines="0" if lines is None else as_written(lines),
                filter="renyi",
                order=as_written(order or _ORDER),
            )
        )
    elif delta is not None or order is not None or lines is not None:
        mistakes.add("budget.epsilon_cap", "nothing", "a cap, where the scope is to be created")
    place = "" if ledger is None else ledger if "://" in ledger else str(folder / ledger)
    return BudgetConfig(
        scope,
        name,
        unit,
        adjacency,
        place,
        None if chain is None else folder / chain,
        service or "",
        None if token is None else folder / token,
        None if ca is None else folder / ca,
    )


def _public(metrics: ConfigTable, mistakes: Mistakes) -> Listen | None:
    text = metrics.text("public_listen", "host:port of the public /metrics", required=False)
    if text is None:
        return None
    found = mistakes.attempt(lambda: parse_listen("metrics.public_listen", text))
    return None if found is None else Listen(*found)
