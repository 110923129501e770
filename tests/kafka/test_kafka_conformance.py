"""The Kafka worker keeps what every engine must keep: the shared cases, against a real broker."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka_harness import QUIET, KafkaStream, wait_until
from tests.contracts.engine_conformance import CASES, Case, Observed, exact_steps, verify
from tests.contracts.late_events import LateEvents

from evertally.accountants.budget.opening import open_ledger
from evertally.pipelines.kafka.config import load_worker_config
from evertally.pipelines.keyfile import KeyFile
from evertally.pipelines.releases import Release

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(600)]
_MANY_KEYS = 1000


class KafkaEngine:
    """One worker process over a topic; a restart is kill -9 while events come, a drain SIGTERM."""

    def __init__(self, servers: str, folder: Path) -> None:
        self._servers, self._folder = servers, folder

    def run(self, case: Case) -> Observed:
        stream = self._stream(case)
        seen: list[Release] = []
        try:
            worker = stream.start(begin="earliest")
            parts = case.restarts + case.drains + 1
            for part in range(parts):
                self._feed(stream, case, part, parts)
                seen += self._releases(stream, "read_uncommitted")
                if part < case.restarts:
                    worker.kill()
                    worker = stream.start()
                elif part < parts - 1:
                    assert worker.end(180) == 0
                    worker = stream.start()
            self._wait_counted(stream, case)
            assert worker.end(180) == 0
            final = self._releases(stream, "read_committed")
            seen += self._releases(stream, "read_uncommitted")
        finally:
            stream.close()
        config = load_worker_config(stream.config())
        store = open_ledger(config.ledger)
        opened = store.find_stream(stream.name)
        store.close()
        assert opened is not None
        steps = exact_steps(final, config.spec, opened, KeyFile.open(config.key_file))
        return Observed(final, seen, steps, by_stamp=False, bounded=False)

    def _stream(self, case: Case) -> KafkaStream:
        unit, source = 'unit = "event"', ""
        if case.bound is not None:
            bound = case.bound
            source = 'unit = "who"'
            unit = (
                f'unit = "person"\nparticipations = {bound.participations}\n'
                f"min_separation = {bound.min_separation}\nper_tick = {bound.per_tick}"
            )
        stream = KafkaStream(
            self._servers,
            self._folder,
            partitions=case.partitions,
            keys=case.keys,
            tick_s=0.25 if len(case.keys) < _MANY_KEYS else 5.0,
            source_extra=source,
            privacy_extra=unit,
        )
        stream.make_topics()
        return stream

    def _feed(self, stream: KafkaStream, case: Case, part: int, parts: int) -> None:
        """One part of the events; by arrival they belong to the tick in which they are read."""
        events = case.events[part * len(case.events) // parts : (part + 1) * len(case.events) // parts]
        producer = KafkaProducer(bootstrap_servers=self._servers, acks="all", linger_ms=5, **QUIET)
        pause_s = case.feed_s / max(1, len(case.events))
        for event in events:
            value = event.raw
            if value is None:
                value = json.dumps({"k": event.key, "who": event.unit}).encode()
            producer.send(stream.topic, value=value, partition=event.partition)
            time.sleep(pause_s)
        producer.flush()
        producer.close()

    def _wait_read(self, stream: KafkaStream, case: Case) -> None:
        """Until all events are committed."""
        reader = KafkaConsumer(
            bootstrap_servers=self._servers,
            group_id=f"{stream.name}.aggregate",
            enable_auto_commit=False,
            **QUIET,
        )
        places = [TopicPartition(stream.topic, number) for number in range(case.partitions)]
        ends = reader.end_offsets(places)
        wait_until("all committed", lambda: {p: reader.committed(p) for p in places} == ends, 120, 0.2)
        reader.close(autocommit=False)

    def _wait_counted(self, stream: KafkaStream, case: Case) -> None:
        """Until all events are committed, and a tick that began after that is released."""
        self._wait_read(stream, case)
        now = int((time.time() * 1000 - stream.start_ms) / (stream.tick_s * 1000)) + 2
        last = max(now, case.ticks)
        wait_until(f"tick {last} is released", lambda: self._last(stream) >= last, 240, 0.5)

    def _last(self, stream: KafkaStream) -> int:
        return max((t for _, t, _ in stream.ledger_rows()), default=0)

    def _releases(self, stream: KafkaStream, isolation: str) -> list[Release]:
        return [Release.decode(r.value) for r in stream.raw("releases", isolation) if r.key is not None]


def _now(stream: KafkaStream) -> int:
    """Tick of the clock, of one second."""
    return int((time.time() * 1000 - stream.start_ms) / 1000) + 1


def test_late_and_early_events_by_their_own_time(servers: str, tmp_path: Path) -> None:
    stream = KafkaStream(
        servers,
        tmp_path,
        tick_s=1.0,
        start_ms=(time.time_ns() // 10**9 - 300) * 1000,
        stream_extra='closing = "event-time"\nlateness_s = 1\nskew_s = 30',
        source_extra='timestamp = "at"',
    )
    stream.make_topics()
    try:
        worker = stream.start(begin="earliest")
        now = _now(stream)
        sent = LateEvents(stream.start_ms, now + 8, now - 2, now + 120)
        case = Case("late", tuple(sent.events), ticks=sent.last)
        engine = KafkaEngine(servers, tmp_path)
        engine._feed(stream, case, 0, 1)
        engine._wait_read(stream, case)
        punctual = _now(stream) < sent.first  # else a busy machine read some after their tick had closed
        engine._wait_counted(stream, case)
        assert worker.end(180) == 0
    finally:
        stream.close()
    letters = (record.value for record in stream.raw("dead-letters"))
    sent.verify(stream.exact(), letters, punctual=punctual)
    stream.judge()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_kafka_engine_conforms(case: Case, servers: str, tmp_path: Path) -> None:
    verify(case, KafkaEngine(servers, tmp_path).run(case))
