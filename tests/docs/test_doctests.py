"""Every example in a docstring runs and prints what it says."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

import evertally

ROOT = Path(__file__).resolve().parents[2]


def modules() -> list[str]:
    """Shipped modules whose source has an example."""
    found = []
    for portion in ("counters", "accountants", "pipelines"):
        for path in (ROOT / portion / "evertally").rglob("*.py"):
            if ">>> " in path.read_text("utf-8"):
                name = ".".join(path.relative_to(ROOT / portion).with_suffix("").parts)
                found.append(name.removesuffix(".__init__"))
    return sorted(found)


def test_there_are_examples_in_every_portion() -> None:
    assert evertally.__path__
    assert {name.split(".")[1] for name in modules()} >= {"counters", "accountants", "pipelines"}
    assert len(modules()) > 40


@pytest.mark.slow
@pytest.mark.parametrize("name", modules())
def test_examples_print_what_they_say(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as missing:
        if (missing.name or "").split(".")[0] not in ("torch", "safetensors", "pyflink"):
            raise
        pytest.skip(f"needs {missing.name}: an extra")
    failed, tried = doctest.testmod(module, optionflags=doctest.ELLIPSIS)
    assert failed == 0
    assert tried > 0


def test_a_wrong_example_is_found() -> None:
    wrong = doctest.DocTestParser().get_doctest(">>> 1 + 1\n3\n", {}, "wrong", None, 0)
    assert doctest.DocTestRunner(verbose=False).run(wrong, out=lambda _text: None).failed == 1
