"""Wording, amounts and drawings of the page, without a browser."""

from __future__ import annotations

import re

import pytest

from evertally.accountants.budget import Scope
from evertally.accountants.budget.scopes import Caps, ScopeStatus
from evertally.accountants.budget.service.page import wording
from evertally.accountants.budget.service.page.sessions import SESSION_S, Sessions
from evertally.accountants.budget.service.page.sparkline import band_half_width, sparkline
from evertally.accountants.budget.service.page.views import scope_view
from evertally.accountants.budget.service.schemas import CounterIn, GaussianIn, QuoteIn, ScopeIn


def test_factor_is_rounded_up() -> None:
    scope = Scope("a", "event", "add-remove", "1", "0.000001")
    said = wording.guarantee(scope)
    assert "factor of 2.72, plus 0.000001" in said  # e = 2.71828...
    huge = wording.guarantee(Scope("a", "event", "add-remove", "30", "0.000001"))
    assert "factor of e^30" in huge


@pytest.mark.parametrize(
    ("epsilon", "delta", "said"),
    [
        ("123.44", "1e-6", "factor of e^123.5, plus 0.000001."),
        ("2", "1.234e-10", "plus 1.24e-10."),
        ("2", "0.0000010000004", "plus 0.000001000001."),
        ("2", "0.0001000000000004", "plus 0.000100000001."),
    ],
)
def test_no_guarantee_reads_smaller_than_the_cap(epsilon: str, delta: str, said: str) -> None:
    assert wording.guarantee(Scope("a", "event", "add-remove", epsilon, delta)).endswith(said)


@pytest.mark.parametrize("adjacency", ["add-remove", "replace-value", "replace"])
def test_every_adjacency_has_its_sentence(adjacency: str) -> None:
    said = {wording.neighbours(Scope("a", unit, adjacency, "1", "0.001")) for unit in ("event", "user")}
    assert len(said) == 2


def test_bars_never_round_to_full_or_empty() -> None:
    scope = Scope("a", "event", "add-remove", "1", "0.000001")
    cap = scope.caps()
    for spent, expected in ((0, "0"), (1, "< 0.1"), (cap.main - 1, "99.9"), (cap.main, "100")):
        view = scope_view(ScopeStatus(scope, cap, Caps(spent, 0, 0), 1, b""))
        assert view.bars[0].percent_text == expected
    levels = [
        scope_view(ScopeStatus(scope, cap, Caps(int(cap.main * share), 0, 0), 1, b"")).bars[0].level
        for share in (0.5, 0.81, 0.96)
    ]
    assert levels == ["ok", "near", "close"]


def test_sparkline_draws_integers_of_any_size_and_escapes_its_label() -> None:
    drawing = sparkline([(10**400, "5"), (10**400 + 7, "5.5"), (10**400 - 9, "1e3")], '<"key">')
    assert "<&#34;" not in drawing
    assert "&lt;&#34;key&#34;&gt;" in drawing
    numbers = [float(number) for number in re.findall(r"-?[0-9]+\.[0-9]", str(drawing))]
    assert min(numbers) >= 0
    assert max(numbers) <= 420
    assert len(re.findall(r"points=\"([^\"]*)\"", str(drawing))[0].split()) == 6
    assert "NaN" not in sparkline([(0, "0.3")], "one")


def test_band_is_the_95_percent_interval_rounded_up() -> None:
    # golden: 1.959964 standard errors, the 97.5 % point of the normal distribution
    assert [band_half_width(stderr) for stderr in ("1", "10", "100")] == [2, 20, 196]


def test_sessions_end() -> None:
    now = [0.0]
    sessions = Sessions(clock=lambda: now[0])
    first = sessions.open("a")
    assert sessions.token_id(first) == "a"
    assert sessions.token_id("other") is None
    now[0] = SESSION_S
    assert sessions.token_id(first) is None
    second = sessions.open("b")
    sessions.close(second)
    assert sessions.token_id(second) is None
    many = [sessions.open("c") for _ in range(1001)]
    assert sessions.token_id(many[0]) is None
    assert sessions.token_id(many[-1]) == "c"


def test_schema_defaults_are_the_ledgers() -> None:
    from evertally.accountants.budget import CounterLine, CounterParameters, GaussianLine

    counter = CounterIn(kind="counter", mechanism="rational:W32", q=5, keys=2).model_dump()
    assert counter == CounterLine(CounterParameters("rational:W32", 5, 2)).to_json()
    gaussian = GaussianIn(kind="gaussian", sensitivity="1", sigma="2").model_dump()
    assert gaussian == GaussianLine("1", "2").to_json()
    fields = {"name": "a", "unit": "event", "adjacency": "add-remove"}
    body = ScopeIn.model_validate({**fields, "epsilon_cap": "1", "delta_cap": "0.001"}).model_dump()
    assert Scope(**{**body, "disjoint": ()}) == Scope("a", "event", "add-remove", "1", "0.001")
    assert QuoteIn.model_fields["group"].default == ""
