"""A Kafka worker under faults while events flow: killed, stopped, its ledger taken away, its clock set."""

from __future__ import annotations

import contextlib
import signal
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import apsw
from kafka import KafkaConsumer, TopicPartition
from kafka_harness import QUIET, EventFeed, KafkaStream, WorkerProcess, wait_until
from tests.faults.fault_schedule import Fault
from tests.faults.postgres_server import Server
from tests.faults.raw_reading import LedgerReader
from tests.faults.recorded_history import (
    Asked,
    Counted,
    Declared,
    Instant,
    Operation,
    Pending,
    Reread,
    Saw,
    Sent,
)

from evertally.pipelines.kafka.local_broker import LocalCluster
from evertally.pipelines.releases import Release

__all__ = ["JUMPS_S", "FedStream", "KafkaTarget", "clock_set_by"]

_START_S = 240.0
_STOPS_MAX = 50
JUMPS_S = (-3600, 3600, 10 * 365 * 86_400)
"""By how many seconds the wall clock is set."""


def clock_set_by(file: Path) -> dict[str, str]:
    """Environment of a Python program whose wall clock is set by that file."""
    _set(file, 0)
    return {"PYTHONPATH": str(Path(__file__).with_name("set_clock")), "EVERTALLY_TEST_CLOCK": str(file)}


def _set(file: Path, seconds: int) -> None:
    """Replace the file at once: it is read all the time."""
    new = file.with_suffix(".new")
    new.write_text(str(seconds))
    new.replace(file)


class StreamReaders:
    """Whoever reads a stream's releases, committed or not, and the judge who reads its ledger."""

    def __init__(self, stream: KafkaStream) -> None:
        self._stream = stream
        location = stream.ledger if "://" in stream.ledger else str(stream.folder / stream.ledger)
        self._ledger = LedgerReader(location)
        places = [TopicPartition(f"{stream.name}.releases", number) for number in range(stream.shards)]
        self._read = dict.fromkeys(places, 0)

    def begin(self) -> Iterator[Operation]:
        """What is asked of the stream."""
        yield Declared(self._stream.name, tuple(self._stream.released_keys))
        yield Asked(f"open {self._stream.name}")

    def observe(self) -> Iterator[Operation]:
        """The topic first, as everybody may read it, then the ledger."""
        topic = KafkaConsumer(  # anew each time: its brokers may be others by now
            bootstrap_servers=self._stream.servers,
            isolation_level="read_uncommitted",
            enable_auto_commit=False,
            fetch_max_wait_ms=50,
            **QUIET,
        )
        topic.assign(list(self._read))
        for place, offset in self._read.items():
            topic.seek(place, offset)
        ends, deadline = topic.end_offsets(list(self._read)), time.monotonic() + 60
        while any(self._read[place] < end for place, end in ends.items()):
            for records in topic.poll(timeout_ms=200).values():
                yield from self._saw("topic, as it is written", records)
            self._read = {place: topic.position(place) for place in self._read}  # marks have places too
            assert time.monotonic() < deadline, "the releases cannot be read"
        topic.close(autocommit=False)
        yield from self._ledger.read()
        yield Instant()

    def end(self, *, by_force: bool = False) -> Iterator[Operation]:
        """Everything from the start, what was committed only, and the exact totals behind it."""
        yield from self.observe()
        yield Reread("topic", self._stream.name)
        committed = list(self._saw("topic", self._stream.raw("releases")))
        yield from committed
        if by_force:
            last = max(found.release.t for found in committed if isinstance(found, Saw))
            yield Pending(self._stream.name, last)
        yield from self._ledger.reread(self._stream.name)
        for key, total in self._stream.totals().items():
            yield Counted(self._stream.name, key, total)

    @staticmethod
    def _saw(place: str, records: list[object]) -> Iterator[Operation]:
        for record in records:
            key, value = getattr(record, "key", None), getattr(record, "value", None)
            if key is not None and value is not None:
                yield Saw(place, Release.decode(value))


class FedStream:
    """A stream with events that never stop, and whoever reads it.

    Args:
        stream: it runs and releases.
        rate: events a second.
        seed: of the events.
    """

    def __init__(self, stream: KafkaStream, rate: float, seed: int) -> None:
        self._stream = stream
        self._readers = StreamReaders(stream)
        self._feed = EventFeed(stream, rate, seed)
        self._feed.__enter__()
        self._feeding, self._begun = True, False

    def begin(self) -> Iterator[Operation]:
        """What is asked of the stream, once."""
        if not self._begun:
            self._begun = True
            yield from self._readers.begin()

    def observe(self) -> Iterator[Operation]:
        """What there is now."""
        yield from self._readers.observe()

    def wait_counted(self, timeout_s: float) -> None:
        """Stop sending, and wait until all that was acknowledged is in the releases."""
        self._stop()
        self._stream.wait_totals(self._feed.sent, timeout_s=timeout_s)

    def end(self, *, by_force: bool = False) -> Iterator[Operation]:
        """What was sent, and everything that came of it."""
        self._stream.judge()
        for key, amount in self._feed.sent.items():
            yield Sent(self._stream.name, key, amount)
        yield from self._readers.end(by_force=by_force)

    def close(self) -> None:
        """Stop sending."""
        self._stop()

    def _stop(self) -> None:
        if self._feeding:
            self._feeding = False
            self._feed.__exit__(None, None, None)


class KafkaTarget:
    """One worker at a time over one topic, and a feed of events that never stops.

    Args:
        stream: with its topics; "clock" faults need `clock_set_by` in its environment.
        seed: of the events.
        clock: the file that sets the worker's clock.
        server: of the ledger, where that is PostgreSQL.
        cluster: of brokers, where they are to be killed; `settled` says when all copies are in sync again.
    """

    def __init__(
        self,
        stream: KafkaStream,
        seed: int,
        *,
        clock: Path | None = None,
        server: Server | None = None,
        cluster: LocalCluster | None = None,
        settled: Callable[[], bool] = lambda: True,
    ) -> None:
        self._stream, self._server, self._cluster = stream, server, cluster
        self._clock, self._settled = clock, settled
        self._worker = stream.start(begin="earliest", ready=False)
        self._worker.wait_ready(_START_S)
        self._instance = 1
        self._nodes: list[int] = []
        self._jumps = 0
        self._fed = FedStream(stream, rate=150, seed=seed)

    def close(self) -> None:
        """Stop sending."""
        self._fed.close()

    def inflict(self, fault: Fault) -> Iterator[Operation]:
        """One fault, at some moment of the traffic."""
        yield from self._fed.begin()
        time.sleep(fault.chance.uniform(0.1, 1.5))
        if fault.kind == "kill":
            self._kill(wait=fault.chance.random() < 0.5)  # else the next one may hit its start
        elif fault.kind == "zombie":
            self._stop_and_succeed()
        elif fault.kind == "ledger away":
            self._take_ledger_away(fault.chance.uniform(0.5, 3.0))
        elif fault.kind == "ledger restart":
            assert self._server is not None
            self._server.stop("immediate")
            time.sleep(fault.chance.uniform(0.0, 2.0))
            self._server.start()
        elif fault.kind == "clock":
            self._jumps += 1
            self._set_clock(JUMPS_S[self._jumps % len(JUMPS_S)])
        else:
            assert fault.kind == "broker"
            self._restart_broker(fault)
        if fault.kind != "broker":
            yield from self._fed.observe()

    def finish(self) -> Iterator[Operation]:
        """Stop sending, wait until all of it is counted, drain."""
        if self._worker.process.poll() is not None:
            self._kill(wait=False)
        self._worker.wait_ready(_START_S)
        self._fed.wait_counted(_START_S)
        assert self._worker.end() == 0
        yield from self._fed.end()

    def _kill(self, *, wait: bool) -> None:
        self._worker.kill()
        self._worker = self._start(wait=wait)

    def _start(self, *, wait: bool) -> WorkerProcess:
        worker = self._stream.start(f"w{self._instance}", ready=False)
        if wait:
            worker.wait_ready(_START_S)
        return worker

    def _stop_and_succeed(self) -> None:
        """SIGSTOP for longer than a session, while another worker takes over; then the zombie wakes up."""
        self._live()
        zombie = self._worker
        for _ in range(_STOPS_MAX):
            zombie.signal(signal.SIGSTOP)
            time.sleep(0.1)  # until it stands still
            if self._server is not None or self._file_is_free():
                break
            zombie.signal(signal.SIGCONT)  # stopped inside a transaction it would keep everybody out for ever
        else:
            raise AssertionError("the worker was inside a transaction whenever it was stopped")
        self._instance += 1
        self._worker = self._start(wait=True)  # it owns what the stopped one had
        zombie.signal(signal.SIGCONT)
        time.sleep(1.0)
        assert zombie.process.poll() in (None, 4, 5), "it has ended, or lives on as a member"
        zombie.kill()

    def _file_is_free(self) -> bool:
        """Whether nobody holds the lock of SQLite: one that was stopped holds it until it goes on."""
        with contextlib.closing(apsw.Connection(str(self._stream.folder / self._stream.ledger))) as file:
            try:
                file.execute("BEGIN IMMEDIATE; ROLLBACK")
            except apsw.BusyError:
                return False
        return True

    def _take_ledger_away(self, seconds: float) -> None:
        """A partition: every request to the ledger waits."""
        if self._server is not None:
            self._server.freeze(seconds)
            return
        file = apsw.Connection(str(self._stream.folder / self._stream.ledger))
        file.set_busy_timeout(30_000)
        file.execute("BEGIN IMMEDIATE")
        time.sleep(seconds)
        file.execute("ROLLBACK")
        file.close()

    def _set_clock(self, jump_s: int) -> None:
        """The wall clock is set, which stops the closing of ticks; it is set right, and confirmed."""
        assert self._clock is not None
        self._live()
        _set(self._clock, jump_s)
        wait_until(
            "the clock is distrusted",
            lambda: self._worker.get("/readyz")[1].get("clock") is False,
            _START_S,
        )
        # what was closed before is on its way; then no tick closes by a clock that was set
        wait_until("no more ticks close", self._stands_still, _START_S)
        before = self._last()
        _set(self._clock, 0)
        url = f"http://127.0.0.1:{self._worker.port}/confirm-clock"
        with urllib.request.urlopen(urllib.request.Request(url, method="POST"), timeout=20):
            wait_until("releases go on", lambda: self._last() > before + 1, _START_S)

    def _restart_broker(self, fault: Fault) -> None:
        assert self._cluster is not None
        if not self._nodes:  # each in turn: one of them leads the controllers
            self._nodes = fault.chance.sample(range(len(self._cluster.ports)), len(self._cluster.ports))
        node = self._nodes.pop()
        self._cluster.kill_node(node)
        time.sleep(fault.chance.uniform(0.5, 3.0))
        self._cluster.start_node(node)
        wait_until("all copies are in sync", self._settled, 180, 0.5)

    def _live(self) -> None:
        if self._worker.process.poll() is not None:
            self._worker = self._start(wait=False)
        self._worker.wait_ready(_START_S)

    def _stands_still(self) -> bool:
        """Whether four ticks pass and none is released."""
        before = self._last()
        time.sleep(4 * self._stream.tick_s)
        return self._last() == before

    def _last(self) -> int:
        return max((t for _, t, _ in self._stream.ledger_rows()), default=0)
