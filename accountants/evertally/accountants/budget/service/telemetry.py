"""Metrics of the operators' plane: what the service does, never who asked or what was refused to whom."""

from __future__ import annotations

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

__all__ = ["Telemetry"]

_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Telemetry:
    """The service's metrics in a registry of their own; no label carries a principal, scope or key."""

    def __init__(self) -> None:
        self.registry: Final = CollectorRegistry(auto_describe=False)
        self.requests: Final = Counter(
            "evertally_budget_requests",
            "Requests by route template, method and status.",
            ("route", "method", "status"),
            registry=self.registry,
        )
        self.duration: Final = Histogram(
            "evertally_budget_request_seconds",
            "Time from the request's first byte to the response's last.",
            ("route",),
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.in_flight: Final = Gauge(
            "evertally_budget_requests_in_flight", "Requests being answered.", registry=self.registry
        )
        self.decisions: Final = Counter(
            "evertally_budget_decisions",
            "Charges granted and refused.",
            ("outcome",),
            registry=self.registry,
        )
        self.ledger_up: Final = Gauge(
            "evertally_budget_ledger_up",
            "1 where the last look at the ledger succeeded.",
            registry=self.registry,
        )
        self.draining: Final = Gauge(
            "evertally_budget_draining", "1 while the service is shutting down.", registry=self.registry
        )

    def text(self) -> bytes:
        """The exposition format."""
        return generate_latest(self.registry)
