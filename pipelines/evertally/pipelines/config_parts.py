"""The parts of a configuration, one function each: keys, ticks, source, bounds, what may be lost."""

from __future__ import annotations

import datetime
import os
from collections import Counter
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Final

from evertally.accountants.budget.canonical import name as checked_name
from evertally.accountants.budget.scopes import Scope
from evertally.accountants.gaussian import gaussian_epsilon, gaussian_mu
from evertally.pipelines.bounding import UnitBound
from evertally.pipelines.config_table import ConfigTable, Mistakes
from evertally.pipelines.events import ValueRule
from evertally.pipelines.raw_records import FieldNames
from evertally.pipelines.ticks import TickGrid
from evertally.pipelines.timestamps import BadTimestamp, load_timezone, parse_timestamp

__all__ = [
    "EVENT",
    "Loss",
    "SourceConfig",
    "as_written",
    "read_bound",
    "read_keys",
    "read_loss",
    "read_source",
    "read_ticks",
    "read_value_rule",
]

EVENT: Final = "event"
_FORMATS: Final = ("csv", "jsonl")
_SUFFIXES: Final = {".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl"}
_RFC3339: Final = "an RFC 3339 time with an offset, for example 2013-01-01T05:00:00Z"
_TICK_EXPECTED: Final = "a length in seconds > 0, a multiple of 0.001"
_KEY_LENGTH_MAX: Final = 256
_EPSILON_MAX: Final = 1e6
_MU_MIN: Final = 1e-4
_MU_MAX: Final = 1000.0
_SMALLEST_CAP: Final = 1e-6  # of epsilon; a large delta alone may pay for a small mu
_CONVERSION_SHARE: Final = 0.999  # of a scope's delta; the rest it sets aside for small deltas of its lines
_MARGIN: Final = 1e-6  # a cap computed from mu is this much larger, so that rounding never refuses it


@dataclass(frozen=True, slots=True)
class SourceConfig:
    """Where events come from and which fields they are made of; the path "-" is standard input."""

    path: str
    format: str
    fields: FieldNames
    timezone: datetime.tzinfo | None
    values: ValueRule


@dataclass(frozen=True, slots=True)
class Loss:
    """What may be lost: a scope, and the part of it that this stream takes (None: all of it)."""

    scope: Scope
    mu: float | None


def read_keys(stream: ConfigTable, mistakes: Mistakes) -> tuple[tuple[str, ...] | None, str | None]:
    """The declared keys, and the one of them that takes undeclared keys (None: they are refused)."""
    expected = f"a list of distinct texts of 1 to {_KEY_LENGTH_MAX} characters without NUL, at least one"
    keys = stream.raw("keys", expected)
    other = stream.text("other", "the declared key that takes undeclared ones", required=False)
    if keys is None:
        return None, None
    if not isinstance(keys, list) or not keys:
        mistakes.add("stream.keys", keys, expected)
        return None, None
    unusable = [key for key in keys if not _is_key(key)]
    if unusable:
        mistakes.add("stream.keys", str(unusable[0])[:_KEY_LENGTH_MAX], expected)
        return None, None
    repeated = sorted(key for key, times in Counter(keys).items() if times > 1)
    if repeated:
        mistakes.add("stream.keys", repeated[:3], "each key once")
        return None, None
    if other is not None and other not in keys:
        mistakes.add("stream.other", other, "one of the declared keys")
    return tuple(keys), other


def _is_key(key: object) -> bool:
    return isinstance(key, str) and 1 <= len(key) <= _KEY_LENGTH_MAX and "\0" not in key


def read_ticks(stream: ConfigTable, mistakes: Mistakes) -> TickGrid | None:
    """Start, end and tick length as a grid."""
    start_ms, end_ms = _time(stream, "start", mistakes), _time(stream, "end", mistakes)
    tick_s = stream.positive("tick_s", _TICK_EXPECTED, high=1e9, required=True)
    if tick_s is None:
        return None
    tick_ms = round(tick_s * 1000)
    if tick_ms < 1 or abs(tick_ms - tick_s * 1000) > 1e-6:
        mistakes.add("stream.tick_s", tick_s, _TICK_EXPECTED)
        return None
    if start_ms is None or end_ms is None:
        return None
    return mistakes.attempt(lambda: TickGrid.between(start_ms, end_ms, tick_ms), "stream.")


def read_source(
    source: ConfigTable, folder: Path, unit: str, bounds: tuple[int, int], mistakes: Mistakes
) -> SourceConfig | None:
    """The input. `bounds` are the lower and upper end of one contribution."""
    path = source.text("path", 'a file, or "-" for standard input')
    if path is not None and path != "-":
        path = str(folder / path)
        if not os.access(path, os.R_OK) or os.path.isdir(path):
            mistakes.add("source.path", path, "a readable file")
    suffix = "" if path is None else Path(path.removesuffix(".gz")).suffix
    written = source.choice("format", _FORMATS, "")
    form = written or _SUFFIXES.get(suffix, "")
    if not form and path is not None and not source.has("format"):
        mistakes.add("source.format", "nothing", "csv or jsonl, where the file's name does not tell")

    timestamp = source.text("timestamp", "the field with the event's time")
    key = source.text("key", "the field with the event's key")
    value = source.text("value", "the field with the event's value", required=False)
    unit_field = source.text("unit", "the field that identifies the privacy unit", required=unit != EVENT)
    if unit_field is not None and unit == EVENT:
        mistakes.add("source.unit", unit_field, "no such field where privacy.unit is event")
    rule = read_value_rule(source, value, bounds, mistakes)
    zone_name = source.text("timezone", "an IANA time zone", required=False)
    zone = None if zone_name is None else mistakes.attempt(lambda: load_timezone(zone_name))
    if path is None or not form or timestamp is None or key is None or rule is None:
        return None
    return SourceConfig(path, form, FieldNames(timestamp, key, value, unit_field), zone, rule)


def read_bound(privacy: ConfigTable, unit: str, mistakes: Mistakes) -> UnitBound | None:
    """The bound on a unit's contributions; None at event level, where there is nothing to bound."""
    bounded = unit != EVENT
    expected = "the most ticks that count a unit, for ever: an integer >= 1"
    participations = privacy.integer("participations", low=1, high=2**40, required=bounded, expected=expected)
    separation = privacy.integer("min_separation", low=1, high=2**40)
    per_tick = privacy.integer("per_tick", low=1, high=2**40)
    if not bounded:
        for key, value in (
            ("participations", participations),
            ("min_separation", separation),
            ("per_tick", per_tick),
        ):
            if value not in (None, 1):
                mistakes.add(f"privacy.{key}", value, "1 or nothing where privacy.unit is event")
        return None
    return None if participations is None else UnitBound(participations, separation or 1, per_tick or 1)


def read_loss(
    privacy: ConfigTable,
    budget: ConfigTable,
    stream: str | None,
    unit: str,
    adjacency: str,
    mistakes: Mistakes,
) -> Loss | None:
    """Epsilon at delta, or mu; and the scope that pays: the stream's own, unless [budget] names one."""
    delta = privacy.positive("delta", "a number strictly between 0 and 1", high=0.999999, required=True)
    epsilon = privacy.positive("epsilon", "a number > 0", high=_EPSILON_MAX)
    mu = privacy.positive("mu", "a number > 0", low=_MU_MIN, high=_MU_MAX)
    scope_name = budget.text("scope", "a name for the scope", required=False)
    epsilon_cap = budget.positive(
        "epsilon_cap", "a number > 0", high=_EPSILON_MAX, required=scope_name is not None
    )
    delta_cap = budget.positive("delta_cap", "a number strictly between 0 and 1", high=0.999999)
    order = budget.positive("order", "a number > 1", low=1.0 + 2**-20, high=1024.0)
    if privacy.has("epsilon") == privacy.has("mu"):
        both = "both" if privacy.has("mu") else "neither"
        mistakes.add(
            "privacy.epsilon",
            f"{both} epsilon and mu" if both == "both" else "neither epsilon nor mu",
            "one of the two",
        )
        return None
    if scope_name is None and any(budget.has(key) for key in ("epsilon_cap", "delta_cap", "order")):
        mistakes.add("budget.scope", "nothing", "the name of the scope whose caps these are")
        return None
    if stream is None or delta is None or (epsilon is None and mu is None):
        return None
    if mistakes.attempt(lambda: checked_name("stream.name", stream)) is None:
        return None

    def loss() -> Loss:
        conversion = _CONVERSION_SHARE * delta
        if scope_name is None:
            cap = epsilon if epsilon is not None else _cap_of_mu(conversion, mu or 0.0)
            return Loss(Scope(stream, unit, adjacency, cap, delta), mu)
        part = mu if mu is not None else gaussian_mu(epsilon or 0.0, conversion)
        cap, cap_delta = epsilon_cap or 0.0, delta_cap or delta
        if order is None:
            return Loss(Scope(scope_name, unit, adjacency, cap, cap_delta), part)
        renyi = Scope(
            scope_name, unit, adjacency, as_written(cap), cap_delta, filter="renyi", order=as_written(order)
        )
        return Loss(renyi, part)

    return mistakes.attempt(loss)


def as_written(value: float) -> float | int:
    """8.0 as 8: a scope keeps amounts as they are written, and 8 is how others write it."""
    return int(value) if value == int(value) else value


def _cap_of_mu(delta: float, mu: float) -> float:
    return max(gaussian_epsilon(delta, mu) * (1 + _MARGIN), _SMALLEST_CAP)


def _time(stream: ConfigTable, key: str, mistakes: Mistakes) -> int | None:
    value = stream.raw(key, _RFC3339)
    if value is None:
        return None
    if isinstance(value, datetime.datetime) and value.tzinfo is not None:
        return (value - datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)) // datetime.timedelta(
            milliseconds=1
        )
    try:
        if isinstance(value, str) and not value.lstrip("-").isdigit():
            return parse_timestamp(value, None)
    except BadTimestamp:
        pass
    mistakes.add(f"stream.{key}", str(value), _RFC3339)
    return None


def read_value_rule(
    source: ConfigTable, value: str | None, bounds: tuple[int, int], mistakes: Mistakes
) -> ValueRule | None:
    """How a value becomes counted units; `bounds` are the lower and upper end of one contribution."""
    expected = 'what one counted unit is worth, as text, for example "0.01"'
    text = source.text("value_unit", expected, required=False)
    lower, clip = bounds
    if value is None:
        if text is not None:
            mistakes.add(
                "source.value_unit", text, "no such key where source.value is not given: each event counts 1"
            )
        return ValueRule(Decimal(1), lower, clip)
    try:
        unit = Decimal("1" if text is None else text)
    except InvalidOperation:
        mistakes.add("source.value_unit", text, expected)
        return None
    return mistakes.attempt(lambda: ValueRule(unit, lower, clip), "source.")
