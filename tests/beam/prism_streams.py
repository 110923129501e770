"""Jobs on Prism as processes that can be killed, and the streams they count."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import apsw
from kafka_harness import KafkaStream, evertally, wait_until
from tests.contracts.engine_conformance import Case, Event, Observed, exact_steps
from tests.faults.raw_reading import not_made_yet

from evertally.accountants.budget.opening import open_ledger
from evertally.pipelines.kafka.config import load_worker_config
from evertally.pipelines.keyfile import KeyFile
from evertally.pipelines.releases import Release


class Job:
    """A job and everything it has started; `kill` ends all of it with SIGKILL."""

    def __init__(self, words: Sequence[str], log: Path) -> None:
        self.log = log
        with log.open("ab") as file:
            self.process = subprocess.Popen(
                list(words),
                stdout=file,
                stderr=file,
                start_new_session=True,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(30)

    def drain(self) -> int:
        """SIGTERM to the job, which ends all it has started; its exit code."""
        self.process.terminate()
        code = self.process.wait(120)
        wait_until("no process is left", lambda: not self._left(), 60)
        return code

    def _left(self) -> bool:
        try:
            os.killpg(self.process.pid, 0)
        except ProcessLookupError:
            return False
        return True

    def running(self) -> bool:
        if self.process.poll() is not None:
            raise AssertionError(f"the job ended:\n{self.log.read_text()[-4000:]}")
        return True


class Supervised:
    """A job that is started again when Kafka or its runner has failed it, as an orchestrator does.

    Twice at most; what the house's own checks refuse is never tried again.
    """

    def __init__(self, start: Callable[[str | None], Job]) -> None:
        self._start = start
        self._left = 2
        self.job = start("earliest")

    def running(self) -> bool:
        if self.job.process.poll() is not None:
            log = self.job.log.read_text()
            if not self._left or "IntegrityError" in log or "Fenced" in log:
                return self.job.running()
            self._left -= 1
            self.restart()
        return True

    def restart(self) -> None:
        self.job = self._start(None)


def late_stream(servers: str, folder: Path) -> KafkaStream:
    """A stream whose events go to the ticks of their own time."""
    stream = KafkaStream(
        servers,
        folder,
        tick_s=1.0,
        start_ms=(time.time_ns() // 10**9 - 300) * 1000,
        stream_extra='closing = "event-time"\nlateness_s = 1\nskew_s = 200',
        source_extra='timestamp = "at"',
    )
    stream.make_topics()
    return stream


def start_many(prism: Path, begin: str | None, streams: Sequence[KafkaStream], log: Path) -> Job:
    """One job for all of the streams."""
    script = str(Path(__file__).with_name("many_streams.py"))
    configs = [str(stream.config()) for stream in streams]
    return Job([sys.executable, script, str(prism), begin or "-", *configs], log)


def start_beam(prism: Path, begin: str | None, stream: KafkaStream, *more: str) -> Job:
    """`evertally beam` for one stream."""
    words = [*evertally(), "beam", "--config", str(stream.config()), "--prism-location", str(prism)]
    words += [] if begin is None else ["--from", begin]
    return Job([*words, *more], stream.folder / f"{stream.name}.log")


def stream_of(
    case: Case, servers: str, folder: Path, tick_s: float = 0.5, *, closings: bool = False
) -> KafkaStream:
    """The case's stream, with its topics; with `closings` its job leaves the release to a releaser."""
    extra, source = 'unit = "event"', ""
    if case.bound is not None:
        extra = (
            f'unit = "person"\nparticipations = {case.bound.participations}\n'
            f"min_separation = {case.bound.min_separation}\nper_tick = {case.bound.per_tick}"
        )
        source = 'unit = "who"'
    stream = KafkaStream(
        servers,
        folder,
        partitions=case.partitions,
        keys=case.keys,
        tick_s=tick_s,
        privacy_extra=extra,
        source_extra=source,
        kafka_extra="closing_sources = 1" if closings else "",
    )
    stream.make_topics()
    return stream


def value(event: Event) -> bytes:
    """An event as a record's value."""
    if event.raw is not None:
        return event.raw
    return json.dumps({"k": event.key, "who": event.unit}).encode()


def released(stream: KafkaStream, isolation: str = "read_committed") -> list[Release]:
    """Releases on the topic, in order."""
    return [Release.decode(r.value) for r in stream.raw("releases", isolation) if r.key is not None]


def observed(stream: KafkaStream, case: Case) -> Observed:
    """What came of a stream that was counted by arrival."""
    final = released(stream)
    config = load_worker_config(stream.config())
    store = open_ledger(config.ledger)
    opened = store.find_stream(stream.name)
    store.close()
    assert opened is not None
    steps = exact_steps(final, config.spec, opened, KeyFile.open(config.key_file))
    # a job that was killed may have left the first rows of a next tick in a transaction that nobody ended
    last = max((release.t for release in final), default=0)
    seen = [release for release in released(stream, "read_uncommitted") if release.t <= last]
    return Observed(final, seen, steps, by_stamp=False, bounded=False)


def head(stream: KafkaStream) -> int:
    """Last tick in the ledger; cheap to ask while a job runs."""
    path = stream.folder / f"{stream.name}.ledger"
    if not path.exists():
        return 0
    file = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    file.set_busy_timeout(10_000)
    try:
        found = file.execute("SELECT max(t) FROM released").fetchall()
    except apsw.Error as error:
        if not_made_yet(error):
            return 0
        raise
    finally:
        file.close()
    return int(str(found[0][0] or 0))


def wait_released(job: Job | Supervised, stream: KafkaStream, sent_ms: float, timeout_s: float) -> None:
    """Wait until ticks are published that ended well after the last event was sent."""
    due = (sent_ms + 5000 - stream.start_ms) / 1000 / stream.tick_s + 1
    wait_until("later ticks", lambda: job.running() and head(stream) > due, timeout_s, 0.5)
