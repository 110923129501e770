"""The aggregating stage over a played group member and a recording producer. No broker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from played_stage import CONFIG, NOTHING, Played, records

from evertally.errors import ServiceUnavailable
from evertally.pipelines.kafka.member import Polled


@pytest.fixture
def played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Played]:
    made = Played(tmp_path, monkeypatch)
    yield made
    made.context.store.close()


A, B, POISON = b'{"k": "a"}', b'{"k": "b"}', b"{"


def test_what_was_read_of_a_revoked_partition_is_dropped(played: Played) -> None:
    """faust-streaming#221, #216: what was prefetched is processed after a rebalance."""
    played.turns(
        Polled((), (0, 1), {}),
        Polled((), (), {0: records(0, A, POISON, A), 1: records(0, B, POISON)}),
        Polled((0,), (), {1: records(2, B)}),
    )
    played.stage.drain()
    assert played.counted() == {1: 2}
    assert played.letters() == [(1, 1)]
    assert played.member.offsets[0][0] == 0, "its next owner reads from the beginning"
    assert played.member.offsets[1][0] == 3


@pytest.mark.slow
def test_a_failed_commit_reads_again_from_the_last_one(played: Played) -> None:
    played.turns(Polled((), (0, 1), {}), Polled((), (), {0: records(0, A, B), 1: records(0, A)}))
    played.clock.ms += 10_000
    played.producer.fails = True
    played.turns(NOTHING)
    assert played.counted() == {}
    played.producer.fails = False
    played.member.sought.clear()
    played.turns(Polled((), (), {0: records(2, B)}))  # fetched ahead of where it reads again
    assert played.member.sought == [(0, 0), (1, 0)]
    played.turns(Polled((), (), {0: records(0, A, B, B), 1: records(0, A)}))
    played.stage.drain()
    assert played.counted() == {0: 2, 1: 2}


@pytest.mark.slow
def test_commits_that_fail_for_ever_are_a_stall(played: Played) -> None:
    """kafka-python#3106: records come and nothing moves."""
    now = [0.0]
    played.stage._stall._now = lambda: now[0]  # type: ignore[misc]  # a clock that can be moved
    played.stage._stall.moved()
    played.turns(Polled((), (0,), {}))
    played.producer.fails = True
    for _ in range(3):
        now[0] += 25.0
        played.clock.ms += 10_000
        if now[0] > 60:
            with pytest.raises(ServiceUnavailable, match="stalled"):
                played.turns(Polled((), (), {0: records(0, A)}))
        else:
            played.turns(Polled((), (), {0: records(0, A)}))


@pytest.mark.slow
@pytest.mark.parametrize("closing", ["", 'closing = "event-time"\nskew_s = 10'])
def test_a_horizon_that_is_extended_while_it_runs_is_taken_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, closing: str
) -> None:
    """Else what comes in ticks that are paid for would be dead letters until the next start."""
    text = CONFIG.replace("delta = 1e-6", "delta = 1e-6\nmu = 0.1\nslack_horizon = 2")
    text = text.replace("epsilon = 1.0\n", "").replace(
        "[state]", '[budget]\nscope = "all"\nepsilon_cap = 4\n[state]'
    )
    text = text.replace("tick_s = 10", f"tick_s = 10\n{closing}")
    if closing:
        text = text.replace('key = "k"', 'key = "k"\ntimestamp = "at"')
    played = Played(tmp_path, monkeypatch, text)

    def event(after_s: int) -> bytes:
        return b'{"k": "a", "at": %d}' % (1_767_225_600_000 + 1000 * after_s)

    played.turns(Polled((), (0, 1), {}), Polled((), (), {0: records(0, event(1))}))
    played.context.store.extend_horizon("s", 1, 4)
    played.clock.ms += 21_000  # in tick 3
    played.turns(Polled((), (), {0: records(1, event(21))}))
    if closing:
        played.turns(Polled((), (), {0: records(2, event(31))}))  # in tick 4, within the skew
    played.clock.ms += 21_000  # in tick 5, which nobody has paid for
    played.turns(Polled((), (), {1: records(0, event(42))}))
    played.stage.drain()
    assert played.counted() == {0: 3 if closing else 2}
    assert played.letters() == [(1, 0)]
    played.context.store.close()
