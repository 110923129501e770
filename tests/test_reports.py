"""The page of other projects' faults names tests that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "reports.md"
NAMED = re.compile(r"`([a-z_/0-9]+\.py)::(test_\w+)`")


def rows() -> list[str]:
    table = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    return [line for line in table if not line.startswith("| report")]


def defined(path: Path) -> set[str]:
    return {node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)}


@pytest.mark.slow
def test_every_row_names_tests_that_exist() -> None:
    assert len(rows()) == 48
    for row in rows():
        named = NAMED.findall(row)
        assert named, row
        for file, test in named:
            assert test in defined(ROOT / "tests" / file), f"{file}::{test}"
