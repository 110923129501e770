"""Reading the tables of a training configuration: mistakes are collected, so that all are named together."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from evertally.accountants.participation import BallsInBins
from evertally.accountants.strategies import BLT, BandedSquareRoot, BandMF, Identity, Strategy
from evertally.pipelines.config_table import ConfigTable, Mistakes
from evertally.pipelines.kafka.broker import Broker
from evertally.pipelines.training.config_sections import (
    DataConfig,
    MechanismConfig,
    ModelConfig,
    OptimiserConfig,
    ProbeConfig,
)
from evertally.pipelines.training.examples import ExampleForm
from evertally.pipelines.training.examples_files import FILE_FORMATS
from evertally.validation import real

__all__ = ["read_data", "read_mechanism", "read_model", "read_optimiser", "read_probe"]

_FACTORY: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", re.ASCII)
_MODELS: Final = ("linear", "mlp", "cnn", "factory")
_STRATEGIES: Final = ("identity", "bsr", "band-mf", "blt")
_PROBES: Final = ("pink", "white", "zipf", "uniform", "zipf-documents", "public")
_TRANSFORMS: Final = ("relative", "paper", "diagonal", "none")
_OPTIMISERS: Final = ("sgd", "adambc", "disk")
_IMAGE_AXES: Final = 3
_IMAGES_BRIGHTNESS: Final = 1.0
_DOCUMENTS_GAMMA: Final = 4.0
"""Better than none and than 0.5 on the tasks of docs/comparison-training.md, after which they were chosen."""
_SIZES: Final = "a list of whole numbers >= 1"


def read_data(
    data: ConfigTable, folder: Path, broker: Broker | None, topic: str | None, unit: str, mistakes: Mistakes
) -> DataConfig | None:
    """The table [data]."""
    form = data.choice("format", (*FILE_FORMATS, "kafka"), "npz")
    path = data.text("path", "a file of examples", required=form != "kafka")
    features = data.raw("features", "a name, or a list of names")
    shape = _sizes(data, "shape", mistakes, required=True)
    label = data.text("label", "the field with the label")
    tokens = data.integer("tokens", low=0, high=2**31) or 0
    classes = data.integer("classes", low=0, high=2**31) or 0
    unit_field = data.text("unit", "the field that identifies the privacy unit", required=unit != "event")
    if unit_field is not None and unit == "event":
        mistakes.add("data.unit", unit_field, "no such field where privacy.unit is event")
    per_unit = data.integer("records_per_unit", low=1, high=2**31) or 2**31
    held_out = _file(data, "data.held_out", folder, mistakes)
    if held_out is not None and path is not None and _one_file(held_out, folder / path):
        mistakes.add("data.held_out", path, "another file than data.path, whose examples are private")
    names = tuple(features) if isinstance(features, list) else (features,)
    if not all(isinstance(name, str) and name for name in names):
        mistakes.add("data.features", features, "a name, or a list of names")
        return None
    if path is not None and form == "kafka":
        mistakes.add("data.path", path, "no such key where data.format is kafka")
    if path is not None and not os.path.isfile(folder / path):
        mistakes.add("data.path", path, "a readable file")
    if (form == "kafka") != (broker is not None and topic is not None):
        mistakes.add(
            "kafka", "a table" if broker else "no table", "[kafka] exactly where data.format is kafka"
        )
        return None
    if shape is None or label is None:
        return None
    example = mistakes.attempt(
        lambda: ExampleForm(names, shape, tokens, label, classes, unit_field or "")  # type: ignore[arg-type]  # checked to be text
    )
    if example is None:
        return None
    place = None if path is None else folder / path
    return DataConfig(form, place, example, per_unit, held_out, broker, topic or "")


def read_model(model: ConfigTable, folder: Path, mistakes: Mistakes) -> ModelConfig:
    """The table [model]."""
    kind = model.choice("kind", _MODELS, "mlp")
    factory = model.text("factory", "package.module:function", required=kind == "factory") or ""
    if factory and not _FACTORY.fullmatch(factory):
        mistakes.add("model.factory", factory, "package.module:function")
    hidden = _sizes(model, "hidden", mistakes) or ((16, 32, 128) if kind == "cnn" else (64,))
    return ModelConfig(kind, factory, hidden, _file(model, "model.init", folder, mistakes))


def read_probe(table: ConfigTable, form: ExampleForm | None, folder: Path, mistakes: Mistakes) -> ProbeConfig:
    """The table [preconditioner]."""
    transform = table.choice("transform", _TRANSFORMS, "relative")
    kind_default = "zipf" if form is not None and form.tokens else "pink"
    written = table.text("probe", "one of " + ", ".join(_PROBES) + ":PATH", required=False) or kind_default
    kind, _, path = written.partition(":")
    if kind not in _PROBES or (kind == "public") != bool(path):
        mistakes.add("preconditioner.probe", written, "one of " + ", ".join(_PROBES[:-1]) + ", public:PATH")
    if path and not os.path.isdir(folder / path):
        mistakes.add("preconditioner.probe", written, "a folder of public arrays after public:")
    alpha = table.positive("alpha", "an exponent > 0", high=4.0)
    gamma, brightness = None, 0.0
    if transform == "relative" and kind == "zipf-documents":
        gamma = _DOCUMENTS_GAMMA
    elif transform == "relative" and kind == "pink" and form is not None and len(form.shape) == _IMAGE_AXES:
        brightness = _IMAGES_BRIGHTNESS
    return ProbeConfig(
        transform,
        kind,
        folder / path if path else None,
        alpha if alpha is not None else (2.0 if kind == "pink" else 1.0),
        _brightness(table, kind, brightness, mistakes),
        table.positive("gamma", "damping > 0", high=1e6) or gamma,
        table.integer("probes", low=1, high=2**20) or 512,
        table.integer("refresh_steps", low=1, high=2**40) or 0,
        table.integer("low", low=0, high=2**31) or 1,
        table.integer("first_token", low=0, high=2**31),
        table.integer("last_token", low=0, high=2**31),
    )


def _brightness(table: ConfigTable, kind: str, default: float, mistakes: Mistakes) -> float:
    written = table.raw("brightness", "a number >= 0", required=False)
    if written is None:
        return default
    if kind not in ("pink", "white"):
        mistakes.add("preconditioner.brightness", written, "no such key but with pink and white probes")
    return mistakes.attempt(lambda: real("preconditioner.brightness", written, low=0.0, high=1e6)) or 0.0


def read_optimiser(table: ConfigTable, mistakes: Mistakes) -> OptimiserConfig:
    """The table [optimiser]."""
    momentum = table.raw("momentum", "a number in [0, 1)", required=False)
    value = 0.9 if momentum is None else momentum
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 <= value < 1.0:
        mistakes.add("optimiser.momentum", momentum, "a number in [0, 1)")
        value = 0.9
    return OptimiserConfig(
        table.choice("kind", _OPTIMISERS, "sgd"),
        table.positive("rate", "a learning rate > 0", high=1e6, required=True) or 1.0,
        float(value),
        table.positive("gain", "a gain in (0, 1]", high=1.0) or 0.1,
        table.positive("floor", "a number > 0", high=1e6) or 1e-2,
    )


def read_mechanism(table: ConfigTable, mistakes: Mistakes) -> MechanismConfig | None:
    """The table [training]."""
    batches = table.integer(
        "batches", low=1, high=2**31, required=True, expected="bins, that is steps an epoch"
    )
    epochs = table.integer("epochs", low=1, high=2**31, required=True, expected="passes over the bins")
    strategy = _strategy(table, mistakes)
    clip = table.positive("clip", "the clip norm of one privacy unit", high=2.0**30) or 1.0
    divisor = table.positive("divisor", "a constant > 0", high=2.0**40)
    expected = table.positive("expected_units", "a public estimate of the number of units", high=2.0**40)
    if (divisor is None) == (expected is None):
        mistakes.add(
            "training.divisor",
            "both or neither",
            "divisor, or expected_units (divided by batches): a constant",
        )
        return None
    units_max = table.integer("units_max", low=1, high=2**40)
    micro_batch = table.integer("micro_batch", low=1, high=2**20) or 256
    checkpoint = table.integer("checkpoint_steps", low=1, high=2**40)
    arithmetic = table.choice("arithmetic", ("float64", "float32"), "float64")
    bf16 = table.raw("bf16", "true or false", required=False) or False
    if not isinstance(bf16, bool):
        mistakes.add("training.bf16", bf16, "true or false")
    if batches is None or epochs is None or strategy is None:
        return None
    bins = mistakes.attempt(lambda: BallsInBins(batches, epochs), "training.")
    if bins is None:
        return None
    constant = divisor if divisor is not None else (expected or 0.0) / batches
    room = units_max if units_max is not None else min(2**18, round(64 * constant) + 1024)
    every = checkpoint if checkpoint is not None else min(batches, 100)
    return MechanismConfig(strategy, bins, clip, constant, room, micro_batch, every, arithmetic, bool(bf16))


def _sizes(
    table: ConfigTable, key: str, mistakes: Mistakes, *, required: bool = False
) -> tuple[int, ...] | None:
    """A list of sizes."""
    value = table.raw(key, _SIZES, required=required)
    if value is None:
        return None
    if (
        not isinstance(value, list)
        or not value
        or any(isinstance(n, bool) or not isinstance(n, int) or n < 1 for n in value)
    ):
        mistakes.add(key, value, _SIZES)
        return None
    return tuple(value)


def _strategy(table: ConfigTable, mistakes: Mistakes) -> Strategy | None:
    kind = table.choice("strategy", _STRATEGIES, "identity")
    bands = table.integer("bands", low=1, high=4096)
    scales, decays = (_numbers(table, key, mistakes) for key in ("output_scales", "buffer_decays"))
    if (bands is None) != (kind not in ("bsr", "band-mf")):
        mistakes.add("training.bands", bands, "a number exactly where the strategy is bsr or band-mf")
        return None
    if (scales is None or decays is None) != (kind != "blt"):
        mistakes.add("training.output_scales", scales, "lists exactly where the strategy is blt")
        return None
    match kind:
        case "bsr":
            return BandedSquareRoot(bands or 1)
        case "band-mf":
            return BandMF(bands or 1)
        case "blt":
            return mistakes.attempt(lambda: BLT(scales or (), decays or ()), "training.")
    return Identity()


def _numbers(table: ConfigTable, key: str, mistakes: Mistakes) -> tuple[float, ...] | None:
    value = table.raw(key, "a list of numbers", required=False)
    if value is None:
        return None
    if not isinstance(value, list) or not value or not all(isinstance(x, int | float) for x in value):
        mistakes.add(f"training.{key}", value, "a list of numbers")
        return None
    return tuple(float(x) for x in value)


def _one_file(one: Path, other: Path) -> bool:
    return one.exists() and other.exists() and os.path.samefile(one, other)


def _file(table: ConfigTable, field: str, folder: Path, mistakes: Mistakes) -> Path | None:
    text = table.text(field.partition(".")[2], "a file", required=False)
    if text is None:
        return None
    if not os.path.isfile(folder / text):
        mistakes.add(field, text, "a readable file")
    return folder / text
