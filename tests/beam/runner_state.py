"""State of a runner in memory, for steps that are called without one."""

from __future__ import annotations


class Bag:
    """Bag state, and what a runner goes back to when a bundle fails."""

    def __init__(self) -> None:
        self.held: list[bytes] = []

    def add(self, one: bytes) -> None:
        self.held.append(one)

    def read(self) -> list[bytes]:
        return list(self.held)

    def clear(self) -> None:
        self.held = []


class Value:
    """A single value."""

    def __init__(self) -> None:
        self.held: int | None = None

    def read(self) -> int | None:
        return self.held

    def write(self, value: int) -> None:
        self.held = value
