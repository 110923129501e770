"""Sealed closings of a Beam pipeline: the releaser's totals are those of the release step inside."""

# Beam has no types
# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

import base64
import contextlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.testing.test_stream import TestStream as Script
from kafka_harness import InThread, KafkaStream, wait_until
from tests.beam.direct import TEST_STREAM, pipeline
from tests.beam.test_beam_secrets import _unpacked
from tests.beam.test_beam_stream import _append, end, events
from tests.contracts.engine_conformance import Event

from evertally.errors import IntegrityError, InvalidParameter
from evertally.pipelines.beam import ContinualCount, FileSinkRef, KeyRef, LedgerRef
from evertally.pipelines.beam.closings_topic import ClosingsTopic
from evertally.pipelines.beam.job import CountKafka, _looking, prepare
from evertally.pipelines.beam.options import CountOptions
from evertally.pipelines.beam.per_process import close_all
from evertally.pipelines.beam.stream_ref import StreamHandle, StreamRef
from evertally.pipelines.kafka.broker import Broker
from evertally.pipelines.kafka.config import load_worker_config
from evertally.pipelines.kafka.worker import Worker
from evertally.pipelines.keyfile import KeyFile
from evertally.pipelines.metrics.standing import ShardHead
from evertally.pipelines.releases import read_releases

pytestmark = [pytest.mark.kafka, pytest.mark.slow]
START_MS, TICK_S = 1_700_000_000_000, 60.0  # those of the scripts


@pytest.fixture(autouse=True)
def _fresh_process() -> Iterator[None]:
    yield
    close_all()


@pytest.fixture
def stream(servers: str, tmp_path: Path) -> KafkaStream:
    """A stream whose closings come from Beam."""
    made = KafkaStream(
        servers,
        tmp_path,
        tick_s=TICK_S,
        start_ms=START_MS,
        stream_extra='closing = "event-time"',
        source_extra='timestamp = "at"',
        kafka_extra="closing_sources = 1",
    )
    made.make_topics()
    KeyFile.create(load_worker_config(made.config()).key_file)
    return made


def counting(stream: KafkaStream, folder: Path, ticks: Any, **options: Any) -> ContinualCount:
    """The transform, over the ledger in that folder."""
    spec = load_worker_config(stream.config()).spec
    ledger = LedgerRef(str(folder / f"{stream.name}.ledger"))
    key = KeyRef(str(folder / f"{stream.name}.key"))
    return ContinualCount(
        spec, ledger, key, key_field="k", time_field="at", ticks=ticks, skew_s=None, **options
    )


def topic_of(stream: KafkaStream) -> ClosingsTopic:
    return ClosingsTopic(Broker(stream.servers), stream.name)


def play(stream: KafkaStream, script: Script, folder: Path, *, sealed: bool) -> None:
    """Run a script of events and ticks through one of the two forms."""
    with pipeline(TEST_STREAM, "--streaming") as p:
        made = script.advance_watermark_to_infinity("events").advance_watermark_to_infinity("ticks")
        parts = p | made
        if sealed:
            closed = parts["events"] | counting(stream, folder, parts["ticks"]).sealed(topic_of(stream))
            closed.closings | beam.Map(_append, str(folder / "places"))
        else:
            sink = FileSinkRef(str(folder / "inside"))
            parts["events"] | counting(stream, folder, parts["ticks"], sink=sink)


def script(upto: int) -> Script:
    """Five ticks; one of them empty, one with an event too late."""
    given: dict[int, list[Event]] = {
        1: [Event(1, "alpha")] * 7 + [Event(1, "beta")],
        2: [Event(2, "alpha"), Event(3, "gamma")],
        4: [Event(4, "delta")] * 3,
        5: [Event(4, "gamma"), Event(5, "alpha")],
    }
    made = Script(output_tags={"events", "ticks"})
    for t in range(1, upto + 1):
        made = end(events(made, *given.get(t, [])), t)
    return made


def test_the_releaser_over_sealed_closings_equals_the_release_step_inside(
    stream: KafkaStream, tmp_path: Path
) -> None:
    """One key, one identity of the stream, two ways: every released byte is the same."""
    inside = tmp_path / "inside"
    inside.mkdir()
    config = load_worker_config(stream.config())
    StreamHandle(StreamRef(config.spec, LedgerRef(config.ledger), KeyRef(str(config.key_file)))).close()
    for path in tmp_path.glob(f"{stream.name}.*"):
        shutil.copy(path, inside)
    play(stream, script(5), inside, sealed=False)
    play(stream, script(3), tmp_path, sealed=True)
    close_all()
    play(stream, script(5), tmp_path, sealed=True)  # begins again: three ticks are compared, two written
    wanted = [release.encode() for release in read_releases(inside / "inside")[1]]
    with InThread(Worker(load_worker_config(stream.config()), release_only=True)) as running:
        wait_until("all released", lambda: running.error or len(stream.releases()) >= len(wanted), 120)
        assert running.error is None
    released = [record.value for record in stream.raw("releases") if record.key is not None]
    assert [line + b"\n" for line in released] == wanted
    assert len(wanted) == 5 * 4
    closed = stream.raw("closed", "read_uncommitted")
    assert [json.loads(record.key)["t"] for record in closed] == [1, 2, 3, 4, 5]
    assert len({len(record.value) for record in closed}) == 1, "the length says nothing of the counts"
    places = (tmp_path / "places").read_bytes().splitlines()
    assert [json.loads(line)["t"] for line in places] == [1, 2, 3, 1, 2, 3, 4, 5]
    assert stream.exact()["alpha"] == [7, 8, 8, 8, 9]


def test_other_data_for_a_closed_tick_stops_the_job(stream: KafkaStream, tmp_path: Path) -> None:
    play(stream, script(2), tmp_path, sealed=True)
    close_all()
    other = end(events(Script(output_tags={"events", "ticks"}), Event(1, "beta")), 1)
    with pytest.raises(Exception, match="comes again with other data"):
        play(stream, other, tmp_path, sealed=True)
    assert len(stream.raw("closed")) == 2


def test_a_stream_that_was_released_inside_takes_no_closings(stream: KafkaStream, tmp_path: Path) -> None:
    play(stream, script(1), tmp_path, sealed=False)
    close_all()
    with pytest.raises(IntegrityError, match="counted another way"):
        counting(stream, tmp_path, None).sealed(topic_of(stream))
    with pytest.raises(InvalidParameter, match="sink"):
        counting(stream, tmp_path, None, sink=FileSinkRef("x")).sealed(topic_of(stream))


def test_a_stream_that_has_closings_is_not_released_inside(
    stream: KafkaStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load_worker_config(stream.config())
    prepare(config, CountOptions(["--evertally_closings", "--evertally_from=earliest"]))
    prepare(config, CountOptions([]))  # none is written yet
    monkeypatch.setattr("evertally.pipelines.beam.job.closed_through", lambda *_: 3)
    with pytest.raises(IntegrityError, match="closings up to tick 3"):
        prepare(config, CountOptions([]))


def test_workers_that_close_see_neither_the_ledger_nor_the_key_file(
    stream: KafkaStream, tmp_path: Path
) -> None:
    options = CountOptions(["--evertally_closings", "--evertally_from=earliest"])
    config = load_worker_config(stream.config())
    start = prepare(config, options)
    with contextlib.ExitStack() as stack:  # nor does the operators' plane: it reads the closings' offsets
        assert _looking(config, start, stack)() == [ShardHead(0, 0)]
    made = beam.Pipeline(options=PipelineOptions([]))
    made | "Count" >> CountKafka(config, start, options)
    graph = _unpacked(made.to_runner_api().SerializeToString())
    assert b"CloseTicks" in graph
    assert str(config.key_file).encode() + b".aggregation" in graph
    secret = config.key_file.read_bytes()[16:48]
    for word in (config.ledger.encode(), secret, secret.hex().encode(), base64.b64encode(secret)):
        assert word not in graph
    assert str(config.key_file).encode() in graph.replace(b".aggregation", b"")
    assert graph.count(str(config.key_file).encode()) == graph.count(
        str(config.key_file).encode() + b".aggregation"
    ), "the key file's own path is not there"
    assert config.key_file.with_name(config.key_file.name + ".aggregation").stat().st_mode & 0o077 == 0
