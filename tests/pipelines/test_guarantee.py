"""The guarantee in words: no number of it is smaller than what it stands for."""

from __future__ import annotations

import functools
import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evertally.accountants.bound import Bound
from evertally.accountants.budget.scopes import Scope
from evertally.pipelines.cli.mechanism import rendered
from evertally.pipelines.guarantee import guarantee_sentence, rounded_down, rounded_up
from evertally.pipelines.releases import SelectionLoss, StreamHeader
from evertally.pipelines.stream_spec import StreamSpec

LOSSES = st.floats(1e-300, 1e300)


@functools.cache
def header_of_any() -> StreamHeader:
    spec = StreamSpec("s", ("a",), 0, 1000, Scope("s", "event", "add-remove", 1.0, 1e-6))
    return spec.header(1)


@pytest.mark.slow
@given(LOSSES)
def test_rounded_up_never_flatter(value: float) -> None:
    up, down = float(rounded_up(value)), float(rounded_down(value))
    assert down <= value <= up
    assert up - down <= value * 1.1e-5


@pytest.mark.slow
@settings(deadline=None)
@given(LOSSES, LOSSES, LOSSES, st.floats(1e-30, 0.999))
def test_the_sentence_states_upper_bounds(mu: float, epsilon: float, both: float, delta: float) -> None:
    loss = SelectionLoss(mu, epsilon, both, both)
    header = replace(header_of_any(), mu=mu, epsilon=epsilon, delta=delta, selection=loss)
    said = re.findall(r"(epsilon|delta|mu) = ([0-9.e+-]*[0-9])", guarantee_sentence(header))
    stated = [("epsilon", epsilon), ("delta", delta), ("mu", mu)]
    together = [("epsilon", both), ("delta", delta), ("mu", both)]
    for (name, text), (wanted, true) in zip(said, [*stated, *stated, *together], strict=True):
        assert name == wanted
        assert float(text) >= true


def test_a_bound_is_printed_on_its_safe_side() -> None:
    bound = Bound(0.55691234, "renyi", 0.5123458, 0.0445665, "mechanism")
    table = rendered("title", "sigma", bound, {"renyi": 0.55691234}, "noise")
    assert table.count("0.556913") == 2
    assert "0.512345 " in table
