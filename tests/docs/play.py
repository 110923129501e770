"""Play a page as a reader would, and compare or rewrite its outputs.

    python -m tests.docs.play docs/tutorial.md [--needs kafka] [--write]

--write puts the outputs of commands that differ into the page; look at the difference before you keep it.
"""

from __future__ import annotations

import argparse
import re
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.docs.pages import Block, Command, blocks, same
from tests.docs.shell import Shell

from evertally.pipelines.kafka.local_broker import free_ports

__all__ = ["Difference", "play"]

_PORT = re.compile(r"(?<=127\.0\.0\.1:)\d{4,5}|(?<=--port )\d{4,5}|(?<=localhost:)\d{4,5}")


@dataclass(frozen=True, slots=True)
class Difference:
    """A command whose output is not the page's, or that failed without the page saying so."""

    command: Command
    got: list[str]
    reason: str

    def __str__(self) -> str:
        expected, got = "\n".join(self.command.expected), "\n".join(self.got)
        return f"{self.reason}: $ {self.command.text}\n--- the page\n{expected}\n--- here\n{got}"


class _Ports:
    """The page's loopback ports, each replaced by one that is free here, so that suites do not meet."""

    def __init__(self, found: list[Block]) -> None:
        text = "\n".join(line for block in found for line in block.lines)
        named = sorted(set(_PORT.findall(text)))
        self._here = dict(zip(named, map(str, free_ports(len(named))), strict=True))
        self._there = {here: there for there, here in self._here.items()}

    def here(self, text: str) -> str:
        return _PORT.sub(lambda match: self._here[match[0]], text)

    def there(self, text: str) -> str:
        for here, there in self._there.items():
            text = re.sub(rf"(?<=[: ]){here}\b", there, text)
        return text


def play(page: Path, folder: Path, needs: str = "") -> list[Difference]:
    """Write the page's files and run its commands, those of every reader and those marked `needs`."""
    found, all_blocks = [], list(blocks(page))
    ports = _Ports(all_blocks)
    with Shell(folder) as shell:
        for block in all_blocks:
            if block.needs not in ("", needs):
                continue
            if block.file is not None:
                path = folder / block.file
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(ports.here("\n".join(block.lines)) + "\n", "utf-8")
            if not block.runs:
                continue
            if "given" in block.marks:
                shutil.copytree(
                    Path(__file__).parent / "given" / block.marks["given"], folder, dirs_exist_ok=True
                )
                status, lines = shell.run("evertally run --config *.toml")
                assert status == 0, lines
            commands = block.commands()
            for number, command in enumerate(commands):
                status, lines = shell.run(ports.here(command.text))
                got = [ports.there(line) for line in lines]
                told = number + 1 < len(commands) and commands[number + 1].text == "echo $?"
                if not same(command.expected, got, shape="example" in block.marks):
                    found.append(Difference(command, got, "another output"))
                elif status and not told:
                    found.append(Difference(command, got, f"exit status {status}"))
    return found


def _write(page: Path, differences: list[Difference], folder: Path) -> None:
    lines = page.read_text("utf-8").splitlines()
    for difference in sorted(differences, key=lambda one: -one.command.first):
        command = difference.command
        lines[command.first : command.last] = [
            line.replace(str(folder), "...").rstrip() for line in difference.got
        ]
    page.write_text("\n".join(lines) + "\n", "utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("page", type=Path)
    parser.add_argument("--needs", default="", help="kafka or train: also the commands marked so")
    parser.add_argument("--write", action="store_true", help="put differing outputs into the page")
    chosen = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="evertally-docs-"))
    try:
        differences = play(chosen.page, folder, chosen.needs)
        for difference in differences:
            print(difference, end="\n\n")
        if chosen.write:
            _write(chosen.page, differences, folder)
    finally:
        shutil.rmtree(folder)
    raise SystemExit(1 if differences else 0)


if __name__ == "__main__":
    main()
