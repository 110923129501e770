"""Ledgers with real streams in them, released by the real releaser, and an exporter over them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from evertally.accountants.budget import GaussianLine, LedgerStore, Scope, open_ledger
from evertally.accountants.budget.charges import ChargeRequest
from evertally.pipelines.closings import ClosingBlock
from evertally.pipelines.keyfile import KeyFile
from evertally.pipelines.metrics import Listen
from evertally.pipelines.metrics.exporter import Exporter, ExporterSettings, parse_windows
from evertally.pipelines.releaser import Releaser
from evertally.pipelines.releases import Release
from evertally.pipelines.stream_spec import StreamSpec

SCOPE = Scope("visits", "event", "add-remove", "4", "0.000001")
START_MS = 1_767_225_600_000
TICK_MS = 60_000


class ListSink:
    """A sink in memory."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []

    def last_tick(self) -> int:
        return Release.decode(self.lines[-1]).t if self.lines else 0

    def rewind(self, mark: int) -> None:
        del self.lines[mark:]

    def append(self, rows: Iterable[bytes]) -> int:
        self.lines.extend(rows)
        return len(self.lines)


def spec(name: str, keys: Sequence[str] = ("north", "south"), mu: float = 0.05, **options: Any) -> StreamSpec:
    options = {"closing": "arrival", **options}
    return StreamSpec(name, tuple(keys), START_MS, TICK_MS, SCOPE, mu=mu, **options)


class Stream:
    """A stream that a test releases tick by tick."""

    def __init__(self, store: LedgerStore, key_file: KeyFile, declared: StreamSpec) -> None:
        self.spec = declared
        self._releasers = [
            Releaser.open(store, declared, key_file, holder="test", shard=shard)
            for shard in range(declared.shards)
        ]
        self.sinks = [ListSink() for _ in self._releasers]

    def release(self, sums: Sequence[Sequence[int]], *, publish: bool = True) -> None:
        """Rows of exact sums by key, one a tick."""
        for releaser, sink in zip(self._releasers, self.sinks, strict=True):
            columns = [self.spec.keys.index(key) for key in releaser.keys]
            first = releaser.next_tick
            releaser.release(
                ClosingBlock(
                    self.spec.name,
                    releaser.keys,
                    first,
                    np.array([[row[column] for column in columns] for row in sums], dtype=object),
                    b"",
                    tuple(START_MS + t * TICK_MS for t in range(first, first + len(sums))),
                )
            )
            if publish:
                releaser.publish(sink)


def spend(store: LedgerStore, share: float) -> None:
    """One Gaussian line that takes a share of the scope's cap."""
    mu2 = SCOPE.caps().main * share * 1e-9
    line = GaussianLine("1", f"{(1.0 / mu2) ** 0.5 * 1.0001:.6f}")
    store.charge(ChargeRequest(SCOPE.name, SCOPE.unit, SCOPE.adjacency, line))


def opened(folder: Path, location: str = "") -> tuple[LedgerStore, KeyFile]:
    """A fresh ledger with its scope, and a key file."""
    store = open_ledger(location or folder / "ledger.db", key_file=folder / "chain" if location else None)
    store.create_scope(SCOPE)
    return store, KeyFile.open_or_create(folder / "key")


def settings(windows: tuple[str, ...] = ("1h", "5m"), **options: Any) -> ExporterSettings:
    return ExporterSettings(
        Listen("127.0.0.1", 0), Listen("127.0.0.1", 0), windows=parse_windows(windows), **options
    )


@contextlib.contextmanager
def exporting(ledger: str | Path, **options: Any) -> Iterator[Exporter]:
    exporter = Exporter(str(ledger), settings(**options))
    exporter.start()
    try:
        yield exporter
    finally:
        exporter.close()


def scrape(exporter: Exporter, path: str = "/metrics", plane: int = 0) -> str:
    address = exporter.addresses[plane]
    with httpx.Client(base_url=address, trust_env=False, verify=False, timeout=60) as client:
        return client.get(path).raise_for_status().text


def samples(text: str) -> dict[str, float]:
    """Series as written to value."""
    lines = (line for line in text.splitlines() if line and not line.startswith("#"))
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}
