"""Public modules say what is public, and every such name exists."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted(
    path
    for part in ("counters", "accountants", "pipelines")
    for path in (ROOT / part / "evertally").rglob("*.py")
)


def declared(path: Path) -> list[str] | None:
    """The names in `__all__`, None where there is none."""
    for node in ast.parse(path.read_text("utf-8")).body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        if any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets):
            assert isinstance(node, ast.Assign)
            found: list[str] = ast.literal_eval(node.value)
            return found
    return None


@pytest.mark.slow
def test_every_module_that_defines_something_says_what_is_public() -> None:
    for path in SOURCES:
        body = ast.parse(path.read_text("utf-8")).body
        defines = [node.name for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
        public = [name for name in defines if not name.startswith("_")]
        if public and not (path.name == "main.py" and public == ["main"]):
            names = declared(path)
            assert names is not None, f"{path}: no __all__"
            assert len(names) == len(set(names)), path


@pytest.mark.parametrize(
    "package",
    [
        *("counters", "counters.rivals", "accountants", "accountants.budget", "accountants.budget.client"),
        *(
            "accountants.budget.service",
            "pipelines.beam",
            "pipelines.metrics",
            "testing",
            "errors",
            "validation",
        ),
    ],
)
def test_every_public_name_exists(package: str) -> None:
    module = importlib.import_module(f"evertally.{package}")
    assert module.__doc__
    for name in module.__all__:
        assert getattr(module, name) is not None
