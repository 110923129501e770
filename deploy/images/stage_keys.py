"""Copies mounted secrets to a folder of their own, each readable by its owner alone, then becomes a program.

Kubernetes and compose mount secrets readable by a group or by everyone; key files and libpq's password
file are refused then. The image's Python runs this (there is no shell in it):

    python stage_keys.py /run/secrets /keys                    an init step of its own
    python stage_keys.py /run/secrets /keys -- PROGRAM WORDS    stage, then become the program

The target should be in memory (an emptyDir of medium Memory, a tmpfs). Other files in it are left alone; a
secret that differs from its copy replaces it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path


def stage(source: Path, target: Path) -> list[str]:
    """Copy every file of `source` (not of folders in it); the names of those that were written."""
    written = []
    for path in sorted(source.iterdir()):
        if not path.is_file():  # Kubernetes keeps its versions in folders whose names begin with two dots
            continue
        content = path.read_bytes()
        copy = target / path.name
        if copy.exists() and copy.read_bytes() == content:
            continue
        temporary = target / f".{path.name}.staged"
        temporary.unlink(missing_ok=True)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        temporary.replace(copy)
        written.append(path.name)
    return written


def main(words: list[str]) -> None:
    """Stage, and become the program after `--`, where there is one."""
    folders, program = (words[:2], words[3:]) if words[2:3] == ["--"] else (words, [])
    if len(folders) != 2:
        raise SystemExit("usage: stage_keys.py SOURCE TARGET [-- PROGRAM WORDS]")
    if Path(folders[0]).is_dir():
        stage(Path(folders[0]), Path(folders[1]))
    if program:
        os.execv(program[0], program)  # noqa: S606 - what the image's entrypoint names


if __name__ == "__main__":
    main(sys.argv[1:])
