"""What a runner stores and shows of a job: no key, no password, no exact sum."""

# Beam has no types
# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from tests.beam.direct import DirectStream
from tests.contracts.engine_conformance import Case, Event
from tests.faults.canary_search import leaks

from evertally.pipelines.beam.elements import CheckElements
from evertally.pipelines.beam.job import CountKafka, Start
from evertally.pipelines.beam.options import CountOptions
from evertally.pipelines.beam.partition_place import PartitionPlace, PlaceCoder
from evertally.pipelines.kafka.config import load_worker_config
from evertally.pipelines.keyfile import KeyFile

CONFIG = """
[stream]
name = "visits"
keys = ["a", "b"]
start = "2026-01-01T00:00:00Z"
tick_s = 1
[source]
key = "k"
unit = "who"
[privacy]
epsilon = 1.0
delta = 1e-6
unit = "person"
participations = 2
[state]
path = "ledger"
key_file = "key"
folder = "."
[kafka]
bootstrap_servers = "127.0.0.1:1"
topic = "t"
security_protocol = "SASL_PLAINTEXT"
sasl_mechanism = "PLAIN"
username = "someone"
"""


@pytest.mark.slow
def test_the_graph_holds_places_and_no_secret(tmp_path: Path) -> None:
    (tmp_path / "worker.toml").write_text(CONFIG)
    KeyFile.create(tmp_path / "key")
    config = load_worker_config(tmp_path / "worker.toml", {"EVERTALLY_KAFKA_PASSWORD": "open-sesame-4711"})
    options = CountOptions([f"--evertally_config={tmp_path / 'worker.toml'}"])
    pipeline = beam.Pipeline(options=PipelineOptions([]))
    pipeline | "Count" >> CountKafka(config, Start(3), options)
    graph = pipeline.to_runner_api().SerializeToString()
    arguments = json.dumps(options.get_all_options(), default=str).encode()
    secret = (tmp_path / "key").read_bytes()[16:48]
    places = [("graph", graph), ("unpacked graph", _unpacked(graph)), ("arguments", arguments)]
    assert leaks({"key": secret, "password": "open-sesame-4711"}, places) == []
    assert str(tmp_path / "key").encode() in _unpacked(graph)  # the place of the key does travel


def _unpacked(graph: bytes) -> bytes:
    """Steps in a graph are compressed and in base64: open them."""
    import bz2
    import re
    import zlib

    found = [graph]
    for text in re.findall(rb"[A-Za-z0-9+/=]{64,}", graph):
        for unpack in (bz2.decompress, zlib.decompress, bytes):
            try:
                found.append(unpack(base64.b64decode(text)))
            except (OSError, ValueError, zlib.error, EOFError):
                continue
    return b"".join(found)


def test_what_goes_between_steps_is_sealed(tmp_path: Path) -> None:
    stream = DirectStream(tmp_path, Case("sealed", (Event(1, "alpha"),)))
    counted = stream.counted(ticks=6)
    step = CheckElements(counted._counting)
    step.setup()
    step.start_bundle()
    for _ in range(1000):
        list(step.process({"k": "alpha", "at": 1_700_000_000_005}))
    sent: list[Any] = [out.value for out in step.finish_bundle()]
    ((place, sealed),) = sent
    assert place == (0, 1)
    assert isinstance(sealed, bytes)
    assert (1000).to_bytes(16, "big") not in sealed
    assert step._handle.sealer.open(sealed).sums == {0: 1000}
    coder = PlaceCoder(stream.ref)
    at = PartitionPlace(123_456_789_012, 7, 5, {(7, 0): 987_654_321}, (3, 4))
    assert b"123456789012" not in coder.encode(at)
    assert coder.decode(coder.encode(at)) == at
    for shown in (repr(step), repr(at), repr(step._handle)):
        assert "alpha" not in shown
        assert "987654321" not in shown


@pytest.fixture(autouse=True)
def _fresh_process() -> Any:
    from evertally.pipelines.beam.per_process import close_all

    yield
    close_all()
