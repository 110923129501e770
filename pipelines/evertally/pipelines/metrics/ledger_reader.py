"""From the ledger's public columns to a `Standing`; only what has changed is read again."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from evertally.counters.mechanisms import parse_mechanism
from evertally.counters.windows import window_power
from evertally.errors import EvertallyError, IntegrityError
from evertally.pipelines.metrics.ledger_view import LedgerView, Rows
from evertally.pipelines.metrics.standing import (
    KeyTotal,
    KeyWindow,
    ScopeStanding,
    ShardHead,
    Standing,
    StreamStanding,
)
from evertally.pipelines.ticks import FIRST_MS, LAST_MS

__all__ = ["LedgerReader", "read_heads"]

_LOG: Final = logging.getLogger(__name__)
_SCOPES: Final = (
    "SELECT name, definition, cap_main, cap_epsilon, cap_delta, main, epsilon, delta FROM scope ORDER BY name"
)
_STREAMS: Final = (
    "SELECT i.incarnation_pk, s.name, i.incarnation, i.shards, i.descriptor FROM incarnation i"
    " JOIN stream s ON s.stream_pk = i.stream_pk WHERE i.incarnation ="
    " (SELECT max(j.incarnation) FROM incarnation j WHERE j.stream_pk = i.stream_pk) ORDER BY s.stream_pk"
)
_HEADS: Final = "SELECT incarnation_pk, shard, t, published_t FROM head ORDER BY incarnation_pk, shard"
_HEADS_OF: Final = (
    "SELECT h.t, h.published_t FROM head h JOIN incarnation i ON i.incarnation_pk = h.incarnation_pk"
    " JOIN stream s ON s.stream_pk = i.stream_pk WHERE s.name = ? AND i.incarnation ="
    " (SELECT max(j.incarnation) FROM incarnation j WHERE j.stream_pk = i.stream_pk) ORDER BY h.shard"
)
_KEYS: Final = "SELECT key_name, key_index FROM incarnation_key WHERE incarnation_pk = ? ORDER BY position"
_TICK: Final = (
    "SELECT key_index, value, stderr, tick_end_ms FROM released"
    " WHERE incarnation_pk = ? AND t = ? AND shard = ? ORDER BY key_index"
)
_GRID_UNITS: Final = 2.0**30
_ROUNDING: Final = 1.0 / 12.0
_UNREADABLE: Final = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)


def read_heads(view: LedgerView, stream: str) -> tuple[ShardHead, ...]:
    """Where the shards of a stream's latest incarnation stand; none where the stream is not known.

    Raises as `LedgerReader.read`.
    """
    try:
        with view.snapshot() as rows:
            return tuple(ShardHead(_whole(t), _whole(published)) for t, published in rows(_HEADS_OF, stream))
    except Exception as error:
        raise _declared(error) from None


def _declared(error: Exception) -> Exception:
    """What a row of other types and texts than ours leads to is a damaged ledger."""
    if isinstance(error, EvertallyError) or not isinstance(error, _UNREADABLE):
        return error
    return IntegrityError(f"a stored row cannot be read: {type(error).__name__}")


class LedgerReader:
    """Looks at a ledger again and again.

    Args:
        view: the ledger, read-only.
        windows: name and length in milliseconds of each window count, for example {"1h": 3600000}.
    """

    def __init__(self, view: LedgerView, windows: Mapping[str, int]) -> None:
        self._view: Final = view
        self._windows: Final = dict(windows)
        self._streams: dict[int, _Known] = {}
        self._opening = 0

    def read(self) -> Standing:
        """The ledger now, in one consistent snapshot.

        Raises:
            ServiceUnavailable: the ledger cannot be reached.
            IntegrityError: it is no ledger, or its rows cannot be read.
        """
        try:
            with self._view.snapshot() as rows:
                if self._view.openings != self._opening:
                    self._streams, self._opening = {}, self._view.openings
                scopes = tuple(_scope(*row) for row in rows(_SCOPES))
                heads: dict[int, list[ShardHead]] = {}
                for pk, _, t, published in rows(_HEADS):
                    heads.setdefault(pk, []).append(ShardHead(_whole(t), _whole(published)))
                seen: dict[int, _Known] = {}
                for row in rows(_STREAMS):
                    seen[row[0]] = self._stream(rows, row, tuple(heads.get(row[0], ())))
        except Exception as error:
            raise _declared(error) from None
        self._streams = seen
        return Standing(scopes, tuple(known.standing for known in seen.values()))

    def close(self) -> None:
        """Release the ledger."""
        self._view.close()

    def series(self, stream: StreamStanding) -> int:
        """How many series of keys a stream shows at most, its window counts included."""
        shown = sum(1 for length in self._windows.values() if _width(length, stream.tick_ms))
        return 2 * len(stream.keys) * (1 + shown)

    def _stream(self, rows: Rows, row: tuple[Any, ...], heads: tuple[ShardHead, ...]) -> _Known:
        pk, name, incarnation, shards, descriptor_text = row
        known = self._streams.get(pk)
        if known is not None and known.standing.heads == heads:
            return known
        if len(heads) != shards:
            raise IntegrityError(f"stream {name} has {len(heads)} heads for {shards} shards")
        keys = known.keys if known is not None else {index: _text(key) for key, index in rows(_KEYS, pk)}
        facts = _facts(json.loads(descriptor_text))
        standing = StreamStanding(
            _text(name),
            _whole(incarnation),
            tuple(keys.values()),
            facts.tick_ms,
            facts.live,
            facts.value_unit,
            facts.mechanism,
            heads,
            *self._totals(rows, pk, keys, heads, facts),
        )
        return _Known(keys, standing)

    def _totals(
        self, rows: Rows, pk: int, keys: Mapping[int, str], heads: tuple[ShardHead, ...], facts: _Facts
    ) -> tuple[tuple[KeyTotal, ...], tuple[KeyWindow, ...]]:
        totals: dict[int, KeyTotal] = {}
        windows: dict[int, list[KeyWindow]] = {index: [] for index in keys}
        for shard, head in enumerate(heads):
            now = _tick(rows, pk, shard, head.published_t)
            for index, (value, stderr, end) in now.items():
                totals[index] = KeyTotal(keys[index], head.published_t, end, value, stderr)
            for name, then, error in self._earlier(rows, pk, shard, head.published_t, facts):
                for index, (value, _, _) in now.items():
                    if then is None or index in then:
                        before = 0 if then is None else then[index][0]
                        windows[index].append(KeyWindow(keys[index], name, value - before, error))
        return (
            tuple(totals[index] for index in keys if index in totals),
            tuple(window for index in keys for window in windows[index]),
        )

    def _earlier(
        self, rows: Rows, pk: int, shard: int, t: int, facts: _Facts
    ) -> Iterator[tuple[str, dict[int, tuple[int, str, int]] | None, float]]:
        """For each window that is full: its name, the rows before it (None: nothing), its standard error."""
        for name, length_ms in self._windows.items():
            width = _width(length_ms, facts.tick_ms)
            if not width or not facts.q or t < width:
                continue
            try:
                power = window_power(parse_mechanism(facts.mechanism), t, width)
            except EvertallyError as error:
                _LOG.warning("no window counts of mechanism %s: %s", facts.mechanism, error)
                continue
            sigma = _GRID_UNITS / facts.q
            rounded = 1 if t == width else 2  # before the first tick stands an exact 0
            error_s = math.sqrt(sigma * sigma * power + rounded * _ROUNDING)
            yield name, None if t == width else _tick(rows, pk, shard, t - width), error_s


class _Known(NamedTuple):
    keys: dict[int, str]
    standing: StreamStanding


class _Facts(NamedTuple):
    tick_ms: int
    live: bool
    value_unit: str
    mechanism: str
    q: int


def _facts(descriptor: Mapping[str, Any]) -> _Facts:
    """What a descriptor says; another program's descriptor may say less."""
    return _Facts(
        int(descriptor.get("tick_ms", 0)),
        descriptor.get("closing", "file") != "file",
        str(descriptor.get("value_unit", "")),
        str(descriptor.get("mechanism", "")),
        int(descriptor.get("q", 0)),
    )


def _scope(name: str, definition: str, *amounts: int) -> ScopeStanding:
    order = json.loads(definition).get("order")
    if order is not None and not 1 < float(order) < math.inf:
        raise ValueError("no order")
    caps_main, caps_epsilon, caps_delta, main, epsilon, delta = map(_whole, amounts)
    return ScopeStanding(
        _text(name),
        None if order is None else float(order),
        (caps_main, caps_epsilon, caps_delta),
        (main, epsilon, delta),
    )


def _tick(rows: Rows, pk: int, shard: int, t: int) -> dict[int, tuple[int, str, int]]:
    """Value, standard error and tick end by key index; empty before the first tick and for folded ones."""
    if t <= 0:
        return {}
    return {
        index: (int(value), _decimal(stderr), _time_ms(end))
        for index, value, stderr, end in rows(_TICK, pk, t, shard)
    }


def _whole(value: object) -> int:
    """SQLite keeps in a column whatever was put there; what is shown is computed with."""
    if type(value) is not int:
        raise TypeError("no integer")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("no text")
    return value


def _decimal(value: object) -> str:
    if not 0 <= float(_text(value)) < math.inf:
        raise ValueError("no standard error")
    return str(value)


def _time_ms(value: object) -> int:
    if not FIRST_MS <= _whole(value) <= LAST_MS:
        raise ValueError("no time")
    return _whole(value)


def _width(length_ms: int, tick_ms: int) -> int:
    """Ticks in a window; 0 where it is no whole number of them."""
    return length_ms // tick_ms if tick_ms and length_ms % tick_ms == 0 else 0
