"""Where the training benchmarks keep what they fetched and what they measured."""

from __future__ import annotations

import os
from pathlib import Path


def folder() -> Path:
    """The user's cache folder of this package."""
    found = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "evertally"
    found.mkdir(parents=True, exist_ok=True)
    return found
