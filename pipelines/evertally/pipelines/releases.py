"""The public records of a stream: one header line, then one line a (key, tick). JSON lines, UTF-8.

Everything in a record is public: the released integer, its standard error, the end of its tick and
the stream's public parameters. The schema is `schemas/release.schema.json`, shipped with the package.
"""

from __future__ import annotations

import functools
import json
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from evertally.counters.contribution import ADJACENCIES
from evertally.errors import IntegrityError, InvalidParameter
from evertally.pipelines.ticks import format_ms, parse_ms

__all__ = [
    "RELEASE_SCHEMA",
    "STREAM_SCHEMA",
    "Release",
    "SelectionLoss",
    "StreamHeader",
    "encode_stderr",
    "read_releases",
    "standing_header",
]

STREAM_SCHEMA: Final = "evertally.stream/1"
RELEASE_SCHEMA: Final = "evertally.release/1"
_DOUBLE_MAX: Final = int(sys.float_info.max)
_INTEGER_MAX: Final = 2**63 - 1
_OTHER_DIGITS: Final = 1e-12


class SelectionLoss(NamedTuple):
    """What the selection of keys loses besides the stream, and both together, at the header's delta.

    Attributes:
        mu, epsilon: of the selection alone, the chance that it shows a key of one unit included.
        together_mu, together_epsilon: of selection and stream, as one guarantee.
    """

    mu: float
    epsilon: float
    together_mu: float
    together_epsilon: float


@dataclass(frozen=True, slots=True)
class StreamHeader:
    """First line of a releases file: what the numbers below it mean, and what they guarantee.

    Attributes:
        stream: name of the stream.
        incarnation: which charge of that name this is; 1 for the first.
        keys: declared keys, in the order of their stable index.
        start_ms: start of tick 1, epoch milliseconds.
        tick_ms: length of a tick, milliseconds.
        mechanism: mechanism id, for example "rational:W32".
        unit: privacy unit in words: "event", or the name of the unit's field.
        adjacency: which data sets are neighbours.
        mu: Gaussian privacy parameter of the whole stream, all ticks together.
        epsilon: epsilon at `delta`.
        delta: delta.
        sigma: standard deviation of one noise draw.
        clip: largest contribution of one event, in value units.
        lower: smallest contribution of one event: 0 or -clip.
        participations: at most so many ticks count a unit; 1 at event level.
        min_separation: a unit's counted ticks are at least so many ticks apart.
        per_tick: a unit contributes at most so many events in one tick.
        slack_horizon: last tick the stated guarantee covers, the rounding of releases included.
        selection: where keys are selected, what that loses besides; None where all keys are declared.
    """

    stream: str
    incarnation: int
    keys: tuple[str, ...]
    start_ms: int
    tick_ms: int
    mechanism: str
    unit: str
    adjacency: str
    mu: float
    epsilon: float
    delta: float
    sigma: float
    clip: int
    lower: int
    participations: int
    min_separation: int
    per_tick: int
    slack_horizon: int
    selection: SelectionLoss | None = None

    def encode(self) -> bytes:
        """The header as one JSON line."""
        fields: dict[str, object] = {
            "schema": STREAM_SCHEMA,
            "stream": self.stream,
            "incarnation": self.incarnation,
            "keys": list(self.keys),
            "start": format_ms(self.start_ms),
            "tick_ms": self.tick_ms,
            "mechanism": self.mechanism,
            "unit": self.unit,
            "adjacency": self.adjacency,
            "mu": self.mu,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "sigma": self.sigma,
            "clip": self.clip,
            "lower": self.lower,
            "participations": self.participations,
            "min_separation": self.min_separation,
            "per_tick": self.per_tick,
            "slack_horizon": self.slack_horizon,
        }
        if self.selection is not None:
            fields["selection"] = self.selection._asdict()
        return _line(fields)

    @classmethod
    def decode(cls, line: bytes) -> StreamHeader:
        """Read a header line back. Raises InvalidParameter where it is not one."""
        fields = _object(line, STREAM_SCHEMA)
        try:
            selection = fields.get("selection")
            if fields["adjacency"] not in ADJACENCIES or fields["lower"] not in (0, -fields["clip"]):
                raise ValueError("adjacency, lower")
            return cls(
                keys=tuple(_typed(str, key) for key in _typed(list, fields["keys"])),
                start_ms=parse_ms(fields["start"]),
                selection=None
                if selection is None
                else SelectionLoss(*(_positive(float, selection[name]) for name in SelectionLoss._fields)),
                lower=_typed(int, fields["lower"]),
                **{name: _typed(str, fields[name]) for name in _TEXTS},
                **{name: _positive(kind, fields[name]) for name, kind in _NUMBERS.items()},
            )
        except (KeyError, TypeError, ValueError):
            raise InvalidParameter("releases", "a header with other fields", STREAM_SCHEMA) from None


def standing_header(line: bytes, header: bytes) -> bytes:
    """The header to go on with: `line` where it is `header` but for last digits, else `header`.

    mu and epsilon are computed in doubles, whose sums end in other digits on another processor. What
    stands in a file was published, and marks count its bytes.
    """
    try:
        theirs, ours = json.loads(line), json.loads(header)
    except (ValueError, RecursionError):
        return header
    return line if _line(theirs) == line and _near(theirs, ours) else header


def _line(fields: object) -> bytes:
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def _near(theirs: object, ours: object) -> bool:
    if isinstance(theirs, dict) and isinstance(ours, dict):
        return list(theirs) == list(ours) and all(_near(theirs[name], ours[name]) for name in ours)
    if isinstance(theirs, float) and isinstance(ours, float):
        return math.isclose(theirs, ours, rel_tol=_OTHER_DIGITS)
    return type(theirs) is type(ours) and theirs == ours


class Release(NamedTuple):
    """One public value: the noisy total of `key` at the end of tick `t`."""

    stream: str
    key: str
    incarnation: int
    t: int
    tick_end_ms: int
    value: int
    stderr: float
    mechanism: str

    def encode(self) -> bytes:
        """The release as one JSON line; the same release gives the same bytes on every machine."""
        return (
            f"{_prefix(self.stream, self.key, self.incarnation)}{self.t}"
            f',"tick_end":"{format_ms(self.tick_end_ms)}","value":{self.value}'
            f',"stderr":{encode_stderr(self.stderr)},"mechanism":{_text(self.mechanism)}}}\n'
        ).encode()

    @classmethod
    def decode(cls, line: bytes) -> Release:
        """Read a release line back. Raises InvalidParameter where it is not one."""
        fields = _object(line, RELEASE_SCHEMA)
        try:
            return cls(
                _typed(str, fields["stream"]),
                _typed(str, fields["key"]),
                _positive(int, fields["incarnation"]),
                _positive(int, fields["t"]),
                parse_ms(fields["tick_end"]),
                _typed(int, fields["value"]),
                _positive(float, fields["stderr"]),
                _typed(str, fields["mechanism"]),
            )
        except (KeyError, TypeError, ValueError):
            raise InvalidParameter("releases", "a line with other fields", RELEASE_SCHEMA) from None


@functools.lru_cache(maxsize=1024)
def encode_stderr(stderr: float) -> str:
    """A standard error to six significant digits, as a JSON number."""
    return f"{stderr:.6g}"


def read_releases(path: Path) -> tuple[StreamHeader, Iterator[Release]]:
    """The header of a releases file and an iterator over its releases, in file order.

    Raises:
        InvalidParameter: the file is not there, or is not a releases file.
        IntegrityError: a later line is torn or of another schema (raised while iterating).
    """
    try:
        with path.open("rb") as file:
            first = file.readline()
    except OSError as error:
        raise InvalidParameter("releases", str(path), f"a readable file ({error.strerror})") from None
    return StreamHeader.decode(first), _releases(path)


def _releases(path: Path) -> Iterator[Release]:
    with path.open("rb") as file:
        file.readline()
        for number, line in enumerate(file, start=2):
            try:
                yield Release.decode(line)
            except InvalidParameter as error:
                raise IntegrityError(f"{path}, line {number}: {error}") from None


_TEXTS: Final = ("stream", "mechanism", "unit", "adjacency")
_NUMBERS: Final[dict[str, type]] = {
    **dict.fromkeys(("incarnation", "tick_ms", "clip", "participations", "min_separation"), int),
    **dict.fromkeys(("per_tick", "slack_horizon"), int),
    **dict.fromkeys(("mu", "epsilon", "delta", "sigma"), float),
}


def _typed(kind: type, value: Any) -> Any:
    """A field of its one type; an integer is a number, too. Raises TypeError for any other."""
    if type(value) is kind:
        return value
    if kind is float and type(value) is int and -_DOUBLE_MAX <= value <= _DOUBLE_MAX:
        return float(value)
    raise TypeError(kind.__name__)


def _positive(kind: type, value: Any) -> Any:
    """A number > 0 that a double holds, an integer of at most 63 bits. Raises TypeError or ValueError."""
    number = _typed(kind, value)
    if not 0 < number <= (_INTEGER_MAX if kind is int else _DOUBLE_MAX):
        raise ValueError(kind.__name__)
    return number


def _object(line: bytes, schema: str) -> dict[str, Any]:
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict) or fields.get("schema") != schema:
        raise InvalidParameter("releases", "a line of another form", f"a JSON object of schema {schema}")
    return fields


@functools.lru_cache(maxsize=4096)
def _prefix(stream: str, key: str, incarnation: int) -> str:
    return (
        f'{{"schema":"{RELEASE_SCHEMA}","stream":{_text(stream)},"key":{_text(key)}'
        f',"incarnation":{incarnation},"t":'
    )


@functools.lru_cache(maxsize=4096)
def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
