"""What an earlier release has written is read by this one, and goes on to the same values for ever."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.golden.make_release import CHARGE, GOLDEN, SPECS, described, formats, release

from evertally.accountants.budget import open_ledger
from evertally.counters.bank import SNAPSHOT_VERSION
from evertally.errors import IntegrityError
from evertally.pipelines.keyfile import KeyFile
from evertally.pipelines.outbox import publish_again
from evertally.pipelines.releases import read_releases

RELEASES = sorted(path for path in GOLDEN.iterdir() if (path / "known.json").exists())


@pytest.fixture(params=RELEASES, ids=lambda path: path.name)
def golden(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of one release's files, as private as they were (git keeps no such modes)."""
    folder = tmp_path / "golden"
    shutil.copytree(request.param, folder)
    for path in folder.iterdir():
        path.chmod(0o600)
    return folder


def known(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "known.json").read_text("utf-8"))
    return found


def test_todays_formats_have_golden_files() -> None:
    written = [known(path)["formats"] for path in RELEASES]
    assert formats() in written, "a format has changed: run tests/golden/make_release.py for this version"
    snapshots = json.loads((GOLDEN / "snapshots.json").read_text("utf-8"))
    assert SNAPSHOT_VERSION in {case["version"] for case in snapshots}


def test_the_ledger_is_read_to_its_known_values(golden: Path) -> None:
    store = open_ledger(golden / "state.ledger", create=False)
    try:
        assert store.verify().problems == ()
        found = described(store)
        assert found == {name: known(golden)[name] for name in found}
        assert store.charge(CHARGE).body.decode() == known(golden)["receipt"]
        assert described(store) == found, "a repeated charge is free"
    finally:
        store.close()


def test_each_stream_goes_on_to_the_known_releases(golden: Path) -> None:
    key = KeyFile.open(golden / "stream.key")
    store = open_ledger(golden / "state.ledger", create=False)
    try:
        for spec in SPECS:
            assert release(store, spec, key, 3) == known(golden)["next"][spec.name]
        assert store.verify().problems == ()
    finally:
        store.close()


def test_what_was_published_is_what_the_ledger_holds(golden: Path) -> None:
    header, rows = read_releases(golden / "releases.jsonl")
    released = known(golden)["released"][header.stream]
    assert [row.value for row in rows] == [row["value"] for row in released]
    before = (golden / "releases.jsonl").read_bytes()
    (golden / "releases.jsonl").unlink()
    store = open_ledger(golden / "state.ledger", create=False)
    try:
        opened = store.find_stream(header.stream)
        assert opened is not None
        assert publish_again(store, opened, golden / "releases.jsonl").written
    finally:
        store.close()
    assert (golden / "releases.jsonl").read_bytes() == before


def test_another_key_file_opens_nothing(golden: Path) -> None:
    store = open_ledger(golden / "state.ledger", create=False)
    try:
        with pytest.raises(IntegrityError, match="does not open"):
            release(store, SPECS[0], KeyFile.create(golden / "other.key"), 1)
    finally:
        store.close()
