"""Things that a worker process opens once and shares between its steps: ledgers, releasers, readers.

Beam makes and forgets steps at will; what fences, locks or connects must not follow each of them.
"""

from __future__ import annotations

import atexit
import contextlib
import threading
from collections.abc import Callable, Hashable
from typing import Final, Generic, Protocol, TypeVar

__all__ = ["PerProcess", "close_all"]


class _Closes(Protocol):
    def close(self) -> None: ...


K = TypeVar("K", bound=Hashable)
V = TypeVar("V", bound=_Closes)


class PerProcess(Generic[K, V]):
    """Opened things by their public description. All methods may be called from many threads."""

    def __init__(self) -> None:
        self._lock: Final = threading.RLock()
        self._kept: Final[dict[K, V]] = {}
        _ALL.append(self.clear)

    def get(self, key: K, make: Callable[[], V]) -> V:
        """The thing of that description, made at the first call."""
        with self._lock:
            if key not in self._kept:
                self._kept[key] = make()
            return self._kept[key]

    def drop(self, key: K) -> None:
        """Close it, if it is there; the next call makes it anew."""
        with self._lock:
            found = self._kept.pop(key, None)
        if found is not None:
            with contextlib.suppress(Exception):  # it is dropped because something in it has failed
                found.close()

    def clear(self) -> None:
        """Drop everything."""
        for key in tuple(self._kept):
            self.drop(key)


_ALL: Final[list[Callable[[], None]]] = []


@atexit.register
def close_all() -> None:
    """Close all that this process has opened, last kinds first. Only where no job runs in it any more."""
    for clear in reversed(_ALL):
        clear()
