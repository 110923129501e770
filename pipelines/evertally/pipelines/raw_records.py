"""Raw records: what a source hands on, field by field, before anything is parsed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NoReturn, Protocol

from evertally.pipelines.dead_letters import Reason
from evertally.pipelines.text_columns import PackedColumn

__all__ = ["Column", "Field", "FieldNames", "Mark", "RawBatch", "Refusal", "Source"]


@dataclass(frozen=True, slots=True)
class FieldNames:
    """Which fields of a record an event is made of; None where the stream does not use one."""

    timestamp: str
    key: str
    value: str | None = None
    unit: str | None = None


class Mark(Enum):
    """What stands in a raw column where there is no text."""

    MISSING = "missing"
    WRONG_TYPE = "wrong type"


Field = str | Mark
Column = Sequence[Field] | PackedColumn
Refusal = tuple[int, int, Reason]  # line, byte offset, reason


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class RawBatch:
    """The used fields of consecutive lines, one list a column, and the lines refused before that.

    Attributes:
        timestamps: time stamps as text.
        keys: keys as text.
        values: values as text, or None where every event counts 1.
        units: privacy units as text, or None at event level.
        position: (line, byte offset) of a row of these lists.
        refused: lines that could not be split into fields.
    """

    timestamps: Column
    keys: Column
    values: Column | None
    units: Column | None
    position: Callable[[int], tuple[int, int]]
    refused: Sequence[Refusal]

    def __repr__(self) -> str:
        return f"RawBatch(rows={len(self.timestamps)}, <redacted>)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("raw events are not pickled")


class Source(Protocol):
    """An input of events that ends: everything up to its verified end, in any order."""

    def batches(self) -> Iterator[RawBatch]:
        """Batches of raw fields. Ends normally only when the whole input was read and verified."""
        ...

    def position(self) -> bytes:
        """Opaque position after the last batch; sensitive, for the sealed state only."""
        ...
