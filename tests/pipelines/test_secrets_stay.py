"""Types that hold events, exact sums or keys show nothing of them and do not leave their process."""

from __future__ import annotations

import copy
import pickle
from decimal import Decimal

import numpy as np
import pytest

from evertally.counters import CounterBank, KeyedNoise, NoiseKey, Rational, RunningCounter
from evertally.pipelines.bounding import UnitBound, UnitBounder, UnitNumbers
from evertally.pipelines.closings import Closing, ClosingBlock, TickSums
from evertally.pipelines.events import EventParser, ValueRule
from evertally.pipelines.local.lines import LineBlock
from evertally.pipelines.raw_records import RawBatch
from evertally.pipelines.sealing import Sealer
from evertally.pipelines.text_columns import PackedColumn
from evertally.pipelines.ticks import TickGrid

GRID = TickGrid(0, 10, 40)
SECRET = "734918265377"
MASTER = SECRET.encode().ljust(32, b"#")


def holders() -> dict[str, object]:
    numbers = UnitNumbers(MASTER)
    parser = EventParser(GRID, ("a",), None, None, ValueRule(Decimal(1), 0, 2**40), numbers)
    raw = RawBatch(["5"], ["a"], [SECRET], [SECRET], lambda row: (row, row), [])
    events, _ = parser.parse(raw)
    bounder = UnitBounder(UnitBound(1, 1, 1), GRID)
    bounder.add(events)
    sums = TickSums(1, 1)
    sums.add(np.array([0]), np.array([int(SECRET)]))
    noise = NoiseKey(MASTER, stream="s", stream_id=bytes(16))
    counter = RunningCounter(Rational.preset("W32"), mu=1.0, key=noise)
    counter.add(int(SECRET))
    bank = CounterBank.for_mu(Rational.preset("W32"), mu=1.0, source=KeyedNoise(noise))
    bank.close_ticks([[int(SECRET)]])
    text = np.frombuffer(SECRET.encode(), np.uint8)
    return {
        "unit numbers": numbers,
        "units seen": parser._units,
        "values seen": parser._values,
        "raw batch": raw,
        "events": events,
        "bounder": bounder,
        "sums": sums,
        "closing": Closing("s", "a", 1, int(SECRET), b""),
        "closings": ClosingBlock("s", ("a",), 1, np.array([[int(SECRET)]]), b"", (10,)),
        "lines": LineBlock(1, 0, SECRET.encode()),
        "column": PackedColumn(text, np.array([0]), np.array([len(text)])),
        "sealer": Sealer(MASTER, "s", 1),
        "noise key": noise,
        "noise": KeyedNoise(noise),
        "counter": counter,
        "bank": bank,
    }


@pytest.mark.parametrize("name", holders())
def test_what_is_sensitive_is_not_shown_and_does_not_travel(name: str) -> None:
    holder = holders()[name]
    for text in (repr(holder), str(holder), f"{[holder]}"):
        assert SECRET not in text
        assert MASTER.hex() not in text
    for leave in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError):
            leave(holder)
