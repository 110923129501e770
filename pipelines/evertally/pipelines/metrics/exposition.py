"""The public plane's metrics in Prometheus' text format: the same standing gives the same bytes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from evertally.pipelines.metrics.operators import NAMESPACE
from evertally.pipelines.metrics.standing import ScopeStanding, StreamStanding

__all__ = ["PUBLIC_METRICS", "PublicView", "public_text"]

PUBLIC_METRICS: Final[dict[str, tuple[tuple[str, ...], str]]] = {
    "released_events": (
        ("stream", "key"),
        "Last released noisy total, in value units. It may fall: use delta() or deriv(), never rate().",
    ),
    "released_events_stderr": (("stream", "key"), "Standard error of the released total."),
    "window_events": (
        ("stream", "key", "window"),
        "Noisy count of the window that ends with the last released tick.",
    ),
    "window_events_stderr": (("stream", "key", "window"), "Exact standard error of the window's count."),
    "release_timestamp_seconds": (("stream",), "End of the last tick that is released for all keys."),
    "release_index": (("stream",), "Number of the last tick that is released for all keys."),
    "tick_seconds": (("stream",), "Length of a tick."),
    "stream_live": (("stream",), "1 where ticks close by the clock, 0 for a stream from a file."),
    "stream_incarnation": (("stream",), "Incarnation of the stream; totals begin at 0 with each."),
    "budget_spent_mu2": (
        ("scope",),
        "Squared Gaussian mu spent in the scope, reservations included (Renyi scopes: at their order).",
    ),
    "budget_cap_mu2": (("scope",), "Cap of the scope as squared Gaussian mu."),
    "budget_spent_ratio": (("scope",), "Largest spent part of the scope's caps, 1 where one is used up."),
    "ledger_up": ((), "1 where the exporter's last look at the ledger succeeded."),
    "exporter_series": ((), "Series of streams and scopes that are shown."),
    "exporter_series_limit": ((), "Most series the exporter shows."),
    "exporter_refused": (("kind",), "Streams and scopes that are not shown because of the limit."),
}
"""Name (without the namespace) to labels and help of every public metric."""


@dataclass(frozen=True, slots=True)
class PublicView:
    """What is shown.

    Attributes:
        streams, scopes: those within the limit on series.
        ledger_up: whether the last look at the ledger succeeded.
        series: number of their series.
        series_limit: most series shown.
        refused_streams, refused_scopes: how many were left out, whole.
    """

    streams: tuple[StreamStanding, ...]
    scopes: tuple[ScopeStanding, ...]
    ledger_up: bool
    series: int
    series_limit: int
    refused_streams: int
    refused_scopes: int


def public_text(view: PublicView) -> bytes:
    """Every public metric, text format version 0.0.4."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Once(view))
    return generate_latest(registry)


class _Once(Collector):
    def __init__(self, view: PublicView) -> None:
        self._view = view

    def collect(self) -> Iterator[Metric]:
        view = self._view
        live = [stream for stream in view.streams if stream.tick_end_ms is not None]
        yield _family(
            "released_events", (((s.name, t.key), _number(t.value)) for s in view.streams for t in s.totals)
        )
        yield _family(
            "released_events_stderr",
            (((s.name, t.key), float(t.stderr)) for s in view.streams for t in s.totals),
        )
        yield _family(
            "window_events",
            (((s.name, w.key, w.window), _number(w.value)) for s in view.streams for w in s.windows),
        )
        yield _family(
            "window_events_stderr",
            (((s.name, w.key, w.window), w.stderr) for s in view.streams for w in s.windows),
        )
        yield _family("release_timestamp_seconds", (((s.name,), (s.tick_end_ms or 0) / 1000.0) for s in live))
        yield _family("release_index", (((s.name,), s.published_t) for s in view.streams))
        yield _family("tick_seconds", (((s.name,), s.tick_ms / 1000.0) for s in view.streams if s.tick_ms))
        yield _family("stream_live", (((s.name,), s.live) for s in view.streams))
        yield _family("stream_incarnation", (((s.name,), s.incarnation) for s in view.streams))
        yield _family("budget_spent_mu2", (((s.name,), s.mu2[0]) for s in view.scopes))
        yield _family("budget_cap_mu2", (((s.name,), s.mu2[1]) for s in view.scopes))
        yield _family("budget_spent_ratio", (((s.name,), s.spent_ratio) for s in view.scopes))
        yield _family("ledger_up", [((), view.ledger_up)])
        yield _family("exporter_series", [((), view.series)])
        yield _family("exporter_series_limit", [((), view.series_limit)])
        yield _family(
            "exporter_refused", [(("stream",), view.refused_streams), (("scope",), view.refused_scopes)]
        )


def _family(name: str, samples: Iterable[tuple[tuple[str, ...], float]]) -> GaugeMetricFamily:
    labels, help_text = PUBLIC_METRICS[name]
    family = GaugeMetricFamily(f"{NAMESPACE}_{name}", help_text, labels=labels)
    for values, value in samples:
        family.add_metric(values, float(value))
    return family


def _number(value: int) -> float:
    """A released integer as Prometheus keeps numbers: a double."""
    try:
        return float(value)
    except OverflowError:
        return math.copysign(math.inf, value)
