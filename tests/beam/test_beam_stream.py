"""A live input on a Direct runner, with time in the test's hand: Script moves watermarks and ticks."""

# Beam has no types
# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.testing.test_stream import TestStream as Script
from apache_beam.transforms.trigger import AccumulationMode, AfterCount, AfterWatermark, Repeatedly
from apache_beam.transforms.window import FixedWindows, TimestampedValue
from apache_beam.utils.timestamp import Timestamp
from tests.beam.direct import START_MS, TEST_STREAM, TICK_MS, DirectStream, element, pipeline
from tests.contracts.engine_conformance import Case, Event, verify

from evertally.errors import InvalidParameter
from evertally.pipelines.beam.elements import DEAD_LETTERS
from evertally.pipelines.beam.per_process import close_all

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _fresh_process() -> Any:
    yield
    close_all()


def at(t: int, inside_ms: int = 5) -> Timestamp:
    return Timestamp(micros=(START_MS + (t - 1) * TICK_MS + inside_ms) * 1000)


def play(stream: DirectStream, script: Callable[[Script], Script]) -> list[str]:
    """Run a script of events and ticks; dead letters come back."""
    letters: list[bytes] = []
    path = stream.folder / "letters"
    with pipeline(TEST_STREAM, "--streaming") as p:
        made = script(Script(output_tags={"events", "ticks"}))
        parts = p | made.advance_watermark_to_infinity("events").advance_watermark_to_infinity("ticks")
        counted = parts["events"] | stream.counted(ticks=parts["ticks"])
        counted.dead_letters | DEAD_LETTERS >> beam.Map(_append, str(path))
    letters = path.read_bytes().splitlines() if path.exists() else []
    return [letter.decode() for letter in letters]


def _append(letter: bytes, path: str) -> None:
    with Path(path).open("ab") as file:
        file.write(letter + b"\n")


def end(script: Script, t: int) -> Script:
    """Tick t is over: by the clock, and by the input's watermark."""
    script = script.add_elements([TimestampedValue(t, at(t, 0))], tag="ticks")
    script = script.advance_watermark_to(at(t + 1, 0), tag="events")
    return script.advance_watermark_to(at(t + 1, 0), tag="ticks")


def events(script: Script, *given: Event) -> Script:
    stamped = [TimestampedValue(element(event), at(event.tick)) for event in given]
    return script.add_elements(stamped, tag="events")


def steps(stream: DirectStream) -> dict[str, list[int]]:
    return {key: list(found) for key, found in stream.observed([], bounded=False).steps.items()}


def test_ticks_close_in_order_with_and_without_events(tmp_path: Path) -> None:
    case = Case("live", (Event(1, "alpha"), Event(1, "beta"), Event(3, "alpha")), ticks=4)
    stream = DirectStream(tmp_path, case, "event-time")

    def script(s: Script) -> Script:
        s = end(events(s, *case.events[:2]), 1)
        s = end(s, 2)
        return end(end(events(s, case.events[2]), 3), 4)

    assert play(stream, script) == []
    verify(case, stream.observed([], bounded=True))


def test_nothing_is_released_before_the_watermark(tmp_path: Path) -> None:
    """apache/beam#35090: a timer that fires early must not close a tick."""
    case = Case("early", (Event(1, "alpha"),), ticks=2)
    stream = DirectStream(tmp_path, case, "event-time")

    def script(s: Script) -> Script:
        s = end(events(s, case.events[0]), 1)
        # the clock says that tick 2 is over, the watermark of the events does not
        s = s.add_elements([TimestampedValue(2, at(2, 0))], tag="ticks")
        s = s.advance_watermark_to(at(3, 0), tag="ticks").advance_watermark_to(at(2, 1000), tag="events")
        s = events(s, Event(2, "beta"))
        return s.advance_watermark_to(at(3, 0), tag="events")

    play(stream, script)
    assert steps(stream) == {"alpha": [1, 0], "beta": [0, 1], "gamma": [0, 0], "delta": [0, 0]}


def test_a_late_event_goes_to_the_first_open_tick(tmp_path: Path) -> None:
    case = Case("late", (), ticks=3)
    stream = DirectStream(tmp_path, case, "event-time")

    def script(s: Script) -> Script:
        s = end(events(s, Event(1, "alpha"), Event(2, "alpha")), 1)
        s = end(events(s, Event(1, "beta")), 2)  # a tick late, behind the watermark
        return end(events(s, Event(1, "gamma"), Event(3, "alpha")), 3)  # two ticks late

    play(stream, script)
    assert steps(stream) == {"alpha": [1, 1, 1], "beta": [0, 1, 0], "gamma": [0, 0, 1], "delta": [0, 0, 0]}


def test_an_event_far_in_the_future_is_a_dead_letter(tmp_path: Path) -> None:
    stream = DirectStream(tmp_path, Case("future", (), ticks=1), "event-time")

    def script(s: Script) -> Script:
        ahead = {"k": "alpha", "at": int(time.time() * 1000) + 3_600_000}
        s = s.add_elements([TimestampedValue(ahead, at(1)), TimestampedValue(b"{", at(1))], tag="events")
        return end(events(s, Event(1, "beta")), 1)

    codes = play(stream, script)
    assert sorted(code.split('"code":')[1] for code in codes) == ['"in_the_future"}', '"malformed"}']
    assert steps(stream) == {"alpha": [0], "beta": [1], "gamma": [0], "delta": [0]}


def test_all_events_twice_change_nothing(tmp_path: Path) -> None:
    """apache/beam#39970: a source that begins again from the start delivers everything again."""
    case = Case("twice", (Event(1, "alpha"), Event(2, "beta")), ticks=2)
    stream = DirectStream(tmp_path, case, "event-time")

    def script(s: Script) -> Script:
        return end(end(events(s, *case.events), 1), 2)

    play(stream, script)
    once = stream.out.read_bytes()
    play(stream, script)
    assert stream.out.read_bytes() == once
    verify(case, stream.observed([], bounded=True))


def test_other_data_for_released_ticks_stops_the_job(tmp_path: Path) -> None:
    stream = DirectStream(tmp_path, Case("other", (), ticks=2), "event-time")
    play(stream, lambda s: end(events(s, Event(1, "alpha")), 1))
    once = stream.out.read_bytes()
    with pytest.raises(Exception, match="comes again with other data"):
        play(stream, lambda s: end(events(s, Event(1, "beta")), 1))
    assert stream.out.read_bytes() == once


def test_accumulating_panes_are_refused_at_construction(tmp_path: Path) -> None:
    stream = DirectStream(tmp_path, Case("panes", (), ticks=1))
    p = beam.Pipeline()
    windowed = (
        p
        | beam.Create([])
        | beam.WindowInto(
            FixedWindows(60),
            trigger=Repeatedly(AfterWatermark(late=AfterCount(1))),
            accumulation_mode=AccumulationMode.ACCUMULATING,
        )
    )
    with pytest.raises(InvalidParameter, match="ACCUMULATING"):
        windowed | stream.counted(ticks=1)
