"""The releaser alone, over closings that another engine writes; and workers over a PostgreSQL ledger."""

from __future__ import annotations

import contextlib
import json
import logging
import time
from collections import Counter
from pathlib import Path

import pytest
from kafka import KafkaProducer
from kafka_harness import KEYS, QUIET, InThread, KafkaStream, wait_until

from evertally.accountants.budget.opening import open_ledger
from evertally.errors import IntegrityError
from evertally.pipelines.kafka import release_stage
from evertally.pipelines.kafka.config import load_worker_config
from evertally.pipelines.kafka.context import StreamContext, open_new_incarnation
from evertally.pipelines.kafka.sealed_records import Piece, Place, StreamSealer
from evertally.pipelines.kafka.sums import encode_sums
from evertally.pipelines.kafka.topics import Partitions
from evertally.pipelines.kafka.worker import Worker

pytestmark = [pytest.mark.kafka, pytest.mark.slow]


class Engine:
    """Another engine's sink: two sources that write sealed sums to the closings topic."""

    def __init__(self, stream: KafkaStream, sealer: StreamSealer) -> None:
        self._stream, self._sealer = stream, sealer
        self._sequence = [0, 0]

    def write(self, *pieces: tuple[int, int, bool, dict[int, int]], steps: int = 1) -> None:
        producer = KafkaProducer(bootstrap_servers=self._stream.servers, acks="all", **QUIET)
        for source, t, end, sums in pieces:
            start = self._sequence[source]
            self._sequence[source] += steps
            place = Place(self._sealer.life, self._sealer.incarnation, source, t, end)
            piece = Piece(place, start, self._sequence[source], encode_sums(sums, range(len(KEYS))))
            key, value = self._sealer.seal(piece, 0)
            producer.send(f"{self._stream.name}.closed", key=key, value=value, partition=0)
        producer.flush()
        producer.close()


def sealer_of(stream: KafkaStream) -> StreamSealer:
    config = load_worker_config(stream.config())
    context = StreamContext.open(config, Partitions(3, 0), begun=False, may_begin=False)
    context.store.close()
    return context.sealer(config.topics.closed)


def test_closings_of_another_engine_are_released_once(servers: str, tmp_path: Path) -> None:
    stream = KafkaStream(servers, tmp_path, kafka_extra="closing_sources = 2")
    stream.make_topics()
    worker = Worker(load_worker_config(stream.config()), release_only=True)
    engine = Engine(stream, sealer_of(stream))
    with InThread(worker) as running:
        engine.write((0, 1, True, {0: 5, 1: 2}), (1, 1, False, {0: 1}))
        engine.write((0, 2, True, {3: 9}))
        running.wait_ready()
        time.sleep(1)
        assert stream.releases() == [], "source 1 has not ended tick 1"
        engine.write((1, 2, True, {0: 4}))
        stream.wait_totals({"alpha": 10, "beta": 2, "delta": 9})
        assert stream.exact()["alpha"] == [6, 10]
        engine._sequence[1] -= 1  # the engine repeats itself, as after a wrong restore
        engine.write((1, 3, True, {0: 4}), (0, 3, True, {}))
        wait_until("a repeated piece stops the releaser", lambda: running.error, 30)
        assert isinstance(running.error, IntegrityError)
    assert stream.judge() == 2


def test_a_repeated_piece_is_an_integrity_failure(servers: str, tmp_path: Path) -> None:
    stream = KafkaStream(servers, tmp_path, kafka_extra="closing_sources = 1")
    stream.make_topics()
    worker = Worker(load_worker_config(stream.config()), release_only=True)
    engine = Engine(stream, sealer_of(stream))
    engine.write((0, 1, True, {0: 5}))
    engine._sequence[0] = 0
    engine.write((0, 2, True, {0: 5}))
    with pytest.raises(IntegrityError, match="repeats or lacks"):
        worker.run()


def test_a_releaser_whose_ledger_is_lost_does_not_begin_the_stream_again(
    servers: str, tmp_path: Path
) -> None:
    """It paid for another stream, passed over the closings of the first one, and waited for ever."""
    stream = KafkaStream(servers, tmp_path, kafka_extra="closing_sources = 1")
    stream.make_topics()
    worker = Worker(load_worker_config(stream.config()), release_only=True)
    engine = Engine(stream, sealer_of(stream))
    engine.write((0, 1, True, {0: 5}))
    worker._context.store.close()
    for part in tmp_path.glob(f"{stream.ledger}*"):
        part.unlink()
    with pytest.raises(IntegrityError, match="was the ledger replaced"):
        Worker(load_worker_config(stream.config()), release_only=True)
    config = load_worker_config(stream.config())
    with contextlib.closing(open_ledger(config.ledger, key_file=config.chain_key_file)) as store:
        assert (store.streams(), store.scopes()) == ([], []), "nothing was paid"


def test_a_source_that_never_speaks_is_named(
    servers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With more closing_sources than there are, no tick ever ends, and nothing said why."""
    stream = KafkaStream(servers, tmp_path, kafka_extra="closing_sources = 3")
    stream.make_topics()
    monkeypatch.setattr(release_stage, "_SILENT_SOURCE_S", 1.0)
    monkeypatch.setattr(logging.getLogger("evertally"), "propagate", True)
    worker = Worker(load_worker_config(stream.config()), release_only=True)
    engine = Engine(stream, sealer_of(stream))
    said = "shard 0 waits at tick 1 for closings of 1 of 3 sources: 2"
    with InThread(worker) as running:
        running.wait_ready()
        time.sleep(1.5)
        assert "waits at tick" not in caplog.text, "where nobody speaks the job may not have begun"
        engine.write((0, 1, True, {0: 5}), (1, 1, True, {0: 1}))
        wait_until("the source is named", lambda: said in caplog.text, 30)
    assert running.error is None


def test_a_new_incarnation_counts_from_zero(stream: KafkaStream) -> None:
    stream.epsilon, stream.extra = 0.5, '[budget]\nscope = "all"\nepsilon_cap = 3.0\ndelta_cap = 1e-6'
    worker = stream.start(begin="earliest")
    stream.send({"k": key} for key in KEYS * 3)
    stream.wait_totals(Counter(KEYS * 3))
    assert worker.end() == 0
    assert open_new_incarnation(load_worker_config(stream.config())) == 2
    worker = stream.start()
    stream.send({"k": key} for key in KEYS)
    wait_until(
        "the second incarnation releases",
        lambda: any(release["incarnation"] == 2 for release in stream.releases()),
    )
    assert worker.end() == 0
    second = [release for release in stream.releases() if release["incarnation"] == 2]
    assert [r["t"] for r in second if r["key"] == "alpha"][:2] == [1, 2]
    headers = [json.loads(r.value) for r in stream.raw("releases") if r.key is None]
    assert [header["incarnation"] for header in headers] == [1, 2]


@pytest.mark.postgres
def test_two_workers_over_a_postgresql_ledger(servers: str, tmp_path: Path, postgres_address: str) -> None:
    stream = KafkaStream(servers, tmp_path, shards=2, ledger=postgres_address)
    path = stream.config()
    text = path.read_text()
    from evertally.pipelines.kafka.topics import create_topics

    running = []
    with contextlib.ExitStack() as stack:
        for instance in ("w1", "w2"):
            path.write_text(text.replace('instance = "w1"', f'instance = "{instance}"'))
            declared = load_worker_config(path)
            first = instance == "w1"
            if first:
                create_topics(
                    declared.broker, declared.topics, shards=2, by_unit=False, max_request_bytes=10**6
                )
            worker = Worker(declared, start_from="earliest" if first else None)
            running.append(stack.enter_context(InThread(worker)))
        for worker_thread in running:
            worker_thread.wait_ready()
        stream.send({"k": key} for key in KEYS * 25)

        def released() -> bool:
            ticks = Counter(release["key"] for release in stream.releases())
            failed = any(worker_thread.error for worker_thread in running)
            return failed or all(ticks[key] > 2 for key in KEYS)

        wait_until("three ticks of every key", released)
    assert [worker_thread.error for worker_thread in running] == [None, None]
    values = [(release["key"], release["t"]) for release in stream.releases()]
    assert len(values) == len(set(values)) > 8
    assert {key for key, _ in values} == set(KEYS)
