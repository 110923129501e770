"""What every engine that counts a stream must do, whatever it runs on: cases, and the properties of a run.

A case is data: events, declared keys, faults. An engine's adapter feeds it, kills and restarts what the
case says, waits until everything is counted, and hands back what readers saw. `verify` judges that, and
trusts nothing of the engine: the exact sums behind the releases are the releases less their noise, which
it draws again from the key file.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from evertally.accountants.budget.ledger import OpenedStream
from evertally.accountants.budget.scopes import Scope
from evertally.counters.bank import CounterBank
from evertally.counters.keys import KeyedNoise
from evertally.counters.mechanisms import parse_mechanism
from evertally.pipelines.bounding import UnitBound
from evertally.pipelines.keyfile import KeyFile
from evertally.pipelines.releases import Release
from evertally.pipelines.stream_spec import StreamSpec
from evertally.testing import HistoryChecker

__all__ = ["CASES", "Case", "Engine", "Event", "Observed", "case", "exact_steps", "verify"]

KEYS = ("alpha", "beta", "gamma", "delta")


@dataclass(frozen=True, slots=True)
class Event:
    """One event. `tick` is that of its own stamp; an engine that counts by arrival does not look at it."""

    tick: int
    key: str
    partition: int = 0
    unit: str = "someone"
    raw: bytes | None = None  # what stands in its place on the input, where it is no event at all


@dataclass(frozen=True, slots=True)
class Case:
    """A stream to count.

    Attributes:
        name: in words, for the test's id.
        events: in the order in which each partition holds them.
        keys: the declared keys.
        ticks: a bounded engine's declared range; a live one runs at least so many ticks.
        partitions: partitions of the input.
        bound: what a unit may contribute, None at event level. Each unit has a key of its own then, so that
            the released sums show the ticks in which it was counted.
        restarts: the engine is killed so often while events come, and started again.
        drains: it is asked to end so often while events come, ends by itself, and is started again.
        feed_s: a live engine's events come spread over so many seconds.
    """

    name: str
    events: tuple[Event, ...]
    keys: tuple[str, ...] = KEYS
    ticks: int = 6
    partitions: int = 3
    bound: UnitBound | None = None
    restarts: int = 0
    drains: int = 0
    feed_s: float = 0.0

    def valid(self) -> Iterable[Event]:
        """Events that are to be counted, before bounding."""
        return (event for event in self.events if event.raw is None and event.key in self.keys)

    def totals(self) -> dict[str, int]:
        """What each declared key must have at the end, where nothing is bounded away."""
        found = Counter(event.key for event in self.valid())
        return {key: found[key] for key in self.keys}

    def steps(self) -> dict[str, list[int]]:
        """What each tick must add where every event goes to the tick of its own stamp."""
        found = Counter((event.key, event.tick) for event in self.valid())
        return {key: [found[key, t] for t in range(1, self.ticks + 1)] for key in self.keys}

    def spec(self, name: str, *, start_ms: int, tick_ms: int, closing: str, shards: int = 1) -> StreamSpec:
        """The declaration of the case's stream."""
        unit = "event" if self.bound is None else "person"
        limits = self.bound or UnitBound(1, 1, 1)
        return StreamSpec(
            name=name,
            keys=self.keys,
            start_ms=start_ms,
            tick_ms=tick_ms,
            scope=Scope(name, unit, "add-remove", "1", "1e-6"),
            participations=limits.participations,
            min_separation=limits.min_separation,
            per_tick=limits.per_tick,
            shards=shards,
            closing=closing,
        )


@dataclass(slots=True)
class Observed:
    """What came of a case.

    Attributes:
        final: what stands published at the end, in the order of publication.
        seen: every release that any reader saw at any time, before and after every restart.
        steps: exact amount added at each tick behind the final releases, by key (`exact_steps`).
        by_stamp: whether every event had to go to the tick of its own stamp.
        bounded: whether exactly `Case.ticks` ticks had to be released, not just at least so many.
    """

    final: Sequence[Release]
    seen: Sequence[Release]
    steps: Mapping[str, Sequence[int]]
    by_stamp: bool
    bounded: bool
    notes: list[str] = field(default_factory=list)


class Engine(Protocol):
    """An adapter: runs cases on one engine."""

    def run(self, case: Case) -> Observed:
        """Feed the case, inflict its faults, wait until everything is counted, drain."""
        ...


def verify(case: Case, observed: Observed) -> None:
    """Every property that the case asks of any engine."""
    checker = HistoryChecker()
    checker.see(observed.seen)
    checker.see(observed.final)
    assert checker.anomalies() == []

    ticks: dict[str, list[int]] = defaultdict(list)
    for release in observed.final:
        ticks[release.key].append(release.t)
    assert set(ticks) == set(case.keys), "declared keys, all of them and no other"
    lengths = {len(found) for found in ticks.values()}
    assert len(lengths) == 1, "every declared key releases at every tick"
    (last,) = lengths
    for key, found in ticks.items():
        assert found == list(range(1, last + 1)), f"{key}: ticks are 1, 2, ..., each once, in order"
    assert last == case.ticks if observed.bounded else last >= case.ticks, "empty ticks are released too"

    assert set(observed.steps) == set(case.keys)
    for key, steps in observed.steps.items():
        assert min(steps) >= 0, f"{key}: a tick took something back"
    if case.bound is not None:
        _verify_bound(case, case.bound, observed)
    elif observed.by_stamp:
        assert {key: list(steps) for key, steps in observed.steps.items()} == case.steps()
    else:
        assert {key: sum(steps) for key, steps in observed.steps.items()} == case.totals()


def _verify_bound(case: Case, bound: UnitBound, observed: Observed) -> None:
    """Each unit has its own key: counted in at most k ticks, at least b apart, at most c events in each."""
    sent = case.totals()
    for key, steps in observed.steps.items():
        counted = [t for t, step in enumerate(steps, start=1) if step]
        assert len(counted) <= bound.participations, f"{key}: in more ticks than allowed"
        assert all(late - early >= bound.min_separation for early, late in itertools.pairwise(counted))
        assert max(steps) <= bound.per_tick, f"{key}: more events in a tick than allowed"
        assert bool(counted) == bool(sent[key]), f"{key}: a unit that came is counted at least once"


def exact_steps(
    releases: Iterable[Release], spec: StreamSpec, opened: OpenedStream, key_file: KeyFile
) -> dict[str, list[int]]:
    """What each tick added, exactly: releases less the noise that only the key file's owner can draw."""
    values: dict[str, dict[int, int]] = defaultdict(dict)
    for release in releases:
        values[release.key][release.t] = release.value
    names = dict(zip(opened.key_indices, opened.keys, strict=True))
    noise_key = key_file.noise_key(opened.name, opened.stream_id, opened.incarnation)
    steps: dict[str, list[int]] = {}
    for shard in range(opened.shards):
        indices = opened.shard_keys(shard)
        last = max((max(values[names[index]], default=0) for index in indices), default=0)
        bank = CounterBank(parse_mechanism(spec.mechanism), spec.grid, KeyedNoise(noise_key, indices))
        drawn = bank.close_ticks([[0] * len(indices)] * last)
        for column, index in enumerate(indices):
            before, found = 0, []
            for t, noise in enumerate(drawn, start=1):
                total = values[names[index]][t] - noise.values[column]
                found.append(total - before)
                before = total
            steps[names[index]] = found
    return steps


def _events(seed: int, count: int, keys: Sequence[str], ticks: int, partitions: int = 3) -> list[Event]:
    chance = random.Random(seed)
    return [
        Event(chance.randint(1, ticks), chance.choice(keys), chance.randrange(partitions))
        for _ in range(count)
    ]


def _hot() -> tuple[Event, ...]:
    hot = [Event(1 + n % 6, "alpha", n % 3) for n in range(3000)]
    return (*hot, *_events(1, 60, KEYS, 6))


def _units() -> tuple[Event, ...]:
    """One unit sends everywhere at once, all the time; the others now and then."""
    busy = [Event(1 + n % 12, "u0", n % 3, "u0") for n in range(240)]
    chance = random.Random(5)
    rare = [Event(chance.randint(1, 12), f"u{n % 5 + 1}", n % 3, f"u{n % 5 + 1}") for n in range(40)]
    return tuple(sorted([*busy, *rare], key=lambda event: event.tick))


_MANY = tuple(f"key-{number:05d}" for number in range(10_000))
_BROKEN = tuple(
    Event(1, "", n % 3, raw=raw)
    for n, raw in enumerate([b"", b"{", b"[]", b"null", b'{"k":5}', b'{"k":"\xff"}', b'{"k":"nobody","n":1}'])
)

CASES: tuple[Case, ...] = (
    Case("steady", tuple(_events(2, 300, KEYS, 6))),
    Case("hot key", _hot()),
    Case("ten thousand keys", tuple(_events(3, 500, _MANY, 2)), keys=_MANY, ticks=2),
    Case("out of order", tuple(sorted(_events(4, 200, KEYS, 6), key=lambda event: -event.tick))),
    Case("idle partitions", tuple(_events(6, 100, KEYS, 6, partitions=1))),
    Case("empty ticks", (Event(2, "alpha"), Event(2, "alpha", 1), Event(9, "beta", 2)), ticks=12),
    Case("nothing at all", (), ticks=5),
    Case("broken and undeclared", (*_events(7, 50, KEYS, 6), *_BROKEN, Event(3, "not declared", 1))),
    Case("units", _units(), tuple(f"u{n}" for n in range(6)), 12, bound=UnitBound(3, 2, 2), feed_s=4.0),
    Case("restarts", tuple(_events(8, 400, KEYS, 12)), ticks=12, restarts=3, feed_s=6.0),
    Case("drain", tuple(_events(9, 300, KEYS, 12)), ticks=12, drains=2, feed_s=4.0),
    Case(
        "units and restarts",
        _units(),
        tuple(f"u{n}" for n in range(6)),
        12,
        bound=UnitBound(2, 3, 1),
        restarts=2,
        feed_s=6.0,
    ),
)


def case(name: str) -> Case:
    """The case of that name."""
    return next(found for found in CASES if found.name == name)
