"""Crashes at named points, to test that none of them costs a release or doubles one.

A point is named by what it wraps: "store.commit_ticks:before", "store.commit_ticks:after",
"sink.append:torn" and so on. Points act only inside the wrappers below, which a test puts around a store
or a sink; the shipped program has no such points in it.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, NoReturn, Self, cast

from evertally.accountants.budget.ledger import LedgerStore
from evertally.pipelines.sinks import FileSink

__all__ = ["CrashPoints", "CrashingSink", "CrashingStore", "SimulatedCrash"]


class SimulatedCrash(BaseException):
    """Raised in place of a kill; no handler of ordinary errors catches it."""


class CrashPoints:
    """Crashes when the n-th point is reached, or the n-th one of a name.

    Args:
        hit: which point to crash at, from 1; 0 only counts.
        name: count this point only; every point where not given.
        kill: end the process with SIGKILL instead of raising SimulatedCrash.
    """

    def __init__(self, hit: int = 0, name: str | None = None, *, kill: bool = False) -> None:
        self.reached: list[str] = []
        self._hit = hit
        self._name = name
        self._kill = kill

    def reach(self, name: str) -> None:
        """Pass a point, or crash at it."""
        if self.will_crash(name):
            self.crash()
        self.reached.append(name)

    def will_crash(self, name: str) -> bool:
        """Whether the next time this point is reached is the one to crash at."""
        counted = [point for point in self.reached if self._name in (None, point)]
        return self._name in (None, name) and len(counted) + 1 == self._hit

    def crash(self) -> NoReturn:
        """Crash now."""
        if self._kill:
            os.kill(os.getpid(), signal.SIGKILL)
        raise SimulatedCrash


class CrashingStore:
    """A ledger store with a point before and after each call."""

    def __init__(self, store: LedgerStore, points: CrashPoints) -> None:
        self._store = store
        self._points = points

    @classmethod
    def wrap(cls, store: LedgerStore, points: CrashPoints) -> LedgerStore:
        """The store with its points, typed as what it stands for."""
        return cast("LedgerStore", cls(store, points))

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._store, name)

        def call(*args: Any, **options: Any) -> Any:
            self._points.reach(f"store.{name}:before")
            result = method(*args, **options)
            self._points.reach(f"store.{name}:after")
            return result

        return call


class CrashingSink:
    """A file sink with points around `append`, one of them inside: half of the rows, the last one torn."""

    def __init__(self, sink: FileSink, points: CrashPoints) -> None:
        self._sink = sink
        self._points = points

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._sink.close()

    def last_tick(self) -> int:
        """As the sink has it."""
        return self._sink.last_tick()

    def rewind(self, mark: int) -> None:
        """As the sink does, with a point before and after."""
        self._points.reach("sink.rewind:before")
        self._sink.rewind(mark)
        self._points.reach("sink.rewind:after")

    def append(self, rows: Iterable[bytes]) -> int:
        """As the sink does, with points before, within and after."""
        self._points.reach("sink.append:before")
        lines = list(rows)
        if self._points.will_crash("sink.append:torn"):
            half = b"".join(lines)[: sum(map(len, lines)) // 2]
            self._sink.append([half])
            self._points.crash()
        self._points.reach("sink.append:torn")
        mark = self._sink.append(lines)
        self._points.reach("sink.append:after")
        return mark
