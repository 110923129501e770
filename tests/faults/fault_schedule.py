"""Faults in an order that a seed decides, inflicted one after the other; the whole history is judged.

A run that fails says with which seed, and by which command it is seen again.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from tests.faults.fault_page import record
from tests.faults.recorded_history import (
    Asked,
    Charged,
    Counted,
    Operation,
    Saw,
    anomalies,
)

__all__ = ["Fault", "Target", "controls", "faults", "inflict", "the_seed"]

SEED: Final = "EVERTALLY_FAULT_SEED"
MINUTES: Final = "EVERTALLY_FAULT_MINUTES"
"""How long a run goes on at most; what was done until then is judged and recorded."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault; its moment and its measure come from `chance`, which is its own."""

    kind: str
    chance: random.Random = field(repr=False)


class Target(Protocol):
    """A running pipeline, or several, that faults are done to."""

    def inflict(self, fault: Fault) -> Iterable[Operation]:
        """Do it, heal what does not heal by itself, and read what ledger and readers have now."""
        ...

    def finish(self) -> Iterable[Operation]:
        """Wait until everything sent is counted, drain, and read everything from its start."""
        ...


def the_seed(fixed: int | None = None) -> int:
    """The seed to run with: the one asked for, else the test's own, else a new one."""
    asked = os.environ.get(SEED)
    if asked is not None:
        return int(asked)
    return int.from_bytes(os.urandom(4)) if fixed is None else fixed


def faults(seed: int, counts: Mapping[str, int]) -> list[Fault]:
    """So many faults of each kind, in an order of the seed's."""
    kinds = [kind for kind, count in counts.items() for _ in range(count)]
    random.Random(seed).shuffle(kinds)
    return [Fault(kind, random.Random(f"{seed}/{number}")) for number, kind in enumerate(kinds)]


def inflict(target: Target, counts: Mapping[str, int], seed: int) -> list[Operation]:
    """Do all faults to the target and judge what came of it; the history comes back.

    Raises AssertionError with the seed and the command that shows it again.
    """
    began = time.monotonic()
    until = began + 60 * float(os.environ.get(MINUTES, "inf"))
    history: list[Operation] = []
    done = dict.fromkeys(counts, 0)
    try:
        for fault in faults(seed, counts):
            if time.monotonic() > until:
                break
            history += target.inflict(fault)
            done[fault.kind] += 1
        history += target.finish()
        found = anomalies(history)
        assert found == [], found[:10]
        for name, spoiled in controls(history):
            assert anomalies(spoiled) != [], f"the judge does not see {name}"
    except BaseException as error:
        test = os.environ.get("PYTEST_CURRENT_TEST", "").partition(" ")[0]
        error.add_note(f"Again: {SEED}={seed} python -m pytest '{test}'")
        raise
    record(done, seed, len(history), time.monotonic() - began)
    return history


def controls(history: list[Operation]) -> Iterator[tuple[str, list[Operation]]]:
    """The same history with one bug in it: whoever finds nothing wrong there proves nothing."""
    last = {type(operation): place for place, operation in enumerate(history)}

    def changed(place: int, *instead: Operation) -> list[Operation]:
        return [*history[:place], *instead, *history[place + 1 :]]

    if Saw in last:
        saw = history[last[Saw]]
        assert isinstance(saw, Saw)
        value = saw.release.value + 1
        yield "a second value", [*history, saw._replace(release=saw.release._replace(value=value))]
        yield "a lost release", changed(last[Saw])
    if Counted in last:
        counted = history[last[Counted]]
        assert isinstance(counted, Counted)
        yield "an event counted twice", changed(last[Counted], counted._replace(total=counted.total + 1))
    if Charged in last:
        row = history[last[Charged]]
        assert isinstance(row, Charged)
        asked = sum(isinstance(operation, Asked) for operation in history)
        more = [Charged(row.scope, row.seq + n, f"another {n}", 1) for n in range(1, asked + 2)]
        yield "a charge twice", [*history, *more]
