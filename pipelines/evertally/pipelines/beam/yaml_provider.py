"""Beam YAML: the transforms as types of a YAML pipeline. docs/how-to-beam.md has a runnable example.

providers:
- type: python
config: {packages: [evertally]}
transforms:
ContinualCount: evertally.pipelines.beam.yaml_provider.count
ContinualSum: evertally.pipelines.beam.yaml_provider.total
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import apache_beam as beam
from apache_beam.pvalue import Row

from evertally.accountants.budget.scopes import Scope
from evertally.errors import InvalidParameter
from evertally.pipelines.beam.refs import KeyRef, LedgerRef
from evertally.pipelines.beam.sink_refs import FileSinkRef
from evertally.pipelines.beam.transforms import ContinualCount, ContinualSum
from evertally.pipelines.releases import Release
from evertally.pipelines.stream_spec import StreamSpec
from evertally.pipelines.ticks import format_ms
from evertally.pipelines.timestamps import BadTimestamp, parse_timestamp
from evertally.validation import positive_real

__all__ = ["CountRows", "count", "total"]


class CountRows(beam.PTransform[Any, Any]):
    """Rows in; rows with stream, key, t, tick_end, value, stderr out, value as text: totals have no limit.

    Dead letters go to the output `dead_letters`.
    """

    def __init__(self, counted: ContinualSum) -> None:
        super().__init__()
        self._counted = counted

    def expand(self, rows: Any) -> dict[str, Any]:
        """See the class."""
        found = rows | "Count" >> self._counted
        return {
            "good": found.releases | "Rows" >> beam.Map(_row),
            "dead_letters": found.dead_letters | "Letters" >> beam.Map(_letter),
        }


def count(**config: Any) -> CountRows:
    """`ContinualCount` with the arguments of `total`, without a value."""
    return CountRows(ContinualCount(*_places(config), **config))


def total(value_field: str, **config: Any) -> CountRows:
    """`ContinualSum`.

    Args:
        value_field: the field with the value.
        config: stream, keys, start (RFC 3339), tick_s, ticks, epsilon, delta, ledger, key, and optionally
            mechanism, clip, unit, participations, min_separation, per_tick, releases (a file), and what
            `ContinualSum` takes besides: key_field, time_field, unit_field, other, folder.
    """
    return CountRows(ContinualSum(*_places(config), value_field=value_field, **config))


def _places(config: dict[str, Any]) -> tuple[StreamSpec, LedgerRef, KeyRef]:
    """Stream, ledger and key of a configuration; what is left in it goes to the transform."""
    keys: Sequence[str] = config.pop("keys")
    name, unit = config.pop("stream"), config.pop("unit", "event")
    limits = {
        field: config.pop(field)
        for field in ("mechanism", "clip", "participations", "min_separation", "per_tick")
        if field in config
    }
    spec = StreamSpec(
        name=name,
        keys=tuple(keys),
        start_ms=_start_ms(str(config.pop("start"))),
        tick_ms=round(positive_real("tick_s", config.pop("tick_s"), high=1e9) * 1000),
        scope=Scope(name, unit, "add-remove", str(config.pop("epsilon")), str(config.pop("delta"))),
        **limits,
    )
    releases = config.pop("releases", None)
    if releases is not None:
        config["sink"] = FileSinkRef(str(releases))
    return spec, LedgerRef(str(config.pop("ledger"))), KeyRef(str(config.pop("key")))


def _start_ms(text: str) -> int:
    try:
        return parse_timestamp(text, None)
    except BadTimestamp:
        raise InvalidParameter("start", text, "the start of tick 1, RFC 3339 with an offset") from None


def _row(line: bytes) -> Row:
    release = Release.decode(line)
    return Row(
        stream=release.stream,
        key=release.key,
        t=release.t,
        tick_end=format_ms(release.tick_end_ms),
        value=str(release.value),
        stderr=release.stderr,
    )


def _letter(letter: bytes) -> Row:
    return Row(letter=letter.decode())
