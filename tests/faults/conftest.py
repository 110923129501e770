"""What is hit by faults: servers of a test's own, a clock that lies, runners where they are built."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.faults.postgres_server import Server, running_server


@pytest.fixture
def server(postgres_server: str) -> Iterator[Server]:
    """A server of this test's own; the shared one only says that PostgreSQL is installed."""
    assert postgres_server
    with running_server() as running:
        yield running


@pytest.fixture(scope="session")
def faketime() -> str:
    """Path of libfaketime."""
    found = [*Path("/usr/lib").glob("*/faketime/libfaketime.so.1"), *Path("/usr/lib").glob("faketime/*.so.1")]
    if not found:
        reason = "no libfaketime: install the Debian package libfaketime"
        if os.environ.get("CI", "").lower() == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    return str(found[0])
