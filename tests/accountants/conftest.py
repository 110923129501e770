"""Oracles for the accountants' tests, loaded from beside the tests: they are no part of the product."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="session")
def monte_carlo() -> ModuleType:
    path = Path(__file__).parent / "oracles" / "monte_carlo.py"
    spec = importlib.util.spec_from_file_location("accountants_monte_carlo", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
