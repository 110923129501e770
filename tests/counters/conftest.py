"""Coefficients computed by tests are cached in a folder of this run, not in the user's."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="session")
def coefficient_cache_of_this_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        if "EVERTALLY_CACHE" not in os.environ:
            patch.setenv("EVERTALLY_CACHE", str(tmp_path_factory.mktemp("coefficients")))
        yield
