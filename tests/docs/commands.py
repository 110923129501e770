"""The program's commands and options, as its own parser knows them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import typer

from evertally.pipelines.cli.app import app

__all__ = ["commands", "known_options"]


@cache
def _root() -> Any:
    return typer.main.get_command(app)


def commands() -> Iterator[tuple[str, Any]]:
    """(words after the program's name, command), every command and sub-command, in the order of --help."""
    yield from _below(_root(), ())


def _below(group: Any, path: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    for word in group.commands:
        _, command, _ = group.resolve_command(typer.Context(group), [word])
        if hasattr(command, "commands"):
            yield from _below(command, (*path, word))
        else:
            yield " ".join((*path, word)), command


@cache
def _options() -> dict[str, frozenset[str]]:
    return {
        words: frozenset(text for one in command.params for text in (*one.opts, *one.secondary_opts))
        | {"--help"}
        for words, command in commands()
    }


def known_options(words: Sequence[str]) -> tuple[str, frozenset[str]]:
    """The longest command that `words` begin with ("" for none) and its options; a group has all its own."""
    known = _options()
    for length in range(len(words), 0, -1):
        name = " ".join(words[:length])
        if name in known:
            return name, known[name]
        inside = [options for other, options in known.items() if other.startswith(name + " ")]
        if inside:
            return name, frozenset().union(*inside)
    return "", frozenset({"--version", "--help"})
