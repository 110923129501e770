"""Undeclared keys on their way to the selector, and the public record of a key that was selected."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final, NoReturn

from evertally.errors import IntegrityError
from evertally.pipelines.events import EventColumns
from evertally.pipelines.kafka.broker import Broker, TopicPartition, translated
from evertally.pipelines.kafka.reading import read_up_to

__all__ = ["KEY_SCHEMA", "Bindings", "CandidateCounts", "decode_counts", "key_record"]

KEY_SCHEMA: Final = "evertally.key/1"
_BODY_BYTES: Final = 8192  # more than any one key takes


class CandidateCounts:
    """Counts of undeclared keys by tick; an `Accumulator` with one destination. Sensitive."""

    destinations: Final = 1

    def __init__(self) -> None:
        self._counts: dict[int, Counter[str]] = {}

    def count(self, t: int, keys: Mapping[str, int]) -> None:
        """Count keys at tick t."""
        if keys:
            self._counts.setdefault(t, Counter()).update(keys)

    def add(self, t: int, events: EventColumns) -> None:
        """Declared keys are not counted here."""

    def ticks(self) -> set[int]:
        """See `Accumulator`."""
        return set(self._counts)

    def take(self, t: int, destination: int) -> list[bytes]:  # noqa: ARG002 - there is one destination
        """See `Accumulator`."""
        bodies: list[str] = []
        body = ""
        for key, count in self._counts.get(t, {}).items():
            entry = f"{json.dumps(key)}:{count}"
            if len(body) + len(entry) + 3 > _BODY_BYTES:
                bodies.append(body)
                body = ""
            body = f"{body},{entry}" if body else entry
        return [f"{{{body}}}".ljust(_BODY_BYTES).encode("ascii") for body in (*bodies, body)]

    def clear(self) -> None:
        """See `Accumulator`."""
        self._counts = {}

    def __repr__(self) -> str:
        return "CandidateCounts(<redacted>)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("exact counts are not pickled")


def decode_counts(body: bytes) -> dict[str, int]:
    """Counts by key. Raises IntegrityError for other bytes."""
    try:
        counts = json.loads(body.decode())
    except (ValueError, RecursionError):
        counts = None
    if not isinstance(counts, dict) or not all(type(count) is int for count in counts.values()):
        raise IntegrityError("counts of keys on a topic of the stream are cut short")
    return counts


def key_record(stream: str, incarnation: int, key: str, slot: str, t: int) -> bytes:
    """The public record: from now on `slot` counts `key`."""
    fields = {
        "schema": KEY_SCHEMA,
        "stream": stream,
        "incarnation": incarnation,
        "key": key,
        "slot": slot,
        "shown_at": t,
    }
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()


class Bindings:
    """The keys topic as a map from slot to key, read on as it grows; None for a slot that is free."""

    def __init__(
        self, broker: Broker, topic: str, stream: str, incarnation: int, slots: Iterable[str]
    ) -> None:
        self._place: Final = TopicPartition(topic, 0)
        self._stream: Final = (stream, incarnation)
        self._reader: Final = broker.reader()
        self.slots: dict[str, str | None] = dict.fromkeys(slots)
        with translated():
            self._reader.assign([self._place])
            self._reader.seek(self._place, self._reader.beginning_offsets([self._place])[self._place])
            end = self._reader.end_offsets([self._place])[self._place]
            for records, _ in read_up_to(self._reader, self._place, end):
                self._take(records)

    def refresh(self) -> bool:
        """Read what is new; whether there is anything."""
        with translated():
            return self._take(self._reader.poll(timeout_ms=0).get(self._place, []))

    def names(self, keys: tuple[str, ...]) -> tuple[str | None, ...]:
        """What each declared position is called in events; None for a free slot, which no event can name."""
        return tuple(self.slots.get(key, key) for key in keys)

    def close(self) -> None:
        """Stop reading."""
        self._reader.close(autocommit=False)

    def _take(self, records: Iterable[Any]) -> bool:
        found = False
        for record in records:
            try:
                fields = json.loads(record.value or b"")
                mine = (fields["stream"], fields["incarnation"]) == self._stream
                slot, key = fields["slot"], fields["key"]
                found = found or (mine and self.slots.get(slot) != key)
            except (ValueError, TypeError, KeyError, RecursionError):
                raise IntegrityError(f"{self._place.topic} holds records that bind no key") from None
            if mine:
                self.slots[slot] = key
        return found
