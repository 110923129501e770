"""A Flink cluster's REST interface: what runs, and how to stop it with a savepoint."""

from __future__ import annotations

import contextlib
import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any, Final

from evertally.errors import InvalidParameter, ServiceUnavailable

__all__ = ["FlinkRest", "understood"]

_TIMEOUT_S: Final = 30
_POLL_S: Final = 0.2
_LIVE: Final = frozenset({"CREATED", "INITIALIZING", "RUNNING", "RESTARTING", "FAILING", "RECONCILING"})
_OTHER_FORM: Final = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError)


@contextlib.contextmanager
def understood() -> Iterator[None]:
    """Raise ServiceUnavailable where an answer has another form: another server, or a proxy, has spoken."""
    try:
        yield
    except _OTHER_FORM as error:
        raise ServiceUnavailable(f"what answers is no JobManager: {type(error).__name__}") from None


class FlinkRest:
    """The interface of the JobManager at `address` ("host:port")."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        if not host or not (port.isascii() and port.isdigit()):
            raise InvalidParameter("--jobmanager", address, "host:port of the JobManager's REST interface")
        self._base: Final = f"http://{address}"

    def task_managers(self) -> list[dict[str, Any]]:
        """The workers that are registered."""
        with understood():
            return list(self.get("/taskmanagers")["taskmanagers"])

    def live_jobs(self, name: str) -> list[str]:
        """Ids of the jobs of this name that have not ended."""
        with understood():
            jobs = self.get("/jobs/overview")["jobs"]
            return [str(job["jid"]) for job in jobs if job["name"] == name and job["state"] in _LIVE]

    def job(self, job_id: str) -> dict[str, Any]:
        """A job: its state and its operators."""
        found: dict[str, Any] = self.get(f"/jobs/{job_id}")
        return found

    def checkpoints(self, job_id: str) -> dict[str, Any]:
        """Counts, sizes and places of a job's checkpoints."""
        found: dict[str, Any] = self.get(f"/jobs/{job_id}/checkpoints")
        return found

    def restarts(self, job_id: str) -> int:
        """How often a job was restarted since it was submitted; 0 where the cluster does not say yet."""
        with understood():
            found = self.get(f"/jobs/{job_id}/metrics?get=numRestarts")
            return next((int(float(entry["value"])) for entry in found), 0)

    def failures(self, job_id: str) -> str:
        """Why a job failed last, for an operator; empty where it did not."""
        history = self.get(f"/jobs/{job_id}/exceptions").get("exceptionHistory", {}).get("entries", [])
        return "\n".join(str(entry.get("stacktrace", "")) for entry in history)

    def stop(self, job_id: str, folder: str, *, timeout_s: float = 120.0) -> str:
        """Stop a job with a savepoint in `folder`; what is closed is committed. Returns the savepoint.

        Raises ServiceUnavailable where the savepoint fails or takes longer; the job then goes on.
        """
        asked = self._call("POST", f"/jobs/{job_id}/stop", {"targetDirectory": folder, "drain": False})
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            with understood():
                answer = self.get(f"/jobs/{job_id}/savepoints/{asked['request-id']}")
                if answer["status"]["id"] == "COMPLETED":
                    if "location" in answer["operation"]:
                        return str(answer["operation"]["location"])
                    raise ServiceUnavailable(f"job {job_id} made no savepoint; its log says why")
            time.sleep(_POLL_S)
        raise ServiceUnavailable(f"job {job_id} made no savepoint in {timeout_s:g} s")

    def cancel(self, job_id: str) -> None:
        """End a job without a savepoint; its last checkpoint is retained."""
        self._call("PATCH", f"/jobs/{job_id}?mode=cancel", None)

    def get(self, path: str) -> Any:
        """The answer to GET. Raises ServiceUnavailable."""
        return self._call("GET", path, None)

    def _call(self, method: str, path: str, body: dict[str, Any] | None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(  # noqa: S310 - the base is http://
            self._base + path, data=data, method=method, headers={"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:  # noqa: S310  # nosec B310  # as above
                return json.loads(answer.read() or b"{}")
        except urllib.error.HTTPError as error:
            with error:
                raise ServiceUnavailable(f"the JobManager refused {method} {path}: {error.code}") from None
        except (OSError, ValueError, RecursionError, http.client.HTTPException) as error:
            raise ServiceUnavailable(f"the JobManager at {self._base} does not answer: {error}") from None
