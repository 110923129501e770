"""The judge of every run under faults sees each kind of fault, also a single one in a long history."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TypeVar

import pytest
from tests.faults.recorded_history import (
    LEDGER,
    Answered,
    Asked,
    Broken,
    Charged,
    Counted,
    Declared,
    Instant,
    Operation,
    Pending,
    Reread,
    Saw,
    Sent,
    Spent,
    anomalies,
)

from evertally.pipelines.releases import Release

KEYS = ("a", "b")
History = list[Operation]
Kind = TypeVar("Kind", bound=Operation)


def release(key: str, t: int) -> Release:
    return Release("s", key, 1, t, 1000 * t, 31 * t + ord(key), 1.5, "rational:W32")


def good(ticks: int, seed: int = 1) -> History:
    """What a right pipeline leaves, with retries, refusals and unknown outcomes."""
    chance = random.Random(seed)
    history: History = [
        Declared("s", KEYS),
        Asked("open"),
        Charged("c", 1, "stream", 7),
        Spent("c", 7, 10**9),
    ]
    spent, seq = 7, 1
    for t in range(1, ticks + 1):
        rows = [release(key, t) for key in KEYS]
        history += [Saw(LEDGER, row, t // 10) for row in rows]
        history += [Saw("file", row) for row in rows]
        history += [Saw("file", row) for row in rows if chance.random() < 0.1]  # a reader reads again
        history += [Sent("s", key, 1) for key in KEYS]
        request, fate = f"r{t}", chance.random()
        history.append(Asked(request))
        if fate < 0.9:
            seq, spent = seq + 1, spent + 5
            history.append(Charged("c", seq, f"c{t}", 5))
            if fate < 0.8:  # else its answer was lost
                history += [Answered(request, f"c{t}", 5)] * (2 if fate < 0.1 else 1)
        elif fate < 0.95:
            history.append(Answered(request, "", 0))
        history += [Spent("c", spent, 10**9), Instant()]
    history += [
        Reread("file", "s"),
        *(Saw("file", release(key, t)) for t in range(1, ticks + 1) for key in KEYS),
    ]
    history += [Counted("s", key, ticks) for key in KEYS]
    return history


def always(_: object) -> bool:
    return True


def index(history: History, kind: type[Kind], fits: Callable[[Kind], bool] = always) -> int:
    """Place in the middle of the history of an operation of that kind."""
    places = [i for i, found in enumerate(history) if isinstance(found, kind) and fits(found)]
    return places[len(places) // 2]


def changed(
    history: History, kind: type[Kind], change: Callable[[Kind], Kind], fits: Callable[[Kind], bool] = always
) -> History:
    at = index(history, kind, fits)
    old = history[at]
    assert isinstance(old, kind)
    return [*history[:at], change(old), *history[at + 1 :]]


def without(kind: type[Kind], fits: Callable[[Kind], bool] = always) -> Callable[[History], History]:
    def take_out(history: History) -> History:
        at = index(history, kind, fits)
        return [*history[:at], *history[at + 1 :]]

    return take_out


def in_ledger(saw: Saw) -> bool:
    return saw.place == LEDGER


def in_file(saw: Saw) -> bool:
    return saw.place == "file"


def granted(answer: Answered) -> bool:
    return answer.charge != ""


def other(saw: Saw) -> Saw:
    return saw._replace(release=saw.release._replace(value=saw.release.value - 1))


def lost_tick(history: History) -> History:
    """A tick that nobody ever had, as if the clock had skipped it."""
    t = max(found.release.t for found in history if isinstance(found, Saw)) // 2
    return [found for found in history if not (isinstance(found, Saw) and found.release.t == t)]


def torn_end(history: History) -> History:
    """What stood in the file once is not there at the end."""
    last = max(found.release.t for found in history if isinstance(found, Saw))
    start = history.index(Reread("file", "s"))
    rest = [f for f in history[start:] if not (isinstance(f, Saw) and f.release.t == last)]
    return [*history[:start], *rest]


def before_durable(history: History) -> History:
    """A release that readers see an instant before its row is durable."""
    at = index(history, Saw, in_ledger)
    row = history[at]
    behind = next(i for i in range(at, len(history)) if isinstance(history[i], Instant))
    return [*history[:at], *history[at + 1 : behind + 1], row, *history[behind + 1 :]]


def ahead_of_ledger(history: History) -> History:
    t = max(found.release.t for found in history if isinstance(found, Saw)) + 1
    return [*history, *(Saw("file", release(key, t)) for key in KEYS)]


def keys_apart(history: History) -> History:
    t = max(found.release.t for found in history if isinstance(found, Saw)) + 1
    return [*history, Saw(LEDGER, release("a", t)), Saw("file", release("a", t))]


def undeclared(history: History) -> History:
    return [*history, Saw(LEDGER, release("c", 1)), Saw("file", release("c", 1))]


def never_released(history: History) -> History:
    return [Declared("s", (*KEYS, "c")), *history[1:]]


def beyond_the_cap(history: History) -> History:
    """Room is given back in the end, but there was an instant beyond the cap."""
    spent = [found for found in history if isinstance(found, Spent)][-1].spent
    over: History = [
        found._replace(cap=spent - 1) if isinstance(found, Spent) else found for found in history
    ]
    seq = max(found.seq for found in history if isinstance(found, Charged))
    back: History = [Charged("c", seq + 1, "stream", -7), Spent("c", spent - 7, spent - 1)]
    return [*(found for found in over if not (isinstance(found, Spent) and found.spent >= found.cap)), *back]


def refunded(history: History) -> History:
    seq = max(found.seq for found in history if isinstance(found, Charged))
    spent = [found for found in history if isinstance(found, Spent)][-1]
    charge = next(found for found in history if isinstance(found, Answered) and found.charge)
    return [*history, Charged("c", seq + 1, charge.charge, -5), spent._replace(spent=spent.spent - 5)]


def nobodys(history: History) -> History:
    """More charges than requests whose outcome is unknown."""
    seq = max(found.seq for found in history if isinstance(found, Charged))
    spent = [found for found in history if isinstance(found, Spent)][-1]
    rows = [Charged("c", seq + n, f"nobody's {n}", 5) for n in range(1, 101)]
    return [*history, *rows, spent._replace(spent=spent.spent + 500)]


def twice_for_one_request(history: History) -> History:
    """Idempotency off: the retry of a lost answer is a second charge."""
    at = index(history, Answered, granted)
    answer = history[at]
    assert isinstance(answer, Answered)
    return [*history[: at + 1], answer._replace(charge="another"), *history[at + 1 :]]


BUGS: dict[str, Callable[[History], History]] = {
    "a second value": lambda h: changed(h, Saw, other, in_file),
    "a tick nobody has": lost_tick,
    "a row lost in the ledger": without(Saw, in_ledger),
    "a release lost in the file": torn_end,
    "published before it is durable": before_durable,
    "published and never stored": ahead_of_ledger,
    "a torn line": lambda h: [*h, Broken("file", 7)],
    "keys at different ticks": keys_apart,
    "a key nobody declared": undeclared,
    "a declared key without releases": never_released,
    "a fenced holder that goes on": lambda h: changed(h, Saw, lambda f: f._replace(holder=0), in_ledger),
    "beyond the cap for an instant": beyond_the_cap,
    "a refund after a grant": refunded,
    "a charge lost": without(Charged),
    "one request charged twice": twice_for_one_request,
    "one charge for two requests": lambda h: changed(h, Answered, lambda f: f._replace(charge="c1"), granted),
    "another amount than was told": lambda h: changed(h, Answered, lambda f: f._replace(amount=4), granted),
    "charges nobody asked for": nobodys,
    "an answer to nothing": lambda h: changed(h, Answered, lambda f: f._replace(request="r0")),
    "a spend that forgets an unknown outcome": lambda h: [*h, Spent("c", 7, 10**9)],
    "a cap that grows": lambda h: changed(h, Spent, lambda f: f._replace(cap=10**10)),
    "an event lost": lambda h: [*h, Sent("s", "a", 1)],
    "an event counted twice": lambda h: changed(h, Counted, lambda f: f._replace(total=301)),
}


def test_a_right_history_has_no_anomaly() -> None:
    for seed in range(20):
        assert anomalies(good(50, seed)) == []


@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS)
def test_each_kind_of_fault_is_found(bug: str) -> None:
    assert anomalies(BUGS[bug](good(300))) != []


@pytest.mark.slow
def test_a_single_second_value_among_a_hundred_thousand_operations_is_found() -> None:
    history = good(7700)
    assert len(history) > 100_000
    assert anomalies(history) == []
    places = [i for i, found in enumerate(history) if isinstance(found, Saw) and in_file(found)]
    at = random.Random(3).choice(places)
    old = history[at]
    assert isinstance(old, Saw)
    history[at] = other(old)
    (found,) = anomalies(history)
    assert found == f"s/{old.release.key}/1: tick {old.release.t} has 2 values"


def test_what_was_not_published_yet_is_not_lost() -> None:
    history = [*good(20), *(Saw(LEDGER, release(key, 21)) for key in KEYS)]
    assert anomalies(history) != []
    assert anomalies([*history, Pending("s", 20)]) == []
    assert anomalies([*torn_end(good(20)), Pending("s", 20)]) != []
