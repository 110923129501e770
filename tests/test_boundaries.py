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
FORBIDDEN_CALLS = (
    *("eval", "exec", "__import__", "yaml.load", "yaml.unsafe_load", "yaml.full_load", "np.random"),
    *("read_pickle", "pd.read_pickle", "joblib.load", "allow_pickle"),
    *("torch.load", "torch.save", "torch.rand", "torch.randn", "torch.randint", "torch.randperm"),
    *("torch.normal", "torch.Generator", "torch.bernoulli"),
)
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


@pytest.mark.slow
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


def calls(path: Path) -> set[str]:
    """Dotted names of everything a module calls or reads as an attribute, and keywords that are not False."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.keyword) and node.arg and ast.unparse(node.value) != "False":
            found.add(node.arg)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            found.add(node.func.id)
        elif isinstance(node, ast.Attribute):
            found.add(ast.unparse(node))
    return found


def refused(name: str) -> bool:
    return any(name == f or name.startswith(f + ".") for f in (*FORBIDDEN, *FORBIDDEN_CALLS))


@pytest.mark.slow
def test_shipped_code_neither_pickles_nor_draws_guessable_noise() -> None:
    for portion in SHIPPED:
        for path in sources(portion):
            for name in imports(path) | calls(path):
                assert not refused(name), f"{path}: {name}"


@pytest.mark.parametrize(
    "line",
    [
        "from pickle import loads",
        "import numpy as np\nnp.random.default_rng()",
        "import dill",
        "import marshal\nmarshal.loads(b'')",
        "import shelve",
        "import random",
        "from numpy import random",
        "from numpy.random import default_rng",
        "import numpy\nnumpy.random.normal()",
        "import numpy as np\nnp.load('a', allow_pickle=True)",
        "eval('1')",
        "exec('1')",
        "__import__('pickle')",
        "import yaml\nyaml.load('a')",
        "import torch\ntorch.randn(3)",
        "import torch\ntorch.load('model')",
    ],
)
def test_that_lint_can_fail(line: str, tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text(line)
    assert any(refused(name) for name in imports(module) | calls(module))


def test_an_evaluation_mode_is_no_evaluation(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text("model.eval()\nnumpy.load('a', allow_pickle=False)")
    assert not any(refused(name) for name in imports(module) | calls(module))
