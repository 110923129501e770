"""How a job fares, for its operators, as Flink's REST interface says: its state and its checkpoints.

Whoever watches holds neither a key nor the ledger. Of what the interface knows, numbers of records and
bytes are exact functions of the data; none of them is asked for.
"""

from __future__ import annotations

import logging
import threading
from typing import Any, Final

from evertally.errors import ServiceUnavailable
from evertally.pipelines.flink.rest import FlinkRest, understood
from evertally.pipelines.metrics import Listen, OperatorMetrics, internal_plane

__all__ = ["JobHealth", "watch_job"]

_LOG: Final = logging.getLogger(__name__)
_LOOK_S: Final = 2.0


class JobHealth:
    """The operators' plane of a job on a cluster.

    Guarantees:
        - it shows no number of records or bytes (tests/metrics/test_engine_metrics.py).

    Args:
        stream: the stream's name.
        job: the job's name on the cluster.
        rest: the cluster.
    """

    def __init__(self, stream: str, job: str, rest: FlinkRest) -> None:
        self.operators: Final = OperatorMetrics("flink")
        self._job: Final = job
        self._rest: Final = rest
        new, labels = self.operators, ("stream",)
        self._up: Final = new.gauge("jobmanager_up", "1 where the last look at the JobManager succeeded.")
        self._workers: Final = new.gauge("task_managers", "TaskManagers that are registered.")
        self._running: Final = new.gauge(
            "job_running", "1 where the job runs with all its operators.", labels
        ).labels(stream)
        self._restarts: Final = new.gauge(
            "job_restarts", "Restarts of the job since it was submitted.", labels
        ).labels(stream)
        self._completed: Final = new.gauge(
            "checkpoints_completed", "Checkpoints that the job has completed.", labels
        ).labels(stream)
        self._failed: Final = new.gauge(
            "checkpoints_failed", "Checkpoints of the job that failed.", labels
        ).labels(stream)
        self._latest: Final = new.gauge(
            "last_checkpoint_timestamp_seconds", "When the last complete checkpoint began.", labels
        ).labels(stream)

    def look(self) -> None:
        """Ask once; where there is no answer, what was seen last stays, and the job counts as down."""
        try:
            with understood():
                self._workers.set(len(self._rest.task_managers()))
                found = self._rest.live_jobs(self._job)
                running = bool(found) and self._look_at(found[0])
        except ServiceUnavailable as error:
            _LOG.warning("%s", error)
            self._up.set(0)
            self._running.set(0)
            return
        self._up.set(1)
        self._running.set(running)

    def _look_at(self, job_id: str) -> bool:
        job = self._rest.job(job_id)
        told = self._rest.checkpoints(job_id)
        self._restarts.set(self._rest.restarts(job_id))
        self._completed.set(told["counts"]["completed"])
        self._failed.set(told["counts"]["failed"])
        latest: dict[str, Any] | None = told["latest"]["completed"]
        if latest is not None:
            self._latest.set(latest["trigger_timestamp"] / 1000)
        return job["state"] == "RUNNING" and all(
            operator["status"] in ("RUNNING", "FINISHED") for operator in job["vertices"]
        )


def watch_job(health: JobHealth, listen: Listen, stop: threading.Event) -> None:
    """Serve the plane until told to stop; the job goes on."""
    health.look()
    plane = internal_plane(listen, health.operators)
    plane.start()
    _LOG.info("the operators' plane listens on %s", plane.address)
    try:
        while not stop.wait(_LOOK_S):
            health.look()
    finally:
        plane.close()
