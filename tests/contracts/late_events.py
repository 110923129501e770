"""Late, early and out-of-order events, for an engine that assigns events by their own time, ticks of 1 s.

A tick closes by the clock. What comes for an open one, in whatever order, goes into it, even if it is read
twice because the engine was killed meanwhile; what comes too late goes to the earliest open tick; what lies
further in the future than the skew is a dead letter.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tests.contracts.engine_conformance import KEYS, Event

__all__ = ["LateEvents"]

_LATE, _FUTURE, _WIDTH = 7, 5, 6


@dataclass(frozen=True, slots=True)
class LateEvents:
    """Events around a moment.

    Attributes:
        start_ms: start of tick 1.
        first: first of six ticks that are open while the events are read.
        opened: a tick that is not closed yet when the first event is read.
        beyond: a tick that is beyond the skew.
    """

    start_ms: int
    first: int
    opened: int
    beyond: int
    in_time: tuple[Event, ...] = field(init=False)

    def __post_init__(self) -> None:
        found = [self._event(self.first + n % _WIDTH, KEYS[n % 4], n % 3) for n in range(120)]
        object.__setattr__(self, "in_time", tuple(reversed(found)))

    @property
    def last(self) -> int:
        """Last tick that holds anything."""
        return self.first + _WIDTH - 1

    @property
    def events(self) -> list[Event]:
        """All of them, the newest first."""
        late = [self._event(2, "alpha", 0)] * _LATE
        future = [self._event(self.beyond, "beta", 1)] * _FUTURE
        return [*self.in_time, *late, *future]

    def verify(
        self, totals: Mapping[str, Sequence[int]], letters: Iterable[bytes], *, punctual: bool = True
    ) -> None:
        """Judge the exact totals after each tick, and dead letters; one that comes twice is one.

        Where a busy machine was not `punctual`, some events were read after their tick had closed, and belong
        to the first open one: then none may be counted before its tick, lost or doubled.
        """
        places = {tuple(sorted(json.loads(letter).items())) for letter in letters}
        assert [dict(place)["code"] for place in places] == ["in_the_future"] * _FUTURE
        wanted = Counter((event.key, event.tick) for event in self.in_time)
        for key, totalled in totals.items():
            if not punctual:
                extra = _LATE if key == "alpha" else 0
                for t, counted in enumerate(totalled, 1):
                    due = sum(wanted[key, s] for s in range(self.first, min(t, self.last) + 1))
                    assert counted <= (due + extra if t >= self.opened else 0), f"{key}: early in tick {t}"
                assert totalled[-1] == due + extra, key
                continue
            found = [after - before for before, after in itertools.pairwise([0, *totalled])]
            for t in range(self.first, self.last + 1):
                assert found[t - 1] == wanted[key, t], f"{key}: tick {t}"
            late = {t: n for t, n in enumerate(found, 1) if n and not self.first <= t <= self.last}
            assert sum(late.values()) == (_LATE if key == "alpha" else 0), key
            assert all(self.opened <= t < self.first for t in late), "late ones in an open tick"

    def _event(self, t: int, key: str, partition: int) -> Event:
        at = self.start_ms + (t - 1) * 1000 + 7
        return Event(t, key, partition, raw=json.dumps({"k": key, "at": at}).encode())
