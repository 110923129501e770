"""A training line's cost is a function of its public parameters: of no clock, and of no load."""

from __future__ import annotations

import json
import time
from fractions import Fraction
from typing import NoReturn

import pytest

from evertally.accountants import BLT, line_choice, renyi_lines, strategies
from evertally.accountants.budget import ChargeRequest, Scope, TrainingLine
from evertally.accountants.budget.charges import cost
from evertally.accountants.budget.lines import line_from_json
from evertally.accountants.budget.loss import Loss
from evertally.errors import InvalidParameter, UnsupportedMechanism

MIXED = Scope("m", "event", "add-remove", "8", "1e-6", epsilon_lines="2", filter="renyi", order=8)
BINS = {"kind": "BallsInBins", "batches": 10, "epochs": 2}
STRATEGIES = [{"kind": "Identity"}, {"kind": "BandedSquareRoot", "bands": 3}, {"kind": "BandMF", "bands": 2}]


def cold(line: TrainingLine) -> Loss:
    """The loss with nothing remembered from before."""
    line_choice.lines.cache_clear()
    renyi_lines._line_moments.cache_clear()
    return line.loss(MIXED)


@pytest.mark.slow
@pytest.mark.parametrize("own_delta", ["", "1e-8"])
@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: s["kind"])
def test_a_training_lines_cost_reads_no_clock(
    strategy: dict[str, object], own_delta: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = TrainingLine(strategy, BINS, "4", own_delta)
    first = cold(line)

    def refuse() -> NoReturn:
        raise AssertionError("a cost asked what time it is")

    for clock in ("time", "monotonic", "perf_counter", "process_time", "thread_time"):
        monkeypatch.setattr(time, clock, refuse)
        monkeypatch.setattr(time, f"{clock}_ns", refuse)
    second = cold(line)
    monkeypatch.undo()
    assert second == first
    assert first.epsilon > 0 if own_delta else (first.renyi or 0) > 0


@pytest.mark.parametrize("own_delta", ["", "1e-8"])
def test_the_keyed_stream_of_a_run_is_charged(own_delta: str) -> None:
    """n 2^-92 + n^2 2^-129 over n = rows x elements blocks of one key, as a counter's stream pays it."""
    elements, rows = 10**9, 20
    bare = TrainingLine({"kind": "Identity"}, BINS, "4", own_delta)
    keyed = TrainingLine({"kind": "Identity"}, BINS, "4", own_delta, elements)
    n = elements * rows
    rises = keyed.loss(MIXED).delta - bare.loss(MIXED).delta
    assert rises == Fraction(n, 2**92) + Fraction(n * n, 2**129)
    assert rises * 10**18 > 0.5  # more than a rounding of the ledger's unit
    request = [ChargeRequest("m", "event", "add-remove", line) for line in (bare, keyed)]
    assert cost(MIXED, request[1]).delta > cost(MIXED, request[0]).delta
    assert line_from_json(keyed.to_json()) == keyed
    assert "elements" not in bare.to_json()  # lines of older ledgers read and write the same bytes


EPOCHS = {"kind": "EachEpochOnce", "batches": 10, "epochs": 2}
CYCLES = {"kind": "CyclicPoisson", "sampling_probability": "0.01", "rows": 20, "cycle": 10}


@pytest.mark.parametrize(
    ("kind", "participation"),
    [
        ("BandMF", BINS),
        ("BandedInverseMF", BINS),
        ("BandMF", EPOCHS),
        ("BandedInverseMF", EPOCHS),
        ("BandMF", CYCLES),
    ],
)
def test_an_optimised_strategy_travels_with_its_numbers(
    kind: str, participation: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    own_delta = "" if participation is BINS else "1e-8"
    line = TrainingLine({"kind": kind, "bands": 3, "normalize_columns": True}, participation, "4", own_delta)
    written = line.to_json()
    taps = written["strategy"]["taps"]  # type: ignore[index]  # an object
    assert len(taps) == 3
    strategy, _ = line.mechanism()
    assert [repr(tap) for tap in strategy.taps] == taps  # type: ignore[attr-defined]  # an optimised one
    assert strategy.normalize_columns  # type: ignore[attr-defined]
    price = line.loss(MIXED)

    def fail(*_: object) -> NoReturn:
        raise AssertionError("the strategy was optimised again")

    # a verifier, or a trainer, on another machine: same line, same matrix, same cost, no optimiser
    monkeypatch.setattr(strategies, "optimise_taps", fail)
    monkeypatch.setattr(strategies, "optimise_inverse_taps", fail)
    for cache in (strategies._band_mf_taps, strategies._band_inverse_mf_taps, strategies._toeplitz):
        cache.cache_clear()
    again = line_from_json(json.loads(json.dumps(written)))
    assert again == line
    assert again.loss(MIXED) == price
    # the numbers are what is charged for; normalised columns may cost the same whatever the numbers are
    plain = json.loads(json.dumps(written))
    plain["strategy"]["normalize_columns"] = False
    other = json.loads(json.dumps(plain))
    other["strategy"]["taps"][1] = "-0.9"
    costs = [line_from_json(one).loss(MIXED) for one in (other, plain)]
    spent = [float(cost.epsilon or cost.renyi or 0) for cost in costs]
    assert spent[0] > 1.01 * spent[1] > 0


def test_numbers_of_a_strategy_keep_their_signs_and_are_checked() -> None:
    blt = {"kind": "BLT", "output_scales": ["0.3", "-0.05"], "buffer_decays": ["0.9", "0"]}
    strategy, _ = TrainingLine(blt, BINS, "4").mechanism()
    assert strategy == BLT((0.3, -0.05), (0.9, 0.0))
    for wrong in ("--1", "nan", "-inf", "1,5", "", "1e400", "-1e309", "1e-400"):
        with pytest.raises(InvalidParameter):
            TrainingLine({**blt, "output_scales": ["0.3", wrong]}, BINS, "4").loss(MIXED)
    with pytest.raises(InvalidParameter, match="taps"):
        TrainingLine({"kind": "BandMF", "bands": 4096}, {**BINS, "batches": 100_000}, "4")
    with pytest.raises(InvalidParameter, match="bands"):
        TrainingLine({"kind": "BandMF", "bands": 0}, BINS, "4")


@pytest.mark.parametrize("text", ["1e400", "1e-400", "2e308"])
def test_a_number_that_no_double_holds_is_refused_by_name(text: str) -> None:
    with pytest.raises(InvalidParameter, match=r"line\.noise_multiplier"):
        TrainingLine({"kind": "Identity"}, BINS, text).loss(MIXED)
    with pytest.raises(InvalidParameter, match=r"line\.own_delta"):
        TrainingLine({"kind": "Identity"}, BINS, "4", own_delta=text).loss(MIXED)
    with pytest.raises(InvalidParameter, match=r"line\.participation"):
        TrainingLine({"kind": "Identity"}, {**CYCLES, "sampling_probability": text}, "4").loss(MIXED)


@pytest.mark.parametrize("adjacency", ["replace", "replace-value"])
@pytest.mark.parametrize("own_delta", ["", "1e-8"])
def test_no_run_is_charged_where_a_unit_may_be_replaced(adjacency: str, own_delta: str) -> None:
    """The accountants' bounds are for a unit that is there or not; else a step moves by twice the clip."""
    scope = Scope(
        "r", "user", adjacency, "8", "1e-6", delta_lines="1e-7", epsilon_lines="1", filter="renyi", order="8"
    )
    line = TrainingLine({"kind": "Identity"}, {"kind": "BallsInBins", "batches": 8}, "6", own_delta)
    with pytest.raises(UnsupportedMechanism, match="add-remove"):
        cost(scope, ChargeRequest("r", "user", adjacency, line))
