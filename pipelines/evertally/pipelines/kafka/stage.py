"""A stage: a loop on a thread of its own, with a pulse that others can feel and a way to stop it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final, Protocol

from evertally.errors import EvertallyError, ServiceUnavailable

__all__ = ["Stage", "StageThread", "Stall"]

_LOG: Final = logging.getLogger(__name__)


class Stage(Protocol):
    """One turn at a time; called from one thread only."""

    def turn(self) -> None:
        """Do what there is to do, for a second at most."""
        ...

    def ready(self) -> bool:
        """Whether it has its partitions and has recovered. May be called from any thread."""
        ...

    def drain(self) -> None:
        """Finish what was begun, then leave the group."""
        ...


class Stall:
    """Notices records that wait while nothing moves: a consumer fetches no more, or commits fail."""

    def __init__(self, stage: str, limit_s: float, now: Callable[[], float] = time.monotonic) -> None:
        self._stage: Final = stage
        self._limit_s: Final = limit_s
        self._now: Final = now
        self._moved_at = now()

    def moved(self) -> None:
        """Something is done for good, or there is nothing to do."""
        self._moved_at = self._now()

    def check(self) -> None:
        """Raise ServiceUnavailable where nothing has moved for too long."""
        if self._now() - self._moved_at > self._limit_s:
            raise ServiceUnavailable(
                f"the {self._stage} stage has stalled: records wait, and none came for {self._limit_s:g} s"
            )


class StageThread:
    """Runs a stage until it is told to stop, or fails."""

    def __init__(self, make: Callable[[], Stage], name: str, on_end: Callable[[], None]) -> None:
        self.name: Final = name
        self.error: BaseException | None = None
        self._make: Final = make
        self._on_end: Final = on_end
        self._stop = threading.Event()
        self._stage: Stage | None = None
        self._turned_at = time.monotonic()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Ask the stage to drain."""
        self._stop.set()

    def join(self, timeout_s: float) -> bool:
        """Wait for the end of the thread; whether it has ended."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def silent_s(self) -> float:
        """Seconds since the last turn."""
        return time.monotonic() - self._turned_at

    def ready(self) -> bool:
        """Whether the stage is running and ready."""
        return self._thread.is_alive() and self._stage is not None and self._stage.ready()

    def _run(self) -> None:
        try:
            self._stage = self._make()
            while not self._stop.is_set():
                self._stage.turn()
                self._turned_at = time.monotonic()
            self._stage.drain()
        except EvertallyError as error:
            self.error = error
        except (
            BaseException
        ) as error:  # a fault of the program: its message may hold data, so it is not logged
            self.error = error
            _LOG.error("stage %s failed: %s", self.name, type(error).__name__)
        finally:
            self._on_end()
