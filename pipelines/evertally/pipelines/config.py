"""The configuration of `evertally run`: one TOML file that declares a stream, its input and its output.

Every path in it is relative to the file's own folder. docs/reference-config.md describes each key.
"""

from __future__ import annotations

import contextlib
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from evertally.counters.contribution import ADJACENCIES
from evertally.counters.grid import SLACK_HORIZON
from evertally.errors import InvalidParameter, UnsupportedMechanism
from evertally.pipelines.bounding import UnitBound
from evertally.pipelines.config_parts import (
    EVENT,
    SourceConfig,
    read_bound,
    read_keys,
    read_loss,
    read_source,
    read_ticks,
)
from evertally.pipelines.config_table import ConfigTable, InvalidConfig, Mistakes
from evertally.pipelines.stream_spec import StreamSpec
from evertally.pipelines.ticks import TickGrid

__all__ = ["RunConfig", "load_config"]

_TABLES: Final = ("stream", "source", "privacy", "budget", "output", "state")
_CELLS_MAX: Final = 2**27


@dataclass(frozen=True, slots=True)
class RunConfig:
    """All of a run: the stream's public declaration and the places it reads from and writes to.

    Attributes:
        spec: what the ledger records and charges.
        ticks: start, end and tick length.
        source: the input and its fields.
        other: the declared key that takes undeclared ones, None to refuse those.
        bound: bounds on a unit's contributions, None at event level.
        releases: output file of releases, JSON lines.
        dead_letters: output file of refused lines, mode 0600.
        state: the SQLite ledger, mode 0600.
        key_file: the secret, mode 0600.
    """

    spec: StreamSpec
    ticks: TickGrid
    source: SourceConfig
    other: str | None
    bound: UnitBound | None
    releases: Path
    dead_letters: Path
    state: Path
    key_file: Path


def load_config(path: Path) -> RunConfig:
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
    tables = {name: ConfigTable(name, data.get(name), mistakes) for name in _TABLES}
    config = _assemble(tables, path.parent, mistakes)
    for table in tables.values():
        table.finish()
    if config is None or mistakes.found:
        raise InvalidConfig(str(path), tuple(mistakes.found))
    return config


def _assemble(tables: dict[str, ConfigTable], folder: Path, mistakes: Mistakes) -> RunConfig | None:
    stream, privacy, output, state = (tables[name] for name in ("stream", "privacy", "output", "state"))
    name = stream.text("name", "a name for the stream")
    keys, other = read_keys(stream, mistakes)
    ticks = read_ticks(stream, mistakes)
    if ticks is not None and keys is not None and ticks.ticks * len(keys) > _CELLS_MAX:
        mistakes.add(
            "stream.tick_s", f"{ticks.ticks} ticks x {len(keys)} keys", f"at most {_CELLS_MAX} releases"
        )

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
    loss = read_loss(privacy, tables["budget"], name, unit, adjacency, mistakes)
    source = read_source(tables["source"], folder, unit, (lower, clip), mistakes)

    releases = _place(output.text("releases", "the file that releases are appended to"), folder)
    letters = _place(output.text("dead_letters", "a file for refused lines", required=False), folder)
    ledger = _place(state.text("path", "the state file"), folder)
    key_file = _place(state.text("key_file", "the key file, made where there is none"), folder)
    if letters is None and releases is not None:
        letters = releases.with_name(releases.name + ".dead-letters.jsonl")
    _check_distinct((releases, letters, ledger, key_file, _path_of(source)), mistakes)
    if mistakes.found or not (name and keys and ticks and loss and source):
        return None
    if not (releases and letters and ledger and key_file):
        return None
    limits = bound or UnitBound(1, 1, 1)
    value = source.fields.value
    try:
        spec = mistakes.attempt(
            lambda: StreamSpec(
                name=name,
                keys=keys,
                start_ms=ticks.start_ms,
                tick_ms=ticks.tick_ms,
                scope=loss.scope,
                mechanism=mechanism,
                clip=clip,
                lower=lower,
                participations=limits.participations,
                min_separation=limits.min_separation,
                per_tick=limits.per_tick,
                mu=loss.mu,
                slack_horizon=horizon,
                value_unit="events" if value is None else f"{source.values.unit} {value}",
            ),
            "privacy.",
        )
    except UnsupportedMechanism as error:
        mistakes.add("privacy.mechanism", mechanism, str(error))
        return None
    if spec is None:
        return None
    if ticks.ticks > spec.grid.slack_horizon:
        mistakes.add("privacy.slack_horizon", spec.grid.slack_horizon, f"at least the {ticks.ticks} ticks")
    return RunConfig(spec, ticks, source, other, bound, releases, letters, ledger, key_file)


def _place(text: str | None, folder: Path) -> Path | None:
    return None if text is None else folder / text


def _path_of(source: SourceConfig | None) -> Path | None:
    return None if source is None else Path(source.path)


def _check_distinct(paths: tuple[Path | None, ...], mistakes: Mistakes) -> None:
    """No file may be two things: an output written over the input or over the key would be lost."""
    names = ("output.releases", "output.dead_letters", "state.path", "state.key_file", "source.path")
    seen: dict[Path | tuple[int, int], str] = {}
    for name, path in zip(names, paths, strict=True):
        if path is None or str(path) == "-":
            continue
        real = path.resolve()
        marks: list[Path | tuple[int, int]] = [real]
        if name == "state.path":  # the ledger keeps files of its own beside it
            marks += [
                real.with_name(real.name + suffix) for suffix in ("-wal", "-shm", "-journal", ".chainkey")
            ]
        with contextlib.suppress(OSError):  # a hard link is the same file under another name
            status = real.stat()
            marks += [(status.st_dev, status.st_ino)]
        taken = next((seen[mark] for mark in marks if mark in seen), None)
        if taken is not None:
            mistakes.add(name, str(path), f"another file than {taken}")
        seen.update(dict.fromkeys(marks, name))
        if name != "source.path" and not real.parent.is_dir():
            mistakes.add(name, str(path), "a path in an existing folder")
