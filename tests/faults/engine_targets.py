"""Jobs on Prism and on Flink, killed while events flow."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

from kafka_harness import KafkaStream, wait_until
from tests.beam.prism_streams import Job, head, start_beam
from tests.faults.fault_schedule import Fault
from tests.faults.kafka_target import FedStream
from tests.faults.recorded_history import Operation
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
        self._fed = FedStream(stream, rate=100, seed=seed)

    def close(self) -> None:
        """End everything, whatever happened."""
        self._fed.close()
        self._job.kill()

    def inflict(self, fault: Fault) -> Iterator[Operation]:
        """SIGKILL at a random moment of running, or of starting."""
        yield from self._fed.begin()
        assert fault.kind == "kill"
        time.sleep(fault.chance.uniform(0.5, 4.0))
        self._job.kill()
        had = head(self._stream)
        self._job = start_beam(self._prism, None, self._stream)
        if fault.chance.random() < 0.75:  # else the next kill may hit its start
            self._wait_for_more(had)
        yield from self._fed.observe()

    def finish(self) -> Iterator[Operation]:
        """Stop sending, wait until all of it is counted; a live job has no end but by force."""
        self._fed.wait_counted(_WAIT_S)
        self._job.kill()
        yield from self._fed.end(by_force=True)

    def _wait_for_more(self, had: int) -> None:
        job: Job = self._job
        wait_until("a release", lambda: job.running() and head(self._stream) > had, _WAIT_S, 0.5)


class FlinkTarget:
    """A job on two TaskManagers and its releaser; "kill" ends a TaskManager, another one comes."""

    def __init__(self, cluster: LocalFlink, stream: FlinkStream, seed: int) -> None:
        self._cluster, self._stream = cluster, stream
        self._job = stream.submit(cluster, "--from", "earliest")
        self._releaser = contextlib.ExitStack()
        self._releaser.enter_context(stream.releaser())
        wait_until("a release", lambda: stream.last_tick() > 0, _WAIT_S, 0.5)
        self._fed = FedStream(stream, rate=100, seed=seed)

    def close(self) -> None:
        """End everything, whatever happened."""
        self._fed.close()
        self._releaser.close()

    def inflict(self, fault: Fault) -> Iterator[Operation]:
        """SIGKILL to the older of the two TaskManagers, at a random moment between checkpoints."""
        yield from self._fed.begin()
        assert fault.kind == "kill"
        time.sleep(fault.chance.uniform(0.5, 4.0))
        replace_task_manager(self._cluster)
        self._stream.wait_running(self._cluster, self._job)
        yield from self._fed.observe()

    def finish(self) -> Iterator[Operation]:
        """Stop sending, wait until all of it is counted, stop with a savepoint, drain the releaser."""
        self._fed.wait_counted(_WAIT_S)
        self._stream.stop(self._cluster)
        self._releaser.close()
        yield from self._fed.end()
