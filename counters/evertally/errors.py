"""The errors evertally raises, one tree.

Every error survives pickling (Beam and multiprocessing move errors between processes), and none
carries an exact count, a noise value or a key: messages speak of parameters, positions and limits.
"""

from __future__ import annotations

from typing import Final

__all__ = [
    "BudgetExceeded",
    "EvertallyError",
    "Fenced",
    "IntegrityError",
    "InvalidParameter",
    "ServiceUnavailable",
    "StorageFull",
    "UnsupportedMechanism",
]


class EvertallyError(Exception):
    """Base of every error raised on purpose; `exit_code` is what the command line returns."""

    exit_code: int = 1


class InvalidParameter(EvertallyError, ValueError):
    """A parameter, configuration value or input has an unusable value.

    Attributes:
        field: the name of the parameter, dotted where it is nested.
        got: how the received value reads.
        expected: what would have been accepted, in words.
    """

    exit_code = 2

    def __init__(self, field: str, got: object, expected: str) -> None:
        super().__init__(field, got, expected)
        self.field: Final = field
        self.got: Final = got
        self.expected: Final = expected

    def __str__(self) -> str:
        return f"{self.field}: got {self.got!r}, expected {self.expected}"


class UnsupportedMechanism(EvertallyError):
    """A combination for which no valid privacy bound is known, so it is refused."""

    exit_code = 2


class BudgetExceeded(EvertallyError):
    """A charge does not fit under the cap of its scope.

    Attributes:
        requested: what was asked for, in the unit named by `unit`.
        spent: what the scope has spent before.
        cap: the cap of the scope.
        unit: the unit of the three amounts, for example "nano-mu2".
    """

    exit_code = 3

    def __init__(self, requested: int, spent: int, cap: int, unit: str = "nano-mu2") -> None:
        super().__init__(requested, spent, cap, unit)
        self.requested: Final = requested
        self.spent: Final = spent
        self.cap: Final = cap
        self.unit: Final = unit

    def __str__(self) -> str:
        return (
            f"budget refused: requested {self.requested} {self.unit}, spent {self.spent} of {self.cap}; "
            "nothing was charged, and a smaller epsilon (more noise) asks for less"
        )


class IntegrityError(EvertallyError):
    """Stored state, a ledger or an input contradicts what was recorded before; nothing is released."""

    exit_code = 4


class Fenced(IntegrityError):
    """Another holder has taken over this stream's shard; this one may not release any more."""


class StorageFull(EvertallyError):
    """A durable write could not be made (full disk, I/O error); nothing was released."""

    exit_code = 4


class ServiceUnavailable(EvertallyError):
    """A needed service (ledger server, broker, budget service) could not be reached."""

    exit_code = 5
