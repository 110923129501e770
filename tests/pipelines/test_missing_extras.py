"""A command that needs a package which is not installed says which, and how to install it."""

from __future__ import annotations

import subprocess
import sys

import pytest

_PROGRAM = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "psycopg":
            raise ModuleNotFoundError("No module named 'psycopg'", name=name)
sys.meta_path.insert(0, Missing())
from evertally.pipelines.cli.app import main
main()
"""
_ADDRESS = "postgresql://someone:hunter2@127.0.0.1:1/ledger"


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ("exporter", "--ledger", _ADDRESS, "--listen", "127.0.0.1:0", "--internal-listen", "127.0.0.1:0"),
        ("ledger", "show", _ADDRESS),
    ],
)
def test_a_missing_extra_is_named(words: tuple[str, ...]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, *words], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 2
    assert "got 'no module psycopg', expected the extra `postgres` of the wheel" in done.stderr
    assert "hunter2" not in done.stdout + done.stderr
