"""What the Beam suites share: Prism, where it is built."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

PRISM = Path.home() / ".cache" / "evertally" / "prism" / "2.77.0" / "prism"


@pytest.fixture(scope="session")
def prism() -> Path:
    """The Prism binary that `make prism` builds."""
    if not PRISM.exists():
        if os.environ.get("CI", "").lower() == "true":
            pytest.fail("no Prism: run `make prism`")
        pytest.skip("no Prism: run `make prism`")
    return PRISM
