"""The seam to the engine's keyed state: the three forms a lane uses, as PyFlink has them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

__all__ = ["ByteList", "ByteTable", "ByteValue"]


class ByteValue(Protocol):
    """One value a lane."""

    def value(self) -> bytes | None:
        """What was stored last."""
        ...

    def update(self, value: bytes) -> None:
        """Store."""
        ...


class ByteList(Protocol):
    """A list a lane, which grows without being read."""

    def get(self) -> Iterable[bytes] | None:
        """All of it."""
        ...

    def add(self, value: bytes) -> None:
        """Append."""
        ...

    def update(self, values: list[bytes]) -> None:
        """Replace all of it."""
        ...


class ByteTable(Protocol):
    """A table a lane, which need not fit into memory."""

    def get(self, key: int) -> bytes | None:
        """One entry."""
        ...

    def put(self, key: int, value: bytes) -> None:
        """Store one entry."""
        ...
