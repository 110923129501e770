"""Windows of ticks, and what this package asks of the windows of its input."""

from __future__ import annotations

from typing import Any, Final

import apache_beam as beam
from apache_beam.transforms.trigger import AccumulationMode, AfterCount, AfterWatermark
from apache_beam.transforms.window import FixedWindows, GlobalWindows
from apache_beam.utils.timestamp import Duration, Timestamp

from evertally.errors import InvalidParameter
from evertally.pipelines.kafka.aggregation import TickRule

__all__ = ["LATEST_S", "everywhere", "refuse_accumulating", "tick_windows"]

LATEST_S: Final = 86_400.0
"""What comes further than this behind a runner's own watermark is dropped by the runner."""


def refuse_accumulating(events: Any) -> None:
    """Refuse an input whose panes repeat what an earlier pane held: it would be counted again.

    Raises InvalidParameter at construction of the pipeline.
    """
    if events.windowing.accumulation_mode == AccumulationMode.ACCUMULATING:
        raise InvalidParameter(
            "accumulation_mode", "ACCUMULATING", "DISCARDING: each event in one pane only, or it counts twice"
        )


def tick_windows(rule: TickRule) -> beam.WindowInto:
    """Fixed windows of a tick, each part in one pane; what is late gets panes of its own."""
    size = Duration(micros=rule.tick_ms * 1000)
    offset = Timestamp(micros=rule.start_ms % rule.tick_ms * 1000)
    return beam.WindowInto(
        FixedWindows(size, offset),
        trigger=AfterWatermark(late=AfterCount(1)),
        accumulation_mode=AccumulationMode.DISCARDING,
        allowed_lateness=Duration(LATEST_S),
    )


def everywhere() -> beam.WindowInto:
    """The one window that holds all ticks."""
    return beam.WindowInto(GlobalWindows(), accumulation_mode=AccumulationMode.DISCARDING)
