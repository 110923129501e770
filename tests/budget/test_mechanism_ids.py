"""Every mechanism that the counters know can be charged for: its id is no name, it has signs of its own."""

from __future__ import annotations

import pytest

from evertally.accountants.budget.counter_loss import CounterParameters, counter_mu2
from evertally.accountants.budget.lines import CounterLine, line_from_json
from evertally.accountants.budget.scopes import Scope
from evertally.counters import LogPerturbed, Rational
from evertally.counters.factorization import Factorization
from evertally.errors import InvalidParameter

SCOPE = Scope("s", "event", "add-remove", 1.0, 1e-6)


@pytest.mark.parametrize(
    "mechanism",
    [
        Rational.preset("H24"),
        Rational.from_weights((1, 4), (0.3, 0.2, 0.1, 0.4)),
        LogPerturbed(memory="constant"),
        LogPerturbed(0.01, 1.2, horizon=1000, memory="constant"),
    ],
    ids=lambda mechanism: mechanism.mechanism_id,
)
def test_every_mechanism_can_be_charged_for(mechanism: Factorization) -> None:
    horizon = mechanism.horizon or 1000
    line = CounterLine(CounterParameters(mechanism.mechanism_id, q=1000, keys=1, slack_horizon=horizon))
    assert line_from_json(line.to_json()) == line
    assert counter_mu2(line.parameters, SCOPE) > 0


@pytest.mark.parametrize(
    "text",
    ["", "W32", "rational", "rational:", "../../etc", "rational:W32\n", "a:b c", "é:x", "a:" + "b" * 401],
)
def test_what_is_no_mechanism_id_is_refused(text: str) -> None:
    with pytest.raises(InvalidParameter, match=r"line\.mechanism"):
        CounterParameters(text, q=1000, keys=1)
