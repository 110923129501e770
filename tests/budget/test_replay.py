"""A history played again: what passes, and what a better or worse accountant changes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from evertally.accountants.budget import (
    ChargeRequest,
    ChargeRow,
    CounterLine,
    CounterParameters,
    GaussianLine,
    Scope,
)
from evertally.accountants.budget import replay as module
from evertally.accountants.budget.charges import Cost, cost
from evertally.accountants.budget.replay import Replay

SCOPE = Scope("s", "event", "add-remove", "4", "1e-6", disjoint=("keys",))
PRICE = 10_000_000
NO_COUNTER = "cannot be recomputed: UnsupportedMechanism"


def body(sigma: str = "10", group: str = "", *members: str) -> str:
    line = GaussianLine(1, sigma)
    return ChargeRequest("s", "event", "add-remove", line, group=group, members=members).body()


def counter(slack_horizon: int, q: int = 2**24) -> str:
    line = CounterLine(CounterParameters("rational:W32", q=q, keys=1, slack_horizon=slack_horizon))
    return ChargeRequest("s", "event", "add-remove", line).body()


def row(event: str, main: int, line: str = "", charge_id: str = "c1") -> ChargeRow:
    return ChargeRow("s", 1, charge_id, event, "local", line, main, 0, 10 * ("counter" in line), 1)


def play(*rows: ChargeRow) -> list[str]:
    replay = Replay()
    return [replay.play(SCOPE, r) for r in rows]


@pytest.mark.parametrize(
    ("rows", "wrong"),
    [
        ([row("committed", PRICE, body())], ""),
        ([row("committed", PRICE + 5, body())], ""),
        ([row("committed", PRICE - 1, body())], ""),  # the last digit of another processor
        ([row("committed", PRICE - 2, body())], "charges less than its line costs"),
        ([row("reserved", PRICE, body()), row("expired", -PRICE)], ""),
        ([row("reserved", PRICE, body()), row("expired", -PRICE - 1)], "expires wrongly"),
        ([row("reserved", PRICE, body()), row("committed", 0)], ""),
        ([row("reserved", PRICE, body()), row("committed", -1)], "commits wrongly"),
        ([row("committed", PRICE, body()), row("expired", -PRICE)], "expires wrongly"),
        ([row("committed", PRICE, body()), row("committed", PRICE, body())], "is out of order"),
        ([row("committed", 2 * PRICE, body()), row("extended", 0, body())], NO_COUNTER),
        ([row("extended", 0, body())], "extends wrongly"),
        ([row("committed", 2 * PRICE, counter(9)), row("extended", 0, counter(10))], ""),
        ([row("committed", 2 * PRICE, counter(9)), row("extended", 0, counter(9))], "extends wrongly"),
        ([row("committed", 2 * PRICE, counter(9)), row("extended", 0, counter(8))], "extends wrongly"),
        ([row("committed", 2 * PRICE, counter(9)), row("extended", 0, counter(10, q=1))], "extends wrongly"),
        ([row("reserved", 2 * PRICE, counter(9)), row("extended", 0, counter(10))], "extends wrongly"),
        ([row("committed", PRICE, "{}")], "cannot be recomputed: InvalidParameter"),
    ],
)  # fmt: skip
def test_each_row_is_judged(rows: list[ChargeRow], wrong: str) -> None:
    assert play(*rows)[-1] == wrong


def test_a_group_owes_its_largest_member_at_every_row() -> None:
    first = row("committed", PRICE, body("10", "keys", "a"))
    larger = body("5", "keys", "b")
    assert play(first, row("committed", 3 * PRICE, larger, "c2")) == ["", ""]
    assert play(first, row("committed", 3 * PRICE - 2, larger, "c2"))[1] == ""
    assert play(first, row("committed", 3 * PRICE - 3, larger, "c2"))[1] == "charges less than its line costs"


def test_a_bound_that_later_shrinks_passes_and_one_that_grows_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    history = [
        row("reserved", PRICE, body("10", "keys", "a")),
        row("reserved", PRICE, body(), "c2"),
        row("expired", -PRICE),
        row("expired", -PRICE, charge_id="c2"),
    ]

    def scaled(percent: int) -> object:
        def later(scope: Scope, request: ChargeRequest) -> Cost:
            price = cost(scope, request)
            return replace(price, main=price.main * percent // 100)

        return later

    monkeypatch.setattr(module, "cost", scaled(90))
    assert play(*history) == ["", "", "", ""]
    monkeypatch.setattr(module, "cost", scaled(101))
    assert play(*history)[:2] == ["charges less than its line costs"] * 2
