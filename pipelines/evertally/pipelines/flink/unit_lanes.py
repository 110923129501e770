"""Unit level: the open events of a lane, and what each of its units has contributed. Sensitive.

A lane holds all events of its units. When a tick closes, they are bounded in that tick, in which they
are counted. What units have contributed is never evicted; it lies in a fixed number of buckets, so that
a tick reads and writes a few large entries instead of one a unit. With the RocksDB backend it is on disk.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from evertally.pipelines.bounding import UnitBound
from evertally.pipelines.flink.keyed_state import ByteList, ByteTable
from evertally.pipelines.flink.lanes import TickTotals
from evertally.pipelines.kafka.unit_bound import Contributed, bound_tick
from evertally.pipelines.sealing import Sealer

__all__ = ["OpenEvents", "UnitBuckets"]

IntArray = NDArray[np.int64]
_BUCKETS: Final = 64
_EVENTS: Final = 2
_FIRST_BUCKET: Final = 16
"""Places of the sealed states of a lane; lanes.py has the first two."""


class UnitBuckets:
    """What the units of a lane have contributed: rows unit, last, used in the bucket of each unit."""

    def __init__(self, state: ByteTable, sealer: Sealer, lanes: int) -> None:
        self._state: Final = state
        self._sealer: Final = sealer
        self._lanes: Final = lanes

    def before(self, lane: int, units: IntArray) -> dict[int, Contributed]:
        """What these units have contributed; units that have not are left out."""
        found: dict[int, Contributed] = {}
        buckets = self._bucket(units)
        for bucket in np.unique(buckets).tolist():
            rows = self._load(lane, bucket)
            known = rows[:, np.isin(rows[0], units[buckets == bucket])]
            found |= {unit: Contributed(last, used) for unit, last, used in known.T.tolist()}
        return found

    def apply(self, lane: int, changes: Mapping[int, Contributed]) -> None:
        """Remember what units have contributed now."""
        if not changes:
            return
        new = np.array([(unit, *state) for unit, state in changes.items()], np.int64).T
        buckets = self._bucket(new[0])
        for bucket in np.unique(buckets).tolist():
            here = new[:, buckets == bucket]
            old = self._load(lane, bucket)
            rows = np.concatenate((old[:, ~np.isin(old[0], here[0])], here), axis=1)
            sealed = self._sealer.seal(rows.astype("<i8").tobytes(), lane, _FIRST_BUCKET + bucket)
            self._state.put(bucket, sealed)

    def _bucket(self, units: IntArray) -> IntArray:
        buckets: IntArray = units // self._lanes % _BUCKETS
        return buckets

    def _load(self, lane: int, bucket: int) -> IntArray:
        sealed = self._state.get(bucket)
        if sealed is None:
            return np.empty((3, 0), np.int64)
        data = self._sealer.open(sealed, lane, _FIRST_BUCKET + bucket)
        return np.frombuffer(data, "<i8").astype(np.int64).reshape(3, -1)


class OpenEvents:
    """The open events of a lane, each in the tick in which it will be counted; `Contributions`.

    Guarantees:
        - a unit is counted in at most k ticks, at least b apart, with at most c events in each, across
          checkpoints (tests/flink/test_flink_lanes.py::test_units_stay_within_their_bound).
    """

    def __init__(self, state: ByteList, units: UnitBuckets, sealer: Sealer, bound: UnitBound) -> None:
        self._state: Final = state
        self._units: Final = units
        self._sealer: Final = sealer
        self._bound: Final = bound

    def add(self, lane: int, rows: IntArray) -> None:
        """See `Contributions`; rows are tick, unit, key, value."""
        self._state.add(self._seal(lane, rows))

    def close(self, lane: int, through: int) -> TickTotals:
        """See `Contributions`."""
        parts = [self._open(lane, sealed) for sealed in self._state.get() or ()]
        if not parts:
            return {}
        rows = np.concatenate(parts, axis=1)
        closed, later = rows[:, rows[0] <= through], rows[:, rows[0] > through]
        self._state.update([self._seal(lane, later)] if later.shape[1] else [])
        past = self._units.before(lane, np.unique(closed[1]))
        changes: dict[int, Contributed] = {}
        totals = {}
        for t in np.unique(closed[0]).tolist():
            counted, after = bound_tick(closed[1:, closed[0] == t], t, past, self._bound)
            past |= after
            changes |= after
            totals[t] = _add_up(counted)
        self._units.apply(lane, changes)
        return totals

    def _seal(self, lane: int, rows: IntArray) -> bytes:
        return self._sealer.seal(rows.astype("<i8").tobytes(), lane, _EVENTS)

    def _open(self, lane: int, sealed: bytes) -> IntArray:
        data = self._sealer.open(sealed, lane, _EVENTS)
        return np.frombuffer(data, "<i8").astype(np.int64).reshape(4, -1)


def _add_up(counted: IntArray) -> dict[int, int]:
    sums: dict[int, int] = {}
    for key, value in zip(counted[1].tolist(), counted[2].tolist(), strict=True):
        sums[key] = sums.get(key, 0) + value
    return sums
