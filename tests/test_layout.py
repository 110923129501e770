"""The house's rules about where things stand."""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import evertally

ROOT = Path(__file__).resolve().parents[1]
PORTIONS = ("counters", "accountants", "pipelines")
TOP_LEVEL = {
    "pyproject.toml", "Makefile", "README.md", "CHANGELOG.md", "SECURITY.md", "LICENSE",
    "requirements.lock", "requirements-dev.lock", "requirements-train.lock", "requirements-flink.lock",
    "requirements-build.in", "bootstrap.lock",
    ".ci", ".gitignore", "counters", "accountants", "pipelines", "deploy", "tests", "docs", "examples",
}  # fmt: skip

OPTIONAL = {
    "torch": "evertally.pipelines.training",
    "safetensors": "evertally.pipelines.training",
    "pyflink": "evertally.pipelines.flink",
}


def tracked() -> list[str]:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout")
    return listed.stdout.splitlines()


def modules() -> list[str]:
    return sorted(
        name
        for _, name, _ in pkgutil.walk_packages(evertally.__path__, "evertally.", onerror=lambda _n: None)
    )


@pytest.mark.parametrize("portion", PORTIONS)
def test_namespace_folders_hold_no_init(portion: str) -> None:
    assert not (ROOT / portion / "__init__.py").exists()
    assert not (ROOT / portion / "evertally" / "__init__.py").exists()
    assert (ROOT / portion / "evertally" / portion / "py.typed").exists()


def test_the_top_level_is_the_agreed_one() -> None:
    assert {path.split("/")[0] for path in tracked()} <= TOP_LEVEL


def test_every_module_imports() -> None:
    names = modules()
    assert len(names) > 40
    for name in names:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as missing:  # an extra's library, in that extra's own package only
            if not name.startswith(OPTIONAL.get((missing.name or "").split(".")[0], "nothing")):
                raise


def test_test_modules_have_distinct_names() -> None:
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert len(names) == len(set(names))


def test_locks_carry_hashes_and_no_addresses() -> None:
    for lock in ("bootstrap.lock", *sorted(path.name for path in ROOT.glob("requirements*.lock"))):
        text = (ROOT / lock).read_text()
        assert "://" not in text
        blocks = [block for block in text.split("\n\n") if block.strip()]
        assert "--hash=sha256:" in text
        assert all(
            "==" in line or line.startswith((" ", "#")) for line in "\n".join(blocks).splitlines() if line
        )


HEAVY = ("apache_beam", "scipy.stats", "numba", "matplotlib", "torch", "pyflink")


@pytest.mark.slow
@pytest.mark.parametrize(
    "module", ["evertally.pipelines.cli.app", "evertally.counters", "evertally.accountants"]
)
def test_start_paths_stay_light(module: str) -> None:
    """Neither Beam (it installs a log handler) nor scipy.stats (over a second) is imported at start."""
    code = f"import sys, {module}; print([m for m in {HEAVY!r} if m in sys.modules])"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"
