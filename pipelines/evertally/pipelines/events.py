"""Events: from the raw fields of a batch of lines to checked columns, and a dead letter for each refusal.

An event is (time stamp, key, value, unit). Each column is parsed through a bounded cache, so that a
field that repeats costs one dictionary look-up; the cache never changes what a field means.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from typing import Final, NoReturn, cast

import numpy as np
from numpy.typing import NDArray

from evertally.errors import InvalidParameter
from evertally.pipelines.dead_letters import Reason
from evertally.pipelines.raw_records import Column, Field, Mark, RawBatch, Refusal
from evertally.pipelines.text_columns import PackedColumn, character_matrix
from evertally.pipelines.ticks import TickGrid
from evertally.pipelines.timestamp_columns import parse_uniform
from evertally.pipelines.timestamps import BadTimestamp, parse_timestamp
from evertally.validation import integer

__all__ = [
    "EventColumns",
    "EventParser",
    "ValueRule",
]

IntArray = NDArray[np.int64]

_CACHE_ENTRIES = 16_384
_CACHED_FIELD_LENGTH = 64
_REASONS: Final = tuple(Reason)
_NO_REFUSAL: Final = -(2**62)  # parsed columns hold refusals as integers below every real value
_LARGEST_VALUE: Final = 2**63
_INTEGER: Final = re.compile(r"-?\d{1,18}", re.ASCII)
_DECIMAL: Final = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_NOT_FINITE: Final = re.compile(r"[+-]?(?:nan|inf|infinity)", re.ASCII | re.IGNORECASE)


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class EventColumns:
    """Checked events as columns of equal length, int64. Sensitive.

    Attributes:
        time_ms: epoch milliseconds, inside the stream's start and end.
        keys: index of the declared key.
        values: clipped values in value units, or None where each event counts 1.
        units: pseudonymous number of the privacy unit, or None at event level.
    """

    time_ms: IntArray
    keys: IntArray
    values: IntArray | None
    units: IntArray | None

    def __repr__(self) -> str:
        return "EventColumns(<redacted>)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("events are not pickled")


@dataclass(frozen=True, slots=True)
class ValueRule:
    """How a value becomes an integer contribution.

    Attributes:
        unit: what one counted unit is worth, for example Decimal("0.01"); > 0.
        lower: smallest contribution in units: 0 (negative values are refused) or -clip.
        clip: largest contribution in units.
    """

    unit: Decimal
    lower: int
    clip: int

    def __post_init__(self) -> None:
        if not (self.unit.is_finite() and self.unit > 0 and abs(self.unit.adjusted()) <= 18):
            raise InvalidParameter("value_unit", str(self.unit), "a decimal number in [1e-18, 1e18]")
        integer("clip", self.clip, low=1, high=2**53)
        if self.lower not in (0, -self.clip):
            raise InvalidParameter("lower", self.lower, f"0 or {-self.clip}, the negative of clip")

    def contribution(self, text: str) -> int | Reason:
        """The clipped value in units (rounded half to even), or why it is refused.

        >>> rule = ValueRule(Decimal("0.01"), 0, 500)
        >>> rule.contribution("1.25"), rule.contribution("9e9"), rule.contribution("1e400").value
        (125, 500, 'value_too_large')
        """
        if self.unit == 1 and _INTEGER.fullmatch(text):
            units = int(text)
        else:
            if _DECIMAL.fullmatch(text) is None:
                return Reason.VALUE_NOT_FINITE if _NOT_FINITE.fullmatch(text) else Reason.VALUE_MALFORMED
            try:
                value = Decimal(text)
            except InvalidOperation:  # an exponent beyond what Decimal can hold
                return Reason.VALUE_TOO_LARGE if "e-" not in text.lower() else Reason.VALUE_MALFORMED
            if self.lower == 0 and value < 0:
                return Reason.VALUE_NEGATIVE
            exponent = value.adjusted() - self.unit.adjusted()
            if value and exponent > 20:
                return Reason.VALUE_TOO_LARGE
            units = round(Fraction(value) / Fraction(self.unit)) if value and exponent > -3 else 0
        if self.lower == 0 and units < 0:
            return Reason.VALUE_NEGATIVE
        if abs(units) >= _LARGEST_VALUE:
            return Reason.VALUE_TOO_LARGE
        return max(self.lower, min(units, self.clip))


class EventParser:
    """Turns raw batches into checked columns. Never raises on data: what is wrong becomes a refusal.

    Args:
        grid: the ticks of the stream; events outside its start and end are refused.
        keys: declared keys in the order of their index; None where no event has that key yet.
        other: the declared key that takes undeclared ones, or None to refuse them.
        zone: what a time stamp without offset means, or None to refuse it.
        values: how values become contributions.
        number_unit: gives a privacy unit's text its number; the same text, the same number.
        keep_places: an event with nothing wrong but its value counts as 0, and is refused besides. Adjacency
            "replace-value" needs it: were the event taken out before bounding, a change of its value would
            let the unit's other events in, at other ticks and keys.
    """

    def __init__(
        self,
        grid: TickGrid,
        keys: Sequence[str | None],
        other: str | None,
        zone: datetime.tzinfo | None,
        values: ValueRule,
        number_unit: Callable[[str], int],
        *,
        keep_places: bool = False,
    ) -> None:
        index = {key: position for position, key in enumerate(keys) if key is not None}
        undeclared: int | Reason = Reason.KEY_UNDECLARED if other is None else index[other]

        def timestamp(text: str) -> int | Reason:
            try:
                return parse_timestamp(text, zone)
            except BadTimestamp as error:
                return Reason(error.fault.value)

        self._grid = grid
        self._keep_places = keep_places
        self._timestamps = _Column(timestamp, Reason.TIMESTAMP_MISSING, Reason.TIMESTAMP_WRONG_TYPE)
        self._keys = _Column(
            lambda text: index.get(text, undeclared), Reason.KEY_MISSING, Reason.KEY_WRONG_TYPE
        )
        self._values = _Column(values.contribution, Reason.VALUE_MISSING, Reason.VALUE_WRONG_TYPE)
        self._units = _Column(number_unit, Reason.UNIT_MISSING, Reason.UNIT_WRONG_TYPE)

    def parse(self, batch: RawBatch, latest_ms: int | None = None) -> tuple[EventColumns, list[Refusal]]:
        """Checked columns of the rows that count, and a refusal for each faulty row, in line order.

        Args:
            batch: raw fields.
            latest_ms: refuse events later than this as from the future; None to refuse none.
        """
        time_ms = self._times(batch.timestamps)
        keys = self._keys.parse(batch.keys)
        values = None if batch.values is None else self._values.parse(batch.values)
        units = None if batch.units is None else self._units.parse(batch.units)

        outside = np.where(
            time_ms >= self._grid.last_ms,
            _code(Reason.AT_OR_AFTER_END),
            np.where(time_ms < self._grid.start_ms, _code(Reason.BEFORE_START), 0),
        )
        if latest_ms is not None:
            outside = np.where((outside == 0) & (time_ms > latest_ms), _code(Reason.IN_THE_FUTURE), outside)
        time_ms = np.where((time_ms > _NO_REFUSAL) & (outside != 0), outside, time_ms)
        code = np.zeros(len(time_ms), np.int64)
        for column in (time_ms, keys, values, units):  # the first fault of an event names it
            if column is not None:
                code = np.where((code == 0) & (column < _NO_REFUSAL), column, code)
        refusals = list(batch.refused)
        refusals += [(*batch.position(int(row)), _reason(int(code[row]))) for row in np.nonzero(code)[0]]
        refusals.sort(key=lambda refusal: refusal[0])
        good = code == 0
        if self._keep_places and values is not None:
            good = (time_ms > _NO_REFUSAL) & (keys > _NO_REFUSAL)
            good &= True if units is None else units > _NO_REFUSAL
            values = np.where(values > _NO_REFUSAL, values, 0)
        columns = EventColumns(
            time_ms[good],
            keys[good],
            None if values is None else values[good],
            None if units is None else units[good],
        )
        return columns, refusals

    def _times(self, fields: Column) -> IntArray:
        """The time stamps, in one step where they have one common form, else each on its own."""
        characters = _characters(fields)
        uniform = None if characters is None else parse_uniform(characters)
        if uniform is None:
            return self._timestamps.parse(fields)
        time_ms, valid = uniform
        for row in np.nonzero(~valid)[0].tolist():
            time_ms[row] = self._timestamps[fields[row]]
        return time_ms


class _Column(dict[Field, int]):
    """A parsed-field cache of bounded size: text -> integer, refusals as integers below _NO_REFUSAL."""

    def __init__(self, parse: Callable[[str], int | Reason], missing: Reason, wrong_type: Reason) -> None:
        super().__init__()
        self._parse = parse
        self._missing = missing
        self._wrong_type = wrong_type

    def __repr__(self) -> str:
        return f"_Column(fields={len(self)}, <redacted>)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("raw fields are not pickled")

    def __missing__(self, field: Field) -> int:
        parsed: int | Reason
        if field is Mark.MISSING or field == "":
            parsed = self._missing
        elif isinstance(field, Mark):
            parsed = self._wrong_type
        else:
            parsed = self._parse(field)
        value = _code(parsed) if isinstance(parsed, Reason) else parsed
        if isinstance(field, Mark) or len(field) <= _CACHED_FIELD_LENGTH:
            if len(self) >= _CACHE_ENTRIES:
                self.clear()
            self[field] = value
        return value

    def parse(self, fields: Column) -> IntArray:
        """The column as int64; clipped values and times stay far above the codes of refusals."""
        if isinstance(fields, PackedColumn):
            distinct = fields.distinct()
            if distinct is None:
                return self.parse(fields.texts())
            texts, rows = distinct
            return self.parse(texts)[rows]
        return np.fromiter(map(self.__getitem__, fields), np.int64, len(fields))


def _characters(fields: Column) -> NDArray[np.uint8] | None:
    if isinstance(fields, PackedColumn):
        return fields.matrix()
    return character_matrix(cast("Sequence[str]", fields)) if set(map(type, fields)) == {str} else None


def _code(reason: Reason) -> int:
    return _NO_REFUSAL - 1 - _REASONS.index(reason)


def _reason(code: int) -> Reason:
    return _REASONS[_NO_REFUSAL - 1 - code]
