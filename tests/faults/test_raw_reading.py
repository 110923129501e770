"""The judge's reader of a ledger that is only being made."""

from __future__ import annotations

import os
from pathlib import Path

import apsw
from tests.faults.raw_reading import LedgerReader

from evertally.accountants.budget import Scope, open_ledger


def killed_before_its_write_ahead_log(path: Path) -> None:
    """Leave a file in the middle of a transaction that only a writer may roll back."""
    child = os.fork()
    if child == 0:
        file = apsw.Connection(str(path))
        file.pragma("cache_size", 5)  # so that pages are written before the end
        file.execute("BEGIN IMMEDIATE; CREATE TABLE some (x)")
        for _ in range(400):
            file.execute("INSERT INTO some VALUES (zeroblob(4000))")
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert path.with_name(path.name + "-journal").exists()


def test_a_starter_killed_before_its_write_ahead_log_has_made_nothing(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    killed_before_its_write_ahead_log(path)
    for made in (path, path.with_name("ledger.chainkey")):
        made.touch()
        made.chmod(0o600)
    path.with_name("ledger.chainkey").write_bytes(os.urandom(32))
    reader = LedgerReader(str(path))
    assert reader.read() == []
    store = open_ledger(path)  # the next starter rolls it back
    store.create_scope(Scope("s", "event", "add-remove", "4", "1e-6"))
    assert len(reader.read()) == 1
    store.close()
