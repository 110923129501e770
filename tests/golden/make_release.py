"""Write the golden files of one release: a ledger, its keys and its releases, as this program writes them.

    python -m tests.golden.make_release 0.1.0

makes tests/golden/0.1.0 and never touches one that is there. Run it once for each release whose formats
are new; every later program must read the folder to the values in its `known.json`.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import apsw
import numpy as np

from evertally.accountants.budget import ChargeRequest, GaussianLine, LedgerStore, Scope, open_ledger, schema
from evertally.counters import bank, keys
from evertally.pipelines import keyfile, releaser, sealing, stream_spec
from evertally.pipelines.closings import ClosingBlock
from evertally.pipelines.keyfile import KeyFile
from evertally.pipelines.releaser import Releaser
from evertally.pipelines.sinks import FileSink
from evertally.pipelines.stream_spec import StreamSpec

GOLDEN = Path(__file__).parent
START_MS, TICK_MS = 1_767_225_600_000, 60_000
SCOPES = (
    Scope("golden", "event", "add-remove", "4", "1e-6"),
    Scope("shared", "visitor", "replace", "8", "1e-6", filter="renyi", order="8"),
)
SPECS = (
    StreamSpec("visits", ("north", "south"), START_MS, TICK_MS, SCOPES[0], mu=0.25, closing="arrival"),
    StreamSpec(
        "visitors",
        ("all",),
        START_MS,
        TICK_MS,
        SCOPES[1],
        mu=0.25,
        participations=3,
        min_separation=2,
        clip=5,
    ),
)
CHARGE = ChargeRequest("golden", "event", "add-remove", GaussianLine("1", "40"), idempotency_key="once")


def formats() -> dict[str, int | str]:
    """The version of each format that is kept for ever."""
    return {
        "ledger schema": len(schema.MIGRATIONS),
        "counter snapshot": bank.SNAPSHOT_VERSION,
        "sealed state": releaser._STATE_VERSION,
        "sealing": sealing._VERSION.hex(),
        "key file": keyfile._MAGIC.decode(),
        "noise key": keys._VERSION_TAG.decode(),
        "stream descriptor": stream_spec._DESCRIPTOR_VERSION,
    }


def sums(spec: StreamSpec, first: int, count: int) -> np.ndarray:
    """Made-up exact sums of ticks first .. first+count-1, shape (count, keys)."""
    ticks = range(first, first + count)
    return np.array([[t * t % 7 + 3 * k for k in range(len(spec.keys))] for t in ticks], dtype=object)


def release(store: LedgerStore, spec: StreamSpec, key: KeyFile, count: int) -> list[dict[str, Any]]:
    """Release `count` further ticks; their rows as JSON values."""
    running = Releaser.open(store, spec, key, holder="golden")
    first = running.next_tick
    ends = tuple(START_MS + t * TICK_MS for t in range(first, first + count))
    block = ClosingBlock(spec.name, spec.keys, first, sums(spec, first, count), b"place %d" % first, ends)
    assert running.release(block) == count
    opened = store.find_stream(spec.name)
    assert opened is not None
    rows = store.releases(opened.shard(0), first - 1, count * len(spec.keys))
    return [{"t": row.t, "key": row.key_index, "value": row.value, "stderr": str(row.stderr)} for row in rows]


def publish(store: LedgerStore, spec: StreamSpec, key: KeyFile, path: Path) -> None:
    """Publish a stream's rows to a file."""
    running = Releaser.open(store, spec, key, holder="golden")
    with FileSink(path, running.header.encode()) as sink:
        running.publish(sink)


def described(store: LedgerStore) -> dict[str, Any]:
    """What the ledger says of itself."""
    return {
        "spent": {one.scope.name: one.spent.main for one in store.scopes()},
        "caps": {one.scope.name: one.caps.main for one in store.scopes()},
        "chains": {one.scope.name: one.chain.hex() for one in store.scopes()},
        "charges": {name: [row.event for row in store.charges(name)] for name in ("golden", "shared")},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("release", help="version of the release, for example 0.1.0")
    folder = GOLDEN / parser.parse_args().release
    folder.mkdir()
    key = KeyFile.create(folder / "stream.key")
    store = open_ledger(folder / "state.ledger")
    for scope in SCOPES:
        store.create_scope(scope)
    known: dict[str, Any] = {"formats": formats()}
    known["released"] = {spec.name: release(store, spec, key, 40) for spec in SPECS}
    publish(store, SPECS[0], key, folder / "releases.jsonl")
    known["receipt"] = store.charge(CHARGE).body.decode()
    known |= described(store)
    store.close()
    apsw.Connection(str(folder / "state.ledger")).execute("PRAGMA journal_mode = DELETE").fetchall()
    with tempfile.TemporaryDirectory() as name:  # what comes next is asked of a copy
        copy = Path(name) / "state.ledger"
        for suffix in ("", ".chainkey"):
            shutil.copy(folder / f"state.ledger{suffix}", f"{copy}{suffix}")
        again = open_ledger(copy, create=False)
        known["next"] = {spec.name: release(again, spec, key, 3) for spec in SPECS}
        again.close()
    (folder / "known.json").write_text(json.dumps(known, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
