"""Labelled examples: their declared form, and how a raw record becomes one or is refused.

The form (shape, type, classes) is public and declared, never read off the data. A record that does not have
it contributes nothing and is noted on the operators' plane; nothing here raises on data.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NoReturn, Protocol

import numpy as np
from numpy.typing import NDArray

from evertally.errors import InvalidParameter
from evertally.pipelines.dead_letters import Reason
from evertally.validation import positive_integer

__all__ = ["ExampleBlock", "ExampleForm", "ExampleSource", "Range", "Refused"]

Refused = tuple[int, int, Reason]
"""Where a record stood (line and byte, or partition and offset), and why it is no example."""

_ELEMENTS_MAX: Final = 2**28
_FLOAT_MAX: Final = float(np.finfo(np.float32).max)
_UNIT_BYTES_MAX: Final = 1024


@dataclass(frozen=True, slots=True)
class ExampleForm:
    """The declared form of an example.

    Attributes:
        features: the fields that make up the features, in order; one field may hold them all as a list.
        shape: shape of one example's features.
        tokens: vocabulary of integer features; 0 for numbers.
        label: the field with the label.
        classes: labels are integers in [0, classes); 0 for a number (regression).
        unit: the field that identifies the privacy unit, "" where every record is its own.
    """

    features: tuple[str, ...]
    shape: tuple[int, ...]
    tokens: int
    label: str
    classes: int
    unit: str

    def __post_init__(self) -> None:
        if not self.features or len(set(self.features)) != len(self.features):
            raise InvalidParameter("data.features", len(self.features), "distinct names, at least one")
        size = math.prod(positive_integer("data.shape", n, high=_ELEMENTS_MAX) for n in self.shape)
        if not self.shape or size > _ELEMENTS_MAX:
            raise InvalidParameter("data.shape", self.shape, f"1 to {_ELEMENTS_MAX} elements")
        if len(self.features) not in (1, size):
            raise InvalidParameter(
                "data.features", len(self.features), f"1 field, or {size} as the shape has"
            )

    @property
    def feature_type(self) -> type[np.float32] | type[np.int64]:
        """Type of the features."""
        return np.int64 if self.tokens else np.float32

    @property
    def label_type(self) -> type[np.float32] | type[np.int64]:
        """Type of the labels."""
        return np.int64 if self.classes else np.float32

    def to_json(self) -> dict[str, object]:
        """Public description."""
        return {
            "features": list(self.features),
            "shape": list(self.shape),
            "tokens": self.tokens,
            "label": self.label,
            "classes": self.classes,
            "unit": self.unit,
        }

    def read(self, record: Mapping[str, Any]) -> tuple[NDArray[Any], float, bytes] | Reason:
        """Features, label and unit of a record, or why it is no example."""
        values = [record.get(name) for name in self.features]
        if len(values) == 1 and isinstance(values[0], list):
            values = values[0]
        if any(value is None for value in values):
            return Reason.VALUE_MISSING
        features = self.check(values)
        if isinstance(features, Reason):
            return features
        label = _number(record.get(self.label), whole=self.classes > 0)
        if label is None:
            return Reason.KEY_MISSING if record.get(self.label) is None else Reason.KEY_WRONG_TYPE
        if self.classes and not 0 <= label < self.classes:
            return Reason.KEY_UNDECLARED
        unit = record.get(self.unit) if self.unit else ""
        if unit is None or (unit == "" and self.unit):
            return Reason.UNIT_MISSING
        if not isinstance(unit, str | int) or isinstance(unit, bool) or len(str(unit)) > _UNIT_BYTES_MAX // 4:
            return Reason.UNIT_WRONG_TYPE
        return features, label, str(unit).encode("utf-8", "surrogatepass")

    def check(self, values: list[Any]) -> NDArray[Any] | Reason:
        """The features as an array of the declared shape and type."""
        if len(values) != math.prod(self.shape):
            return Reason.WRONG_COLUMN_COUNT
        numbers = [_number(value, whole=self.tokens > 0) for value in values]
        if any(number is None for number in numbers):
            return Reason.VALUE_NOT_FINITE
        array = np.array(numbers, np.float64)
        if self.tokens and ((array < 0).any() or (array >= self.tokens).any()):
            return Reason.VALUE_TOO_LARGE
        return array.astype(self.feature_type).reshape(self.shape)


class ExampleBlock:
    """Some examples as arrays; as sensitive as what they were read from.

    Attributes:
        features: shape (n, *form.shape).
        labels: shape (n,).
        units: the privacy unit of each, n of them; distinct for distinct records at event level.
        records: a name of each record, distinct.
    """

    __slots__ = ("features", "labels", "records", "units")

    def __init__(
        self, features: NDArray[Any], labels: NDArray[Any], units: list[bytes], records: list[bytes]
    ) -> None:
        self.features = features
        self.labels = labels
        self.units = units
        self.records = records

    def __len__(self) -> int:
        return len(self.records)

    def __repr__(self) -> str:
        return "ExampleBlock(<redacted>)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("examples are not pickled")


@dataclass(frozen=True, slots=True)
class Range:
    """A part of the input that a manifest freezes. Its numbers are exact counts: private.

    Attributes:
        part: a file's name, or topic/partition.
        start, end: first and one-past-last record (offsets in Kafka, 0 and the count in files).
        records: records read between them.
        digest: SHA-256 over them, in hexadecimal.
    """

    part: str
    start: int
    end: int
    records: int
    digest: str

    def __repr__(self) -> str:
        return f"Range({self.part!r}, <redacted>)"


class ExampleSource(Protocol):
    """Where examples come from. It can be read again, and says what it read."""

    def freeze(self) -> tuple[Range, ...]:
        """Read everything there is now, once: the ranges a manifest holds."""
        ...

    def read(self, ranges: tuple[Range, ...]) -> Iterator[ExampleBlock]:
        """The examples of exactly these ranges.

        Raises:
            IntegrityError: at the end, where count or digest of a range is another than was frozen.
        """
        ...

    def describe(self) -> dict[str, object]:
        """Public description of where it reads; no count, no digest."""
        ...


def _number(value: object, *, whole: bool) -> float | None:
    """A finite number (an integer where `whole`) of a field's value or text, None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float | str) or len(str(value)) > 64:
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    if not math.isfinite(number) or abs(number) > _FLOAT_MAX or (whole and number != int(number)):
        return None
    return number
