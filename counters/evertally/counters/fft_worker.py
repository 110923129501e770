"""A worker thread that prepares results ahead, one job at a time, and survives fork.

A job is a pure function. Asked for in another process than the one that submitted it, it is
computed again there: the thread did not come along. What a job raises surfaces where its result is
needed.
"""

from __future__ import annotations

import os
import queue
import threading
import weakref
from collections.abc import Callable
from typing import Final, Generic, TypeVar

__all__ = ["AheadWorker", "Pending"]

T = TypeVar("T")


class Pending(Generic[T]):
    """The future result of one job."""

    __slots__ = ("_done", "_error", "_job", "_pid", "_value")

    def __init__(self, job: Callable[[], T]) -> None:
        self._job: Callable[[], T] | None = job
        self._pid: Final = os.getpid()
        self._done: Final = threading.Event()
        self._value: T | None = None
        self._error: BaseException | None = None

    def compute(self) -> None:
        """Run the job; for the worker thread."""
        job = self._job
        assert job is not None
        try:
            self._value = job()
        except BaseException as error:  # handed to the thread that needs the result
            self._error = error
        self._done.set()
        self._job = None  # what the job holds is given back here, not in the thread that waits

    @property
    def failed(self) -> bool:
        """Whether the job has run and raised."""
        return self._error is not None

    def result(self) -> T:
        """Wait for the result and return it; raises what the job raised."""
        job = self._job
        if os.getpid() != self._pid and not self._done.is_set() and job is not None:
            return job()
        self._done.wait()
        if self._error is not None:
            raise self._error
        assert self._value is not None
        return self._value


class AheadWorker:
    """Owns at most one thread, started at the first job of each process, stopped by `close` or GC."""

    def __init__(self) -> None:
        self._pid = -1
        self._jobs: queue.SimpleQueue[Callable[[], None] | None]
        self._stop: Callable[[], object] | None = None

    def submit(self, job: Callable[[], T]) -> Pending[T]:
        """Queue `job` and return at once."""
        pending = Pending(job)
        if self._pid != os.getpid():
            self._start()
        self._jobs.put(pending.compute)
        return pending

    def close(self) -> None:
        """Let the thread end after its current job; a later `submit` starts another."""
        if self._stop is not None and self._pid == os.getpid():
            self._stop()
        self._pid = -1

    def _start(self) -> None:
        # The queue of another process has no thread behind it here; its finalizer does no harm.
        jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._jobs = jobs
        self._stop = weakref.finalize(self, lambda: jobs.put(None))
        threading.Thread(
            target=_serve, args=(self._jobs,), name="evertally-prepare-ahead", daemon=True
        ).start()
        self._pid = os.getpid()


def _serve(jobs: queue.SimpleQueue[Callable[[], None] | None]) -> None:
    while (job := jobs.get()) is not None:
        job()
        del job  # the arrays of a finished job must not wait for the next one
