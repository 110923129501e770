"""Ledger stores for the suites that run on both databases."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from evertally.accountants.budget import LedgerStore, open_ledger


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], LedgerStore]]:
    """Opens the same ledger again and again; all are closed at the end."""
    location = str(tmp_path / "ledger.sqlite")
    if request.param == "postgres":
        location = request.getfixturevalue("postgres_address")
    opened: list[LedgerStore] = []

    def open_it() -> LedgerStore:
        opened.append(open_ledger(location, key_file=tmp_path / "chainkey"))
        return opened[-1]

    yield open_it
    for store in opened:
        store.close()
