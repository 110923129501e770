"""Records of one input partition to checked events and dead letters. Nothing here raises on data."""

from __future__ import annotations

import hmac
import json
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final

from evertally.pipelines.dead_letters import Reason
from evertally.pipelines.events import EventColumns, EventParser
from evertally.pipelines.json_values import decode_json, numbers, texts
from evertally.pipelines.kafka.aggregation import TickRule
from evertally.pipelines.kafka.avro_values import AvroDecoder
from evertally.pipelines.kafka.source_config import EventFormat
from evertally.pipelines.raw_records import Field, RawBatch, Refusal
from evertally.pipelines.stream_spec import StreamSpec
from evertally.pipelines.ticks import TickGrid

__all__ = ["KEY_LENGTH_MAX", "EventReader", "dead_letter"]

KEY_LENGTH_MAX: Final = 256
"""Characters of an undeclared key that can be selected."""
Decoder = Callable[[Sequence[bytes | None]], list[dict[str, Any] | Reason]]


class EventReader:
    """Decodes, checks and clips the events of a stream.

    Args:
        spec: keys and clip.
        source: form of the values.
        rule: how events find their tick.
        other: the declared key that takes undeclared ones.
        number_unit: number of a privacy unit, in [0, 2^62).
        names: what each declared position is called in events, where slots stand for selected keys; None
            for a free slot.
        paid_horizon: last tick the ledger has a charge for, where it was extended; the spec's for None.
    """

    def __init__(
        self,
        spec: StreamSpec,
        source: EventFormat,
        rule: TickRule,
        other: str | None,
        number_unit: Callable[[str], int],
        names: Sequence[str | None] | None = None,
        paid_horizon: int | None = None,
    ) -> None:
        grid = TickGrid(
            rule.start_ms, rule.tick_ms, spec.grid.slack_horizon if paid_horizon is None else paid_horizon
        )
        self._source: Final = source
        self._rule: Final = rule
        keys: Sequence[str | None] = spec.keys if names is None else tuple(names)
        self._known: Final = frozenset(keys)
        self._parser: Final = EventParser(
            grid,
            keys,
            other,
            source.timezone,
            source.rule,
            number_unit,
            keep_places=spec.scope.adjacency == "replace-value",
        )
        self._decode: Final[Decoder] = decode_json if source.format == "json" else AvroDecoder(source.schemas)

    def read(self, partition: int, records: Sequence[Any], now_ms: int) -> tuple[EventColumns, list[Refusal]]:
        """Events of the records, and (partition, offset, reason) of each record that is none."""
        decoded = self._decode([record.value for record in records])
        objects = [item for item in decoded if not isinstance(item, Reason)]
        offsets = [record.offset for record in records]
        refused: list[Refusal] = []
        if len(objects) < len(decoded):
            refused = [
                (partition, offset, item)
                for offset, item in zip(offsets, decoded, strict=True)
                if isinstance(item, Reason)
            ]
            offsets = [
                offset for offset, item in zip(offsets, decoded, strict=True) if not isinstance(item, Reason)
            ]
        source = self._source
        stamps: Sequence[Field] = (
            [str(now_ms)] * len(objects)
            if source.timestamp is None
            else texts([item.get(source.timestamp) for item in objects])
        )
        batch = RawBatch(
            stamps,
            texts([item.get(source.key) for item in objects]),
            None if source.value is None else numbers([item.get(source.value) for item in objects]),
            None if source.unit is None else texts([item.get(source.unit) for item in objects]),
            lambda row: (partition, offsets[row]),
            refused,
        )
        skew_ms = self._rule.skew_ms
        return self._parser.parse(batch, None if skew_ms is None else now_ms + skew_ms)

    def candidates(self, records: Sequence[Any], refusals: Sequence[Refusal]) -> Counter[str]:
        """Undeclared keys of the records that are events in every other respect, and how often each comes."""
        refused = {offset for _, offset, reason in refusals if reason is not Reason.KEY_UNDECLARED}
        found: Counter[str] = Counter()
        for record, item in zip(records, self._decode([record.value for record in records]), strict=True):
            if isinstance(item, Reason) or record.offset in refused:
                continue
            key = texts([item.get(self._source.key)])[0]
            if isinstance(key, str) and 0 < len(key) <= KEY_LENGTH_MAX and key not in self._known:
                found[key] += 1
        return found


def dead_letter(topic: str, refusal: Refusal, payload: bytes | None, key: bytes | None) -> bytes:
    """A dead letter: where the record stands and why it is not counted; with a key, its payload's HMAC."""
    partition, offset, reason = refusal
    fields: dict[str, object] = {
        "schema": "evertally.dead-letter/1",
        "topic": topic,
        "partition": partition,
        "offset": offset,
        "code": reason.value,
    }
    if key is not None:
        fields["hmac"] = hmac.digest(key, payload or b"", "sha256").hex()
    return json.dumps(fields, separators=(",", ":")).encode()
