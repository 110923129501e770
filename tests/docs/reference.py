"""Write docs/reference-cli.md and docs/reference-python.md from the program's own help and docstrings.

    python -m tests.docs.reference

A test fails where a page is not what this writes.
"""

from __future__ import annotations

import enum
import importlib
import inspect
import re
import typing
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

from tests.docs.commands import commands
from tests.docs.pages import ROOT

from evertally.pipelines.cli.examples import EXAMPLES

__all__ = ["PAGES", "cli_page", "python_page"]

PACKAGES: Final = (
    "evertally.counters",
    "evertally.counters.rivals",
    "evertally.accountants",
    "evertally.accountants.budget",
    "evertally.accountants.budget.client",
    "evertally.accountants.budget.service",
    "evertally.pipelines.keyfile",
    "evertally.pipelines.beam",
    "evertally.pipelines.metrics",
    "evertally.errors",
    "evertally.testing",
)
_NOTE: Final = "Written by `python -m tests.docs.reference` from {}; do not edit it.\n"
_SECTION: Final = re.compile(r"^(Args|Attributes|Returns|Yields|Raises|Guarantees|Reference|Note):(.*)$")
_ITEM: Final = re.compile(r"^    (?:- )?(?:(\w[\w, .*]*?): )?(.*)$")


@cache
def cli_page() -> str:
    """Every command with its options, as --help has them."""
    parts = [
        "# Command line\n",
        _NOTE.format("the commands' own help"),
        "Results go to standard output, logs and errors to standard error. Exit codes: 0 done, 2 bad input "
        "or configuration, 3 budget refused, 4 integrity failure or full disk, 5 a needed service is "
        "unreachable; 130 and 143 after an interrupt or SIGTERM.\n",
    ]
    for words, command in commands():
        parts.append(f"## evertally {words}\n\n{_paragraphs(command.help or '')}\n")
        rows = list(_parameters(command))
        if rows:
            parts.append("\n".join(["| option | value | meaning |", "|---|---|---|", *rows]) + "\n")
        parts.append(f"    {EXAMPLES[words]}\n")
    return "\n".join(parts)


def _parameters(command: Any) -> Iterator[str]:
    for one in command.params:
        if one.name == "help":
            continue
        option, flag = one.param_type_name == "option", getattr(one, "is_flag", False)
        names = ", ".join(f"`{name}`" for name in (*one.opts, *one.secondary_opts)) if option else one.name
        said = _cell(getattr(one, "help", None) or "")
        if one.required:
            said += " Required."
        elif option and not flag and one.default not in (None, "", [], ()):
            said += f" Default: `{getattr(one.default, 'value', one.default)}`."
        yield f"| {names} | {'flag' if flag else _kind(one.type_descriptor.annotation)} | {said.strip()} |"


def _kind(annotation: Any) -> str:
    """A type in words: choices by their values, an optional or repeated one by what it holds."""
    if inspect.isclass(annotation) and issubclass(annotation, enum.Enum):
        return ", ".join(str(member.value) for member in annotation)
    inner = [one for one in typing.get_args(annotation) if one is not type(None)]
    if inner:
        return _kind(inner[0])
    return {"str": "text", "Path": "path", "int": "integer", "float": "number"}[annotation.__name__]


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _paragraphs(text: str) -> str:
    return "\n\n".join(" ".join(part.split()) for part in inspect.cleandoc(text).split("\n\n"))


@cache
def python_page() -> str:
    """Every public name with its signature and docstring."""
    parts = [
        "# Python API\n",
        _NOTE.format("docstrings"),
        "These names are public: they follow the [deprecation policy](deprecation.md). What is imported "
        "from elsewhere may change at any time.\n",
        *(f"- [{package}](#{package.replace('.', '').lower()})" for package in PACKAGES),
        "",
    ]
    for package in PACKAGES:
        module = importlib.import_module(package)
        parts.append(f"## {package}\n\n{_prose(module.__doc__ or '')}\n")
        parts += [_entry(name, getattr(module, name)) for name in module.__all__]
    return "\n".join(parts)


def _entry(name: str, value: Any) -> str:
    if not inspect.isclass(value) and not inspect.isroutine(value):
        text = repr(value)
        shown = text if len(text) < 200 and " at 0x" not in text else type(value).__name__
        return f"### {name}\n\n`{shown}`\n"
    text = f"### {name}\n\n```python\n{_signature(name, value)}\n```\n\n{_prose(value.__doc__ or '')}\n"
    if inspect.isclass(value) and not issubclass(value, tuple):
        for own, member in vars(value).items():
            found = _member(own, member)
            if found:
                text += f"\n{found}"
    return text.rstrip() + "\n"


def _member(name: str, member: Any) -> str:
    if name.startswith("_"):
        return ""
    if isinstance(member, property):
        return f"- **`{name}`**: {_first(member.__doc__)}"
    function = getattr(member, "__func__", member)
    if not inspect.isfunction(function):
        return ""
    return f"- **`{_signature(name, function)}`**: {_first(function.__doc__)}"


def _signature(name: str, value: Any) -> str:
    try:
        said = str(inspect.signature(value))
    except (TypeError, ValueError):
        return name
    said = re.sub(r"<function .*? at 0x[0-9a-f]+>", "...", said)
    said = re.sub(r"(: |-> )'([^']*)'", r"\1\2", said)  # annotations are kept as text
    said = re.sub(r'"(Literal\[[^"]*\])"', r"\1", said)
    said = re.sub(r"\b(?:[a-z_]\w*\.)+(?=[A-Z_])", "", said)  # without the packages of annotations
    said = re.sub(r"\((?:self|cls)(?:, |(?=\)))", "(", said)
    return name + ("" if said == "(*args, **kwargs)" else said)  # a Protocol is not called


def _first(text: str | None) -> str:
    return " ".join(inspect.cleandoc(text or "").split("\n\n")[0].split())


def _prose(text: str) -> str:
    """A Google docstring as Markdown: sections become lists, examples become fences."""
    lines: list[str] = []
    section, example = False, False
    for line in inspect.cleandoc(text).splitlines():
        heading = _SECTION.match(line)
        if line.startswith(">>> ") and not example:
            lines.append("```python")
            example = True
        elif example and not line:
            lines.append("```")
            example = False
        if example:
            lines.append(line)
        elif heading:
            lines += ["", f"**{heading[1]}:**{heading[2]}", *([] if heading[2] else [""])]
            section = True
        elif section and line.startswith("    "):
            item = _ITEM.match(line)
            assert item
            further = line.startswith("      ") and not line.lstrip().startswith("- ")
            if further or lines[-1].startswith("**Reference"):
                lines[-1] += " " + line.strip()
            else:
                lines.append(f"- `{item[1]}`: {item[2]}" if item[1] else f"- {item[2]}")
        else:
            section = section and not line
            lines.append(line)
    if example:
        lines.append("```")
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()


PAGES: Final = {"reference-cli.md": cli_page, "reference-python.md": python_page}


def main() -> None:
    for name, build in PAGES.items():
        Path(ROOT / "docs" / name).write_text(build().rstrip() + "\n", "utf-8")


if __name__ == "__main__":
    main()
