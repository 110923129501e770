"""What every engine's configuration shares: the file and its tables, what may be lost, the stream itself.

`evertally run` and `evertally worker` differ in where events come from and when ticks close; a stream that
both declare in the same words is the same stream, with the same charge.
"""

from __future__ import annotations

import datetime
import difflib
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from evertally.counters.contribution import ADJACENCIES
from evertally.counters.grid import SLACK_HORIZON
from evertally.errors import InvalidParameter, UnsupportedMechanism
from evertally.pipelines.bounding import UnitBound
from evertally.pipelines.config_parts import EVENT, Loss, read_bound, read_loss
from evertally.pipelines.config_table import ConfigTable, InvalidConfig, Mistakes
from evertally.pipelines.stream_spec import StreamSpec

__all__ = ["Declared", "EventFields", "Privacy", "load_declaration", "read_privacy", "stream_spec"]

C = TypeVar("C")
Tables = dict[str, ConfigTable]


@dataclass(frozen=True, slots=True)
class Privacy:
    """What [privacy] and [budget] say of one contribution, one unit, and the whole stream."""

    unit: str
    clip: int
    lower: int
    bound: UnitBound | None
    adjacency: str
    mechanism: str
    slack_horizon: int
    loss: Loss | None


@dataclass(frozen=True, slots=True)
class Declared:
    """A stream's name, declared keys, clock and shards."""

    name: str
    keys: tuple[str, ...]
    start_ms: int
    tick_ms: int
    closing: str = "file"
    shards: int = 1


@dataclass(frozen=True, slots=True)
class EventFields:
    """What decides which tick, key, unit and amount an event counts for.

    Attributes:
        unit: the field that identifies the privacy unit, None at event level.
        timezone: what a time stamp without an offset means, None to refuse it.
        other: the declared key that takes undeclared ones, None to refuse those.
        value: the field with the event's value and the size of one counted unit, None to count events.
    """

    unit: str | None
    timezone: datetime.tzinfo | None
    other: str | None
    value: tuple[str, object] | None


_OTHERS: Final = {  # a whole file that is another command's
    "kafka": "no such table here; a stream of a topic is for `evertally worker`, `beam` or `flink submit`",
    "output": "no such table here; a stream of a file is for `evertally run`",
    "run": "no such table here; a training run is for `evertally train`",
}


def load_declaration(
    path: Path,
    names: tuple[str, ...],
    assemble: Callable[[Tables, Path, Mistakes], C | None],
    amend: Callable[[dict[str, object], Mistakes], None] | None = None,
) -> C:
    """Read a TOML file of tables `names` and put its configuration together.

    Args:
        path: the file.
        names: the tables it may have.
        assemble: makes the configuration of the tables and the file's folder, noting mistakes.
        amend: may change the parsed file before, for example from the environment.

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
        if name not in names:
            near = difflib.get_close_matches(name, names, 1)
            known = f"no such table; did you mean [{near[0]}]?" if near else f"one of [{'], ['.join(names)}]"
            mistakes.add(name, "an unknown table or key", _OTHERS.get(name, known))
    if amend is not None:
        amend(data, mistakes)
    tables = {name: ConfigTable(name, data.get(name), mistakes) for name in names}
    config = assemble(tables, path.parent, mistakes)
    for table in tables.values():
        table.finish()
    if config is None or mistakes.found:
        raise InvalidConfig(str(path), tuple(mistakes.found))
    return config


def read_privacy(privacy: ConfigTable, budget: ConfigTable, name: str | None, mistakes: Mistakes) -> Privacy:
    """The tables [privacy] and [budget] of the stream `name`."""
    unit = privacy.text("unit", "event, or what a unit is, for example person", required=False) or EVENT
    clip = privacy.integer("clip", low=1, high=2**40) or 1
    lower = privacy.integer("lower", low=-(2**40), high=0) or 0
    if lower not in (0, -clip):
        mistakes.add("privacy.lower", lower, f"0, or {-clip} (the negative of clip)")
        lower = 0
    bound = read_bound(privacy, unit, mistakes)
    adjacency = privacy.choice("adjacency", ADJACENCIES, "add-remove")
    mechanism = privacy.text("mechanism", "a mechanism id", required=False) or "rational:W32"
    horizon = privacy.integer("slack_horizon", low=1, high=2**50) or SLACK_HORIZON
    loss = read_loss(privacy, budget, name, unit, adjacency, mistakes)
    return Privacy(unit, clip, lower, bound, adjacency, mechanism, horizon, loss)


def stream_spec(
    declared: Declared, privacy: Privacy, events: EventFields, mistakes: Mistakes
) -> StreamSpec | None:
    """The stream itself; None after a mistake."""
    loss, limits = privacy.loss, privacy.bound or UnitBound(1, 1, 1)
    if loss is None:
        return None
    try:
        return mistakes.attempt(
            lambda: StreamSpec(
                name=declared.name,
                keys=declared.keys,
                start_ms=declared.start_ms,
                tick_ms=declared.tick_ms,
                scope=loss.scope,
                mechanism=privacy.mechanism,
                clip=privacy.clip,
                lower=privacy.lower,
                participations=limits.participations,
                min_separation=limits.min_separation,
                per_tick=limits.per_tick,
                mu=loss.mu,
                slack_horizon=privacy.slack_horizon,
                shards=declared.shards,
                closing=declared.closing,
                value_unit="events" if events.value is None else f"{events.value[1]} {events.value[0]}",
                unit_field=events.unit or "",
                timezone="" if events.timezone is None else str(events.timezone),
                other=events.other or "",
            ),
            "privacy.",
        )
    except UnsupportedMechanism as error:
        mistakes.add("privacy.mechanism", privacy.mechanism, str(error))
        return None
