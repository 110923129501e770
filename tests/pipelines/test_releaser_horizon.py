"""A releaser at the end of its slack horizon: it stops, or goes on where more was paid for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from evertally.accountants.budget import LedgerStore, Scope, open_ledger
from evertally.counters import CounterBank, KeyedNoise, NoiseKey, parse_mechanism
from evertally.errors import BudgetExceeded, InvalidParameter, UnsupportedMechanism
from evertally.pipelines.closings import ClosingBlock
from evertally.pipelines.keyfile import KeyFile
from evertally.pipelines.releaser import Releaser
from evertally.pipelines.sinks import FileSink
from evertally.pipelines.stream_spec import StreamSpec

KEYS = ("north", "south")
DATA = np.random.default_rng(5).integers(0, 50, (40, 2))
SCOPE = Scope("people", "event", "add-remove", "1", "1e-6")


def spec(slack_horizon: int = 10, mu: float | None = 0.1) -> StreamSpec:
    return StreamSpec("gates", KEYS, 0, 60_000, SCOPE, mu=mu, slack_horizon=slack_horizon)


def block(first: int, stop: int) -> ClosingBlock:
    ends = tuple(t * 60_000 for t in range(first, stop + 1))
    return ClosingBlock("gates", KEYS, first, DATA[first - 1 : stop], b"offset", ends)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LedgerStore]:
    opened = open_ledger(tmp_path / "ledger")
    yield opened
    opened.close()


@pytest.fixture
def keyfile(tmp_path: Path) -> KeyFile:
    return KeyFile.create(tmp_path / "key")


def test_a_stream_ends_at_its_horizon_and_goes_on_once_that_is_paid(
    store: LedgerStore, keyfile: KeyFile, tmp_path: Path
) -> None:
    releaser = Releaser.open(store, spec(), keyfile, holder="a")
    header = releaser.header.encode()
    releaser.release(block(1, 10))
    for _ in range(2):
        with pytest.raises(UnsupportedMechanism, match="extend-horizon"):
            releaser.release(block(11, 12))
    assert releaser.extend_horizon(30).main > 0
    assert releaser.release(block(11, 30)) == 20
    assert releaser.header.encode() == header  # the file goes on under its first line
    with FileSink(tmp_path / "out", header) as sink:
        assert releaser.publish(sink) == 30
    assert store.verify().problems == ()


def test_another_process_may_pay_and_a_restart_takes_it_up(store: LedgerStore, keyfile: KeyFile) -> None:
    releaser = Releaser.open(store, spec(), keyfile, holder="a")
    releaser.release(block(1, 8))
    store.extend_horizon("gates", 1, 20)
    assert releaser.release(block(9, 20)) == 12
    with pytest.raises(UnsupportedMechanism):
        releaser.release(block(21, 21))
    store.extend_horizon("gates", 1, 40)
    again = Releaser.open(store, spec(), keyfile, holder="b")  # the declaration is the old one
    assert again.next_tick == 21
    assert again.release(block(21, 40)) == 20


def test_the_noise_does_not_depend_on_when_the_horizon_was_bought(tmp_path: Path, keyfile: KeyFile) -> None:
    """One ledger extended before the first tick, its copy at the last moment: the same values."""
    values = []
    first = open_ledger(tmp_path / "one")
    Releaser.open(first, spec(), keyfile, holder="a")
    first.close()
    for suffix in ("", ".chainkey"):
        (tmp_path / f"two{suffix}").write_bytes((tmp_path / f"one{suffix}").read_bytes())
        (tmp_path / f"two{suffix}").chmod(0o600)
    for name, bought_at in (("one", 0), ("two", 10)):
        store = open_ledger(tmp_path / name, create=False)
        releaser = Releaser.open(store, spec(), keyfile, holder="a")
        if bought_at:
            releaser.release(block(1, bought_at))
        releaser.extend_horizon(40)
        releaser.release(block(bought_at + 1, 40))
        shard = store.find_stream("gates")
        assert shard is not None
        values.append(store.releases(shard.shard(0), 0, 1000))
        store.close()
    assert values[0] == values[1]


def test_a_scope_without_room_ends_the_stream(store: LedgerStore, keyfile: KeyFile) -> None:
    releaser = Releaser.open(store, spec(mu=None), keyfile, holder="a")  # takes the whole cap
    releaser.release(block(1, 10))
    with pytest.raises(BudgetExceeded):
        releaser.extend_horizon(2**40)
    with pytest.raises(UnsupportedMechanism):
        releaser.release(block(11, 11))
    assert store.head(store.streams()[0].shard(0)).t == 10


def test_a_bank_takes_a_later_horizon_and_no_other_noise() -> None:
    grid = spec().grid
    bank = CounterBank(
        parse_mechanism("rational:W32"),
        grid,
        KeyedNoise(NoiseKey(bytes(32), stream="x", stream_id=bytes(16)), (0,)),
    )
    for other in (spec().grid_to(9), spec(mu=0.2).grid, replace(grid, sensitivity=1.0)):
        with pytest.raises(InvalidParameter, match="slack horizon"):
            bank.extend(other)
    longer = spec().grid_to(11)
    bank.extend(longer)
    assert bank.grid == longer
    assert longer.mu > grid.mu
    assert longer.sigma == grid.sigma
