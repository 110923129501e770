"""Streams counted on Beam's Direct runners, and what came of them."""

# Beam has no types
# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from tests.contracts.engine_conformance import Case, Event, Observed, exact_steps

from evertally.pipelines.beam import ContinualCount, FileSinkRef, KeyRef, LedgerRef
from evertally.pipelines.beam.stream_ref import StreamRef, opened
from evertally.pipelines.keyfile import KeyFile
from evertally.pipelines.releases import Release, read_releases
from evertally.pipelines.stream_spec import StreamSpec

START_MS, TICK_MS = 1_700_000_000_000, 60_000
BOUNDED = "FnApiRunner"
TEST_STREAM = "BundleBasedDirectRunner"


@dataclass
class DirectStream:
    """A case's stream in a folder."""

    folder: Path
    case: Case
    closing: str = "file"
    name: str = field(default_factory=lambda: "s" + secrets.token_hex(4))

    def __post_init__(self) -> None:
        if not (self.folder / "key").exists():
            KeyFile.create(self.folder / "key")

    @property
    def spec(self) -> StreamSpec:
        made = self.case.spec(self.name, start_ms=START_MS, tick_ms=TICK_MS, closing=self.closing)
        return replace(made, unit_field="" if self.case.bound is None else "who")

    @property
    def ref(self) -> StreamRef:
        return StreamRef(self.spec, LedgerRef(str(self.folder / "ledger")), KeyRef(str(self.folder / "key")))

    @property
    def out(self) -> Path:
        return self.folder / f"{self.name}.jsonl"

    def counted(self, **options: Any) -> ContinualCount:
        """The transform under test."""
        by_unit = self.case.bound is not None
        return ContinualCount(
            self.spec,
            self.ref.ledger,
            self.ref.key,
            key_field="k",
            time_field="at",
            unit_field="who" if by_unit else None,
            folder=str(self.folder) if by_unit else None,
            buckets=2,
            sink=FileSinkRef(str(self.out)),
            **options,
        )

    def published(self) -> list[Release]:
        return list(read_releases(self.out)[1]) if self.out.exists() and self.out.stat().st_size else []

    def observed(self, seen: list[Release], *, bounded: bool) -> Observed:
        handle = opened(self.ref)
        final = self.published()
        steps = exact_steps(final, self.spec, handle.opened, handle.key_file)
        return Observed(final, seen, steps, by_stamp=True, bounded=bounded)


def element(event: Event) -> Any:
    """An event as an element; what is no event stays bytes."""
    if event.raw is not None:
        return event.raw
    return {"k": event.key, "at": START_MS + (event.tick - 1) * TICK_MS + 5, "who": event.unit}


@contextlib.contextmanager
def pipeline(runner: str, *words: str) -> Iterator[beam.Pipeline]:
    with beam.Pipeline(runner=runner, options=PipelineOptions(list(words))) as made:
        yield made


def run_bounded(stream: DirectStream, check: Callable[[Any], Any] | None = None, **options: Any) -> None:
    """Count the case once, start to end."""
    with pipeline(BOUNDED) as p:
        events = p | "Events" >> beam.Create(
            [element(event) for event in stream.case.events], reshuffle=False
        )
        counted = events | stream.counted(ticks=stream.case.ticks, **options)
        if check is not None:
            check(counted)
