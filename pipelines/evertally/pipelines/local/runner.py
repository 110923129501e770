"""The local pipeline: one file in, one file of noisy totals out, one ledger between them.

A file's ticks close only after its end was reached and verified, so a broken input releases nothing.
A stopped run is continued by reading the input again from its start: what was released is compared
with it and never computed again.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from evertally.accountants.budget.ledger import LedgerStore
from evertally.accountants.budget.opening import ledger_exists, open_ledger
from evertally.errors import IntegrityError, InvalidParameter
from evertally.pipelines.bounding import UnitBounder, UnitNumbers
from evertally.pipelines.closings import ClosingBlock, TickSums
from evertally.pipelines.config import RunConfig
from evertally.pipelines.dead_letters import DeadLetterFile
from evertally.pipelines.events import EventParser
from evertally.pipelines.keyfile import KeyFile
from evertally.pipelines.local.aggregate import aggregate
from evertally.pipelines.local.csv_source import CsvSource
from evertally.pipelines.local.jsonl_source import JsonLinesSource
from evertally.pipelines.local.lines import LineReader
from evertally.pipelines.raw_records import Source
from evertally.pipelines.releaser import Releaser
from evertally.pipelines.releases import StreamHeader
from evertally.pipelines.sinks import FileSink, Sink

__all__ = ["Progress", "RunSummary", "check_source", "run_local", "stream_exists"]

Progress = Callable[[int, int], None]
"""Called with (ticks released, ticks in all); both are public."""

_TICKS_A_BLOCK: Final = 512
_NO_STREAM_ID: Final = bytes(16)


@dataclass(frozen=True, slots=True)
class RunSummary:
    """What a run did; everything in it is public.

    Attributes:
        header: the stream's public parameters and guarantee.
        ticks: number of ticks of the stream.
        released: how many of them this run released.
        releases: the file they are in.
        dead_letters: the operators' file of refused lines; how many there are is not public.
    """

    header: StreamHeader
    ticks: int
    released: int
    releases: Path
    dead_letters: Path


def run_local(
    config: RunConfig,
    *,
    resume: bool = False,
    progress: Progress | None = None,
    open_store: Callable[[Path, bool], LedgerStore] | None = None,
    open_sink: Callable[[Path, bytes], AbstractContextManager[Sink]] = FileSink,
) -> RunSummary:
    """Run a stream from its file to its releases.

    Args:
        config: the whole declaration.
        resume: continue the stream of an existing state file; without it a new stream must begin.
        progress: told after every block of ticks.
        open_store: opens the ledger at a path, creating it only if the second argument is true.
        open_sink: opens the releases file with its header line.

    Raises:
        InvalidParameter: unusable input, or the stream exists (not resuming) or does not (resuming).
        BudgetExceeded: the scope does not admit the stream; nothing was drawn.
        IntegrityError: state, key or input contradict what was released.
        StorageFull: a durable write failed.
    """
    if resume and not ledger_exists(config.state):
        raise InvalidParameter(
            "state.path",
            str(config.state),
            "an existing state file to resume; without one a new stream is paid for",
        )
    store = (open_store or _open_ledger)(config.state, not resume)
    try:
        exists = store.find_stream(config.spec.name) is not None
        if exists != resume:
            expected = (
                "a new name, or --resume to continue it" if exists else "a stream that is in the state file"
            )
            raise InvalidParameter("stream.name", config.spec.name, expected)
        if not exists:
            _require_unpublished(config)
        key_file = KeyFile.open(config.key_file) if exists else KeyFile.open_or_create(config.key_file)
        sums, position = _read(config, key_file)
        releaser = Releaser.open(store, config.spec, key_file, holder=f"{socket.gethostname()}:{os.getpid()}")
        with open_sink(config.releases, releaser.header.encode()) as sink:
            released = _release(config, releaser, sums, position, sink, progress)
        return RunSummary(releaser.header, config.ticks.ticks, released, config.releases, config.dead_letters)
    finally:
        store.close()


def _require_unpublished(config: RunConfig) -> None:
    """Before a new stream is paid for: its releases file is none, or holds no more than its header."""
    if not os.path.exists(config.releases):
        return
    with FileSink(config.releases, config.spec.header(1).encode()) as sink:
        if sink.last_tick():
            raise IntegrityError(
                f"{config.releases} holds ticks of this stream, the ledger none: an older ledger was put back"
            )
        sink.rewind(0)


def check_source(config: RunConfig) -> None:
    """Read the beginning of a file: does it have the declared columns? Standard input is not touched.

    Raises:
        InvalidParameter: an unknown column, an empty or binary file, a broken gzip.
    """
    if config.source.path != "-":
        next(iter(_source(config).batches()), None)


def stream_exists(config: RunConfig) -> bool:
    """Whether the state file holds the stream, so that a run has to resume it."""
    if not ledger_exists(config.state):
        return False
    store = _open_ledger(config.state, False)
    try:
        return store.find_stream(config.spec.name) is not None
    finally:
        store.close()


def _open_ledger(path: Path, create: bool) -> LedgerStore:
    return open_ledger(path, create=create)


def _read(config: RunConfig, key_file: KeyFile) -> tuple[TickSums, bytes]:
    """Exact sums of the whole input, and its position after the end."""
    source = _source(config)
    grid, keys = config.ticks, config.spec.keys
    # a file is read before its stream is opened, and the units' numbers do not outlive the run
    numbers = UnitNumbers(key_file.derive("unit", config.spec.name, _NO_STREAM_ID, 0))
    parser = EventParser(
        grid,
        keys,
        config.other,
        config.source.timezone,
        config.source.values,
        numbers,
        keep_places=config.spec.scope.adjacency == "replace-value",
    )
    bounder = None if config.bound is None else UnitBounder(config.bound, grid)
    with DeadLetterFile(config.dead_letters) as dead_letters:
        sums = aggregate(source, parser, grid, len(keys), bounder, dead_letters)
    return sums, source.position()


def _source(config: RunConfig) -> Source:
    reader = LineReader(config.source.path)
    kind = CsvSource if config.source.format == "csv" else JsonLinesSource
    return kind(reader, config.source.fields)


def _release(
    config: RunConfig,
    releaser: Releaser,
    sums: TickSums,
    position: bytes,
    sink: Sink,
    progress: Progress | None,
) -> int:
    """Close every tick in order, the released ones included: those are compared, not computed again."""
    grid = config.ticks
    released = 0
    releaser.publish(sink)
    for first in range(0, grid.ticks, _TICKS_A_BLOCK):
        stop = min(first + _TICKS_A_BLOCK, grid.ticks)
        block = ClosingBlock(
            config.spec.name,
            config.spec.keys,
            first + 1,
            sums.rows(first, stop),
            position,
            tuple(grid.end_ms(t) for t in range(first + 1, stop + 1)),
        )
        released += releaser.release(block)
        releaser.publish(sink)
        if progress is not None:
            progress(stop, grid.ticks)
    return released
