"""The configuration of `evertally run`: one TOML file that declares a stream, its input and its output.

Every path in it is relative to the file's own folder. docs/reference-config.md describes each key.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from evertally.accountants.budget.opening import ledger_exists, open_ledger
from evertally.pipelines.bounding import UnitBound
from evertally.pipelines.config_parts import SourceConfig, read_keys, read_source, read_ticks
from evertally.pipelines.config_stream import (
    Declared,
    EventFields,
    load_declaration,
    read_privacy,
    stream_spec,
)
from evertally.pipelines.config_table import ConfigTable, Mistakes
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
    return load_declaration(path, _TABLES, _assemble)


def _assemble(tables: dict[str, ConfigTable], folder: Path, mistakes: Mistakes) -> RunConfig | None:
    stream, privacy, output, state = (tables[name] for name in ("stream", "privacy", "output", "state"))
    name = stream.text("name", "a name for the stream")
    keys, other = read_keys(stream, mistakes)
    ticks = read_ticks(stream, mistakes)
    if ticks is not None and keys is not None and ticks.ticks * len(keys) > _CELLS_MAX:
        mistakes.add(
            "stream.tick_s", f"{ticks.ticks} ticks x {len(keys)} keys", f"at most {_CELLS_MAX} releases"
        )

    terms = read_privacy(privacy, tables["budget"], name, mistakes)
    source = read_source(tables["source"], folder, terms.unit, (terms.lower, terms.clip), mistakes)

    releases = _place(output.text("releases", "the file that releases are appended to"), folder)
    letters = _place(output.text("dead_letters", "a file for refused lines", required=False), folder)
    ledger = _place(_state_file(state, mistakes), folder)
    key_file = _place(state.text("key_file", "the key file, made where there is none"), folder)
    if letters is None and releases is not None:
        letters = releases.with_name(releases.name + ".dead-letters.jsonl")
    _check_distinct((releases, letters, ledger, key_file, _path_of(source)), mistakes)
    if mistakes.found or not (name and keys and ticks and source):
        return None
    if not (releases and letters and ledger and key_file):
        return None
    fields = source.fields
    value = None if fields.value is None else (fields.value, source.values.unit)
    spec = stream_spec(
        Declared(name, keys, ticks.start_ms, ticks.tick_ms),
        terms,
        EventFields(fields.unit, source.timezone, other, value),
        mistakes,
    )
    if spec is None:
        return None
    _check_horizon(spec, ticks, ledger, mistakes)
    return RunConfig(spec, ticks, source, other, terms.bound, releases, letters, ledger, key_file)


def _check_horizon(spec: StreamSpec, ticks: TickGrid, ledger: Path, mistakes: Mistakes) -> None:
    """Refuse ticks that nobody has paid for: neither the declared horizon nor an extension in the ledger."""
    paid = spec.grid.slack_horizon
    if ticks.ticks <= paid:
        return
    if ledger_exists(ledger):
        store = open_ledger(ledger, create=False)
        try:
            opened = store.find_stream(spec.name)
        finally:
            store.close()
        paid = max(paid, spec.paid_horizon(opened) if opened is not None else 0)
    if ticks.ticks > paid:
        mistakes.add(
            "privacy.slack_horizon",
            paid,
            f"at least {ticks.ticks} ticks; `evertally ledger extend-horizon` pays for a running stream",
        )


def _regular_or_none(path: Path) -> bool:
    return os.path.isfile(path) or not os.path.exists(path)


def _state_file(state: ConfigTable, mistakes: Mistakes) -> str | None:
    """The state file; an address of a database, which may hold a password, is refused without being said."""
    text = state.text("path", "the state file", secret=True)
    if text is not None and "://" in text:
        mistakes.add("state.path", "an address", "a file: a run keeps its ledger in a SQLite file of its own")
        return None
    return text


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
        if name != "source.path" and not os.path.isdir(real.parent):
            mistakes.add(name, str(path), "a path in an existing folder")
        elif os.path.isdir(real) or (name == "output.releases" and not _regular_or_none(real)):
            mistakes.add(name, str(path), "a regular file")  # a run would find out after it has paid
