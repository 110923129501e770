"""A small stream to run: two gates, six hours, a handful of events."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

Cli = Callable[..., tuple[int, str, str]]

GATES_TOML = """
[stream]
name = "gates"
keys = ["north", "south"]
start = 2024-01-01T00:00:00Z
end = 2024-01-01T06:00:00Z
tick_s = 3600

[source]
path = "events.csv"
timestamp = "at"
key = "gate"

[privacy]
epsilon = 1.0
delta = 1e-6

[output]
releases = "releases.jsonl"
dead_letters = "dead.jsonl"

[state]
path = "state.sqlite"
key_file = "key"
"""
GATES_CSV = "at,gate,who,amount\n" + "".join(
    f"2024-01-01T{n % 6:02d}:{n % 60:02d}Z,{'north' if n % 3 else 'south'},p{n % 7},{n % 5}\n"
    for n in range(60)
)


@pytest.fixture
def gates(tmp_path: Path) -> Path:
    """A folder with `run.toml` and `events.csv`; 60 good events."""
    (tmp_path / "run.toml").write_text(GATES_TOML)
    (tmp_path / "events.csv").write_text(GATES_CSV)
    return tmp_path


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Cli]:
    """Runs `evertally ARGUMENTS` in this process: (exit code, standard output, standard error)."""
    from evertally.pipelines.cli.app import main

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["evertally", *map(str, arguments)])
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = 0 if stop.code is None else int(stop.code)
        out, err = capsys.readouterr()
        return code, out, err

    yield call
    for number, handler in before.items():
        signal.signal(number, handler)
