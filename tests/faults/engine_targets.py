"""Jobs on Prism and on Flink, killed while events flow."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

from kafka_harness import EventFeed, KafkaStream, wait_until
from tests.beam.prism_streams import Job, head, start_beam
from tests.faults.fault_schedule import Fault
from tests.faults.kafka_target import StreamReaders
from tests.faults.recorded_history import Operation, Sent
from tests.flink.flink_harness import FlinkStream, replace_task_manager

from evertally.pipelines.flink.local_cluster import LocalFlink

__all__ = ["FlinkTarget", "PrismTarget"]

_WAIT_S = 400.0


class PrismTarget:
    """`evertally beam` on Prism; "kill" ends the job and its runner, and the job is given again."""

    def __init__(self, prism: Path, stream: KafkaStream, seed: int) -> None:
        self._prism, self._stream = prism, stream
        self._job = start_beam(prism, "earliest", stream)
        self._wait_for_more(0)
        self._readers = StreamReaders(stream)
        self._feed = EventFeed(stream, rate=100, seed=seed)
        self._feed.__enter__()
        self._begun = False

    def close(self) -> None:
        """End everything, whatever happened."""
        self._stop_feeding()
        self._readers.close()
        self._job.kill()

    def inflict(self, fault: Fault) -> Iterator[Operation]:
        """SIGKILL at a random moment of running, or of starting."""
        if not self._begun:
            self._begun = True
            yield from self._readers.begin()
        assert fault.kind == "kill"
        time.sleep(fault.chance.uniform(0.5, 4.0))
        self._job.kill()
        had = head(self._stream)
        self._job = start_beam(self._prism, None, self._stream)
        if fault.chance.random() < 0.75:  # else the next kill may hit its start
            self._wait_for_more(had)
        yield from self._readers.observe()

    def finish(self) -> Iterator[Operation]:
        """Stop sending, wait until all of it is counted; a live job has no end but by force."""
        self._stop_feeding()
        self._stream.wait_totals(self._feed.sent, timeout_s=_WAIT_S)
        self._job.kill()
        self._stream.judge()
        for key, amount in self._feed.sent.items():
            yield Sent(self._stream.name, key, amount)
        yield from self._readers.end(by_force=True)

    def _wait_for_more(self, had: int) -> None:
        job: Job = self._job
        wait_until("a release", lambda: job.running() and head(self._stream) > had, _WAIT_S, 0.5)

    def _stop_feeding(self) -> None:
        if not self._feed._stop.is_set():
            self._feed.__exit__(None, None, None)


class FlinkTarget:
    """A job on two TaskManagers and its releaser; "kill" ends a TaskManager, another one comes."""

    def __init__(self, cluster: LocalFlink, stream: FlinkStream, seed: int) -> None:
        self._cluster, self._stream = cluster, stream
        self._job = stream.submit(cluster, "--from", "earliest")
        self._releaser = contextlib.ExitStack()
        self._releaser.enter_context(stream.releaser())
        wait_until("a release", lambda: stream.last_tick() > 0, _WAIT_S, 0.5)
        self._readers = StreamReaders(stream)
        self._feed = EventFeed(stream, rate=100, seed=seed)
        self._feed.__enter__()
        self._begun = False

    def close(self) -> None:
        """End everything, whatever happened."""
        self._stop_feeding()
        self._readers.close()
        self._releaser.close()

    def inflict(self, fault: Fault) -> Iterator[Operation]:
        """SIGKILL to the older of the two TaskManagers, at a random moment between checkpoints."""
        if not self._begun:
            self._begun = True
            yield from self._readers.begin()
        assert fault.kind == "kill"
        time.sleep(fault.chance.uniform(0.5, 4.0))
        replace_task_manager(self._cluster)
        self._stream.wait_running(self._cluster, self._job)
        yield from self._readers.observe()

    def finish(self) -> Iterator[Operation]:
        """Stop sending, wait until all of it is counted, stop with a savepoint, drain the releaser."""
        self._stop_feeding()
        self._stream.wait_totals(self._feed.sent, timeout_s=_WAIT_S)
        self._stream.stop(self._cluster)
        self._releaser.close()
        self._stream.judge()
        for key, amount in self._feed.sent.items():
            yield Sent(self._stream.name, key, amount)
        yield from self._readers.end()

    def _stop_feeding(self) -> None:
        if not self._feed._stop.is_set():
            self._feed.__exit__(None, None, None)
