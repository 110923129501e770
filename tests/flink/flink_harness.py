"""What the Flink suites share: a stream counted by a job on a real cluster and released from its closings."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kafka import KafkaProducer
from kafka_harness import QUIET, InThread, KafkaStream, wait_until
from tests.contracts.engine_conformance import Event, Observed, exact_steps

from evertally.accountants.budget.opening import open_ledger
from evertally.pipelines.flink.distribution import fetch_connector
from evertally.pipelines.flink.local_cluster import LocalFlink
from evertally.pipelines.kafka.config import load_worker_config
from evertally.pipelines.kafka.worker import Worker
from evertally.pipelines.keyfile import KeyFile
from evertally.pipelines.releases import Release

FLINK_PYTHON = Path(__file__).parents[2] / ".venv-flink" / "bin" / "python"
LANES = 2
_WAIT_S = 400.0  # a whole job's start on a machine that is busy with ten others
_EVERTALLY = "from evertally.pipelines.cli.app import main; main()"


@dataclass
class FlinkStream(KafkaStream):
    """A stream whose closings come from Flink."""

    kafka_extra: str = f"closing_sources = {LANES}"
    parallelism: int = 2
    checkpoint_s: float = 1.0
    job: str = ""

    def flink(self, cluster: LocalFlink, *words: str, check: bool = True) -> dict[str, Any]:
        """`evertally flink ...` in the environment that has PyFlink; its JSON."""
        command = [str(FLINK_PYTHON), "-c", _EVERTALLY, "flink", *words, "--config", str(self.config())]
        done = subprocess.run(
            [*command, "--jobmanager", cluster.jobmanager, "--json"],
            capture_output=True,
            text=True,
            timeout=_WAIT_S,
            check=False,
            env={**os.environ, "FLINK_CONF_DIR": str(cluster.conf)},
        )
        if check and done.returncode != 0:
            raise AssertionError(f"{words}: exit {done.returncode}\n{done.stdout}{done.stderr}")
        return {**json.loads(done.stdout.splitlines()[-1]), "exit": done.returncode}

    def submit(self, cluster: LocalFlink, *words: str) -> str:
        """Start the job and wait until it runs; its id."""
        job = self.flink(
            cluster,
            "submit",
            *words,
            *("--parallelism", str(self.parallelism), "--checkpoint-s", str(self.checkpoint_s)),
            *("--connector", str(fetch_connector())),
        )["job"]
        self.wait_running(cluster, job)
        self.job = str(job)
        return self.job

    def wait_running(self, cluster: LocalFlink, job: str) -> None:
        """Wait until every operator runs (sources that are done aside)."""

        def running() -> bool:
            found = cluster.rest.job(job)
            if found["state"] in {"FAILED", "CANCELED"}:
                raise AssertionError(cluster.rest.failures(job)[-4000:])
            return found["state"] == "RUNNING" and all(
                vertex["status"] in {"RUNNING", "FINISHED"} for vertex in found["vertices"]
            )

        wait_until("the job runs", running, _WAIT_S, 0.3)

    def stop(self, cluster: LocalFlink) -> str:
        """Stop with a savepoint; its place.

        Where a task was lost meanwhile, as a busy machine loses one, there is none: the job goes on and is
        asked again.
        """
        while True:
            self.wait_running(cluster, self.job)
            known = cluster.rest.failures(self.job)
            said = self.flink(cluster, "stop", "--savepoints", cluster.savepoints.as_uri(), check=False)
            if said["exit"] == 0:
                return str(said["savepoint"])
            assert cluster.rest.failures(self.job) != known, said

    @contextlib.contextmanager
    def releaser(self) -> Iterator[InThread]:
        """`evertally release` on a thread."""
        worker = Worker(load_worker_config(self.config()), release_only=True)
        with InThread(worker) as running:
            yield running
        assert running.error is None, running.error

    def feed(
        self, events: Iterable[Event], seconds: float = 0.0, faults: Iterable[Callable[[], Any]] = ()
    ) -> None:
        """Send events to their partitions, spread over so many seconds, with faults in between."""
        todo, inflict = list(events), list(faults)
        producer = KafkaProducer(bootstrap_servers=self.servers, acks="all", linger_ms=5, **QUIET)
        began = time.monotonic()
        for number, event in enumerate(todo):
            body = (
                event.raw if event.raw is not None else json.dumps({"k": event.key, "u": event.unit}).encode()
            )
            producer.send(self.topic, value=body, partition=event.partition)
            while inflict and number >= len(todo) * (1 - len(inflict) / (len(inflict) + 1)):
                producer.flush()
                inflict.pop(0)()
            rest = began + seconds * number / len(todo) - time.monotonic()
            if rest > 0:
                time.sleep(rest)
        producer.flush()
        producer.close()

    def wait_counted(self) -> None:
        """Wait until everything that was sent is released.

        A record that is no event, behind all others of its partition, becomes a dead letter in the same
        checkpoint in which all before it are counted; later ticks hold nothing.
        """
        before = len(self.raw("dead-letters"))
        self.feed(Event(0, "", partition, raw=b"the end") for partition in range(self.partitions))
        wait_until(
            "the fences are through",
            lambda: len(self.raw("dead-letters")) >= before + self.partitions,
            _WAIT_S,
            0.5,
        )
        self.wait_tick(self.tick_now())

    def tick_now(self) -> int:
        """Tick of the clock."""
        return int((time.time_ns() // 1_000_000 - self.start_ms) // round(self.tick_s * 1000)) + 1

    def wait_tick(self, t: int) -> None:
        """Wait until tick t is released of every key."""
        wait_until(f"tick {t} is released", lambda: self.last_tick() >= t, _WAIT_S, 0.5)

    def last_tick(self) -> int:
        """Last tick that is released."""
        return max((release["t"] for release in self.releases()), default=0)

    def observed(self) -> Observed:
        """What the conformance suite judges."""

        def releases(isolation: str) -> list[Release]:
            lines = [record.value for record in self.raw("releases", isolation) if record.key is not None]
            return [Release.decode(line) for line in lines]

        config = load_worker_config(self.config())
        store = open_ledger(config.ledger)
        opened = store.find_stream(self.name)
        store.close()
        assert opened is not None
        final = releases("read_committed")
        steps = exact_steps(final, config.spec, opened, KeyFile.open(config.key_file))
        return Observed(final, releases("read_uncommitted"), steps, by_stamp=False, bounded=False)


def replace_task_manager(cluster: LocalFlink) -> None:
    """kill -9 of the oldest TaskManager; another one comes in its place."""
    cluster.kill_task_manager(cluster.task_managers[0])
    cluster.start_task_manager(wait=False)
