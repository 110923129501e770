"""The reference pages are what the program says of itself."""

from __future__ import annotations

import importlib.util
import shlex
from collections.abc import Callable

import pytest
import typer
from rich.text import Text
from tests.docs.commands import commands
from tests.docs.pages import ROOT
from tests.docs.reference import PACKAGES, PAGES, cli_page, python_page

from evertally.pipelines.cli.app import app
from evertally.pipelines.cli.examples import EXAMPLES


@pytest.mark.parametrize(("page", "build"), PAGES.items(), ids=list(PAGES))
def test_the_page_is_in_step(page: str, build: Callable[[], str]) -> None:
    written = (ROOT / "docs" / page).read_text("utf-8")
    assert written == build().rstrip() + "\n", "run `python -m tests.docs.reference`"


def test_every_command_and_option_has_help() -> None:
    assert app.info.cls is not None
    for words, command in commands():
        assert command.help, words
        for one in command.params:
            assert getattr(one, "help", None), f"{words}: {one.name}"


def test_help_is_printed_as_it_is_written() -> None:
    """Rich takes a word in brackets for a style, and prints nothing of it."""
    for words, command in commands():
        for text in (command.help, command.epilog, *(getattr(one, "help", "") for one in command.params)):
            assert Text.from_markup(text).plain == text, words


def test_every_command_shows_an_example_that_it_understands() -> None:
    for words, command in commands():
        assert command.epilog == f"Example: {EXAMPLES[words]}"
        program, *given = shlex.split(EXAMPLES[words])
        count = len(words.split())
        assert (program, " ".join(given[:count])) == ("evertally", words)
        command.parse_args(typer.Context(command), given[count:])


def test_every_public_name_has_a_docstring() -> None:
    page = python_page()
    for package in PACKAGES:
        assert f"## {package}\n" in page
    assert "```\n\n\n" not in page, "a class or function without a docstring"
    assert "## evertally ledger verify\n" in cli_page()


@pytest.mark.soak
def test_the_figures_of_the_readme_are_what_its_script_computes() -> None:
    spec = importlib.util.spec_from_file_location(
        "make_readme_table", ROOT / "tests" / "benchmarks" / "make_readme_table.py"
    )
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    readme = (ROOT / "README.md").read_text("utf-8")
    for row in script.rows():
        assert f"| {' | '.join(row)} |" in readme, "run tests/benchmarks/make_readme_table.py"
