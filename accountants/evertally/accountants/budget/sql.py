"""What the ledger needs of a database, and the group commit in front of it.

Threads that want to write queue up; one of them leads and runs every waiting piece of work in one
durable transaction, each behind its own savepoint, so that one fsync serves them all and one refusal
undoes only its own work. There is no thread in the background: nothing to stop, nothing lost in a fork.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Generic, Protocol, TypeVar

from evertally.errors import EvertallyError, IntegrityError, ServiceUnavailable

__all__ = ["Backend", "Retry", "StorageError", "Transaction", "Writer", "blob", "read_stored"]

T = TypeVar("T")
Row = tuple[Any, ...]
BATCH_MAX: Final = 256
RETRIES_MAX: Final = 8
_UNREADABLE: Final = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)


class Transaction(Protocol):
    """Statements inside an open transaction; parameters stand as `?`.

    `memo` holds what work has read or written under the transaction's locks and may use again in it. It is
    emptied whenever work is undone.
    """

    @property
    def memo(self) -> dict[tuple[str, str], Any]:
        """Rows by kind and name."""
        ...

    def rows(self, sql: str, *parameters: object) -> list[Row]:
        """Run a statement and fetch everything it returns."""
        ...

    def run(self, sql: str, *parameters: object) -> None:
        """Run a statement that returns nothing."""
        ...

    def insert(self, table: str, columns: tuple[str, ...], rows: Iterable[Row]) -> None:
        """Insert many rows, as fast as the database can."""
        ...

    def now_ms(self) -> int:
        """The ledger server's clock, epoch milliseconds."""
        ...


class StorageError(Exception):
    """A database error that ended the whole transaction; `error` is what callers get."""

    def __init__(self, error: EvertallyError) -> None:
        super().__init__(str(error))
        self.error: Final = error


class Retry(StorageError):
    """The transaction lost a conflict and may be run again from its start."""


class Backend(Protocol):
    """One database. Every method turns the driver's errors into StorageError or Retry."""

    def begin(self, locks: tuple[str, ...]) -> Transaction:
        """Start a durable read-write transaction that holds the named locks until its end."""
        ...

    def commit(self) -> None:
        """Make it durable."""
        ...

    def rollback(self) -> None:
        """Undo it; never raises."""
        ...

    def read(self, work: Callable[[Transaction], T]) -> T:
        """Run work in a consistent read-only snapshot."""
        ...

    def check(self) -> list[str]:
        """The database's own integrity check, problems in words."""
        ...

    def close(self) -> None:
        """Release everything; again is a no-op."""
        ...


def read_stored(backend: Backend, work: Callable[[Transaction], T]) -> T:
    """Run work in a read-only snapshot; a stored row that cannot be read is an IntegrityError."""
    try:
        return backend.read(work)
    except Exception as error:
        raise _declared(error) from None


def blob(value: object) -> bytes:
    """Stored bytes. Raises TypeError for any other type: `bytes(n)` of an integer would be n zeros."""
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise TypeError("stored bytes are of another type")


def _declared(error: Exception) -> Exception:
    """The error for callers: what a row of other types and texts than ours leads to is a damaged ledger."""
    if isinstance(error, EvertallyError) or not isinstance(error, _UNREADABLE):
        return error
    return IntegrityError(f"a stored row cannot be read: {type(error).__name__}")


class _Job(Generic[T]):
    __slots__ = ("done", "error", "leads", "locks", "value", "wake", "work")

    def __init__(
        self, work: Callable[[Transaction], T], locks: tuple[str, ...], wake: threading.Event
    ) -> None:
        self.work = work
        self.locks = locks
        self.wake = wake
        self.leads = False
        self.done = False
        self.value: T | None = None
        self.error: BaseException | None = None


class Writer:
    """The group-committing writer of one process."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._queue: deque[_Job[Any]] = deque()
        self._mutex = threading.Lock()
        self._busy = False
        self._pid = os.getpid()

    @property
    def waiting(self) -> int:
        """Pieces of work that wait for the next transaction."""
        return len(self._queue)

    def run(self, work: Callable[[Transaction], T], *locks: str) -> T:
        """Run `work` in a durable transaction; returns after the commit, or raises with nothing done.

        Args:
            work: may run more than once; only its last run is committed.
            locks: names that other processes' work on the same rows also takes.
        """
        (job,) = self._run([(work, locks)])
        if job.error is not None:
            raise job.error
        return job.value  # type: ignore[return-value]  # set wherever there is no error

    def run_all(
        self, pieces: Sequence[tuple[Callable[[Transaction], T], tuple[str, ...]]]
    ) -> list[T | Exception]:
        """Run many pieces of (work, locks) as if each had a thread of its own; the results, or why none."""
        answers: list[T | Exception] = []
        for job in self._run(pieces):
            if job.error is not None and not isinstance(job.error, Exception):
                raise job.error
            answers.append(job.value if job.error is None else job.error)  # type: ignore[arg-type]  # as above
        return answers

    def _run(self, pieces: Sequence[tuple[Callable[[Transaction], T], tuple[str, ...]]]) -> list[_Job[T]]:
        if os.getpid() != self._pid:
            raise IntegrityError("a ledger opened before a fork cannot be used after it; open it again")
        wake = threading.Event()
        jobs = [_Job(work, locks, wake) for work, locks in pieces]
        if not jobs:
            return jobs
        with self._mutex:
            self._queue.extend(jobs)
            jobs[0].leads = not self._busy
            self._busy = True
        for job in jobs:
            while not job.done:
                if job.leads:
                    self._lead(job)
                else:
                    self._await(job, jobs)
        return jobs

    def _await(self, job: _Job[Any], jobs: list[_Job[Any]]) -> None:
        """Wait until the job may be done or may have become the next leader."""
        try:
            job.wake.wait()
            job.wake.clear()  # before its state is looked at: what comes later sets it again
        except BaseException:  # an interrupt: leave the queue, and hand leadership on
            with self._mutex:
                led = [own for own in jobs if own.leads and not own.done]
                for own in jobs:
                    if own in self._queue:
                        self._queue.remove(own)
                if led:
                    self._promote()
            raise

    def _lead(self, own: _Job[Any]) -> None:
        """Run everything that waits, the own job first, in one transaction; then the next one leads."""
        with self._mutex:
            jobs = [self._queue.popleft() for _ in range(min(len(self._queue), BATCH_MAX))]
        try:
            self._commit(jobs)
        except StorageError as failure:
            for job in jobs:
                job.error = failure.error
        except BaseException as failure:  # an interrupt: every caller hears of it, this one as it is
            for job in jobs:
                job.error = ServiceUnavailable("the ledger's writer was interrupted")
            own.error = failure
        finally:
            with self._mutex:
                self._promote()
            for job in jobs:
                job.done = True
                job.wake.set()

    def _promote(self) -> None:
        self._busy = bool(self._queue)
        if self._busy:
            self._queue[0].leads = True
            self._queue[0].wake.set()

    def _commit(self, jobs: list[_Job[Any]]) -> None:
        locks = tuple(sorted({lock for job in jobs for lock in job.locks}))
        for attempt in range(RETRIES_MAX):
            try:
                transaction = self._backend.begin(locks)
                for job in jobs:
                    _attempt(transaction, job, alone=len(jobs) == 1)
                if len(jobs) == 1 and jobs[0].error is not None:
                    self._backend.rollback()
                else:
                    self._backend.commit()
                return
            except Retry:
                self._backend.rollback()
                if attempt == RETRIES_MAX - 1:
                    raise
            except BaseException:
                self._backend.rollback()
                raise


def _attempt(transaction: Transaction, job: _Job[Any], *, alone: bool) -> None:
    job.error = None
    if not alone:
        transaction.run("SAVEPOINT job")
    try:
        job.value = job.work(transaction)
    except StorageError:
        raise
    except Exception as error:
        job.error = _declared(error)
        transaction.memo.clear()
        if not alone:
            transaction.run("ROLLBACK TO SAVEPOINT job")
    if not alone:
        transaction.run("RELEASE SAVEPOINT job")
