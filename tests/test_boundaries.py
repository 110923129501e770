"""Which part may import which: read from the sources, lazy imports included."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

# (folder, folders inside it that have rules of their own, what it may not import)
RULES = [
    (
        "counters/evertally/counters",
        (),
        (
            "evertally.accountants",
            "evertally.pipelines",
            "apache_beam",
            "kafka",
            "fastapi",
            "httpx",
            "apsw",
            "psycopg",
        ),
    ),
    (
        "accountants/evertally/accountants",
        ("budget",),
        (
            "evertally.counters",
            "evertally.pipelines",
            "evertally.accountants.budget",
            "apache_beam",
            "kafka",
            "fastapi",
        ),
    ),
    ("accountants/evertally/accountants/budget", (), ("evertally.pipelines", "apache_beam", "kafka")),
    ("pipelines/evertally/pipelines", ("beam", "cli"), ("apache_beam",)),
]
SHIPPED = ("counters", "accountants", "pipelines")
# modules that must never appear in shipped code: they run stored bytes or draw guessable noise
FORBIDDEN = ("pickle", "cPickle", "dill", "marshal", "shelve", "random", "numpy.random")
ALLOWED_ANYWHERE_IN_COUNTERS = ("numpy", "scipy", "pyfftw", "cryptography", "mpmath", "numba", "evertally")


def imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found


def sources(folder: str, excluded: tuple[str, ...] = ()) -> list[Path]:
    base = ROOT / folder
    return [p for p in base.rglob("*.py") if p.relative_to(base).parts[0] not in excluded]


@pytest.mark.parametrize(("folder", "excluded", "forbidden"), RULES)
def test_imports_stay_inside_their_boundary(
    folder: str, excluded: tuple[str, ...], forbidden: tuple[str, ...]
) -> None:
    paths = sources(folder, excluded)
    assert paths
    for path in paths:
        for name in imports(path):
            assert not any(name == f or name.startswith(f + ".") for f in forbidden), f"{path}: {name}"


def test_counters_stand_on_few_libraries() -> None:
    import sys

    for path in sources("counters/evertally/counters"):
        for name in imports(path):
            top = name.split(".")[0]
            assert top in ALLOWED_ANYWHERE_IN_COUNTERS or top in sys.stdlib_module_names, f"{path}: {name}"


def test_shipped_code_neither_pickles_nor_draws_guessable_noise() -> None:
    for portion in SHIPPED:
        for path in sources(portion):
            for name in imports(path):
                assert not any(name == f or name.startswith(f + ".") for f in FORBIDDEN), f"{path}: {name}"
            text = path.read_text()
            for call in ("np.random", "eval(", "exec(", "yaml.load(", "Philox", "PCG64"):
                assert call not in text, f"{path}: {call}"
