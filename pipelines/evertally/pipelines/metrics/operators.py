"""Metrics of one process for those who operate it: exact functions of the data, never public."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    Histogram,
    ProcessCollector,
    generate_latest,
)

from evertally.errors import InvalidParameter

__all__ = ["NAMESPACE", "SECONDS", "OperatorMetrics"]

NAMESPACE: Final = "evertally"
SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Buckets of durations, seconds."""

_NAME: Final = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", re.ASCII)
_RESERVED: Final = ("_total", "_count", "_sum", "_bucket", "_created", "_info")


class OperatorMetrics:
    """The metrics of one component in a registry of their own, with memory, CPU and garbage collection.

    A metric's full name is evertally_COMPONENT_NAME, with `_total` after a counter's. Labels may name
    stages, streams, shards and codes; never a unit, a payload, a principal or a key that is not declared.
    Exact sums, noise and secrets have no place in any metric.

    Args:
        component: one word: "worker", "beam", "flink", "train", "exporter".
    """

    def __init__(self, component: str) -> None:
        self.component: Final = _checked("component", component)
        self.registry: Final = CollectorRegistry(auto_describe=False)
        ProcessCollector(registry=self.registry)
        GCCollector(registry=self.registry)

    def counter(self, name: str, help_text: str, labels: tuple[str, ...] = ()) -> Counter:
        """A number that only grows: `.inc()`, or `.labels("aggregate").inc(n)`."""
        return Counter(self._full(name), help_text, labels, registry=self.registry)

    def gauge(self, name: str, help_text: str, labels: tuple[str, ...] = ()) -> Gauge:
        """A number that rises and falls: `.set(x)`, or `.set_function(read)` to be asked at each scrape."""
        return Gauge(self._full(name), help_text, labels, registry=self.registry)

    def watch(self, name: str, help_text: str, read: Callable[[], float]) -> None:
        """A gauge whose value is `read()` at each scrape; it must be quick and may come from any thread."""
        self.gauge(name, help_text).set_function(read)

    def histogram(
        self,
        name: str,
        help_text: str,
        labels: tuple[str, ...] = (),
        buckets: tuple[float, ...] = SECONDS,
    ) -> Histogram:
        """A distribution, of seconds where no other buckets are given: `.observe(x)`, `with .time():`."""
        return Histogram(self._full(name), help_text, labels, buckets=buckets, registry=self.registry)

    def text(self) -> bytes:
        """Everything in Prometheus' text format, version 0.0.4."""
        return generate_latest(self.registry)

    def _full(self, name: str) -> str:
        if name.endswith(_RESERVED):
            raise InvalidParameter("metric", name, "a name without " + ", ".join(_RESERVED))
        return f"{NAMESPACE}_{self.component}_{_checked('metric', name)}"


def _checked(field: str, name: str) -> str:
    if not _NAME.fullmatch(name):
        raise InvalidParameter(field, name, "small letters and digits, joined by single underscores")
    return name
