"""Fixtures: a real service process on loopback over a fresh ledger."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.budget_service.harness import Service, Starter, prepare, start


@pytest.fixture
def starter(tmp_path: Path) -> Iterator[Starter]:
    """Starts services with their own settings over one ledger; every one is stopped at the end."""
    running: list[Service] = []
    tokens: dict[str, str] = {}

    def begin(location: str = "", key_file: str = "", **settings: object) -> Service:
        path = location or str(tmp_path / "ledger.db")
        if not tokens:
            tokens.update(prepare(path, key_file))
        running.append(start(path, key_file, dict(tokens), **settings))
        return running[-1]

    yield begin
    for service in running:
        service.kill()


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """One service for a whole module."""
    location = str(tmp_path_factory.mktemp("service") / "ledger.db")
    service = start(location, "", prepare(location))
    yield service
    service.kill()
