"""What the documentation's pages contain: files to write, commands to run and the outputs they print.

A page marks a file to be written with `<!-- file: NAME -->` before its fence. A fence named `console` holds
commands after `$ ` (continued after `> `), each followed by its output. Before a console fence may stand
`<!-- needs: kafka -->` or `<!-- needs: train -->` (it runs in that suite only), `<!-- example -->` (numbers
differ from run to run: outputs are compared in shape), `<!-- given: NAME -->` (the reader has what
`given/NAME` holds, and has run its stream), or `<!-- not run: REASON -->`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["ROOT", "Block", "Command", "blocks", "pages", "same"]

ROOT = Path(__file__).resolve().parents[2]
_FENCE = re.compile(r"^(```+)\s*(\w*)\s*$")
_MARK = re.compile(r"^<!-- (file|needs|example|given|not run):? ?(.*?) ?-->$")
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?")


@dataclass(slots=True)
class Command:
    """One command, and where its output stands in the page (lines first <= n < last, from 0)."""

    text: str
    first: int
    last: int
    expected: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Block:
    """One fence with its marks; `line` counts from 1."""

    page: Path
    line: int
    language: str
    lines: list[str]
    marks: dict[str, str]

    @property
    def file(self) -> str | None:
        return self.marks.get("file")

    @property
    def needs(self) -> str:
        return self.marks.get("needs", "")

    @property
    def runs(self) -> bool:
        return self.language == "console" and "not run" not in self.marks

    def commands(self) -> list[Command]:
        found: list[Command] = []
        for at, text in enumerate(self.lines, self.line):
            if text.startswith("$ "):
                found.append(Command(text[2:], at + 1, at + 1))
            elif text.startswith("> ") and found and not found[-1].expected:
                found[-1].text += "\n" + text[2:]
                found[-1].first = found[-1].last = at + 1
            elif found:
                found[-1].expected.append(text)
                found[-1].last = at + 1
        return found


def pages() -> list[Path]:
    """README.md and every page under docs."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: Path) -> Iterator[Block]:
    """Every fence of a page, in order."""
    lines = page.read_text("utf-8").splitlines()
    at, marks = 0, {}
    while at < len(lines):
        mark, fence = _MARK.match(lines[at]), _FENCE.match(lines[at])
        if mark:
            marks[mark[1]] = mark[2]
        elif fence:
            end = lines.index(fence[1], at + 1)
            yield Block(page, at + 1, fence[2], lines[at + 1 : end], marks)
            at, marks = end, {}
        elif lines[at].strip():
            marks = {}
        at += 1


def same(expected: list[str], got: list[str], *, shape: bool) -> bool:
    """Whether an output is the page's: `...` stands for any text, alone on a line for any lines."""
    parts = []
    for line in expected:
        if line.strip() == "...":
            parts.append(r"(?:[^\n]*\n)*")
            continue
        text = _shape(line) if shape else line.rstrip()
        parts.append(r"[^\n]*".join(re.escape(piece) for piece in text.split("...")) + r"\n")
    actual = "".join((_shape(line) if shape else line.rstrip()) + "\n" for line in got)
    return re.fullmatch("".join(parts), actual) is not None


def _shape(line: str) -> str:
    return re.sub(r"[ ─━]+", " ", _NUMBER.sub("0", line)).rstrip()
