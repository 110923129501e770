"""What a test asks of a running stack: its HTTP addresses, its topics, its logs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from kafka import KafkaProducer

__all__ = ["RunningStack", "require", "wait_for"]


def require(*tools: str) -> None:
    """Skip, or fail in continuous integration, where a tool is missing."""
    absent = [tool for tool in tools if shutil.which(tool) is None]
    if absent and os.environ.get("CI", "").lower() == "true":
        pytest.fail(f"missing: {', '.join(absent)}")
    if absent:
        pytest.skip(f"missing: {', '.join(absent)}")


def wait_for(what: str, check: Callable[[], Any], timeout_s: float = 240.0) -> Any:
    """Poll until `check` returns something true."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        found = check()
        if found:
            return found
        time.sleep(0.3)
    raise AssertionError(f"timed out waiting for {what}")


@dataclass
class RunningStack:
    """One stack; `processes` are pids by name."""

    process: subprocess.Popen[bytes]
    addresses: dict[str, str]
    processes: dict[str, int]
    folder: str

    def get(self, name: str, path: str, **options: Any) -> httpx.Response:
        with httpx.Client(base_url=self.addresses[name], trust_env=False, verify=False, timeout=60) as client:
            return client.get(path, **options)

    def query(self, expression: str) -> list[Any]:
        """An instant query of Prometheus."""
        answer = self.get("prometheus", "/api/v1/query", params={"query": expression}).json()
        assert answer["status"] == "success", answer
        found: list[Any] = answer["data"]["result"]
        return found

    def value(self, expression: str) -> float | None:
        found = self.query(expression)
        return float(found[0]["value"][1]) if found else None

    def firing(self, alert: str) -> dict[str, str] | None:
        """Labels of an alert that fires in Prometheus and has reached Alertmanager."""
        alerts = self.get("prometheus", "/api/v1/alerts").json()["data"]["alerts"]
        if not any(a["labels"]["alertname"] == alert and a["state"] == "firing" for a in alerts):
            return None
        for arrived in self.get("alertmanager", "/api/v2/alerts").json():
            if arrived["labels"]["alertname"] == alert:
                labels: dict[str, str] = arrived["labels"]
                return labels
        return None

    def send(self, events: Iterable[dict[str, Any] | bytes]) -> None:
        """Send events to the input topic; returns when all are acknowledged."""
        producer = KafkaProducer(
            bootstrap_servers=self.addresses["kafka"], acks="all", linger_ms=5, metrics_enabled=False
        )
        for number, event in enumerate(events):
            value = event if isinstance(event, bytes) else json.dumps(event).encode()
            producer.send("visits.raw", value, partition=number % 2)
        producer.flush()
        producer.close()

    def token(self) -> str:
        """The bearer token of the operators' planes."""
        return (Path(self.folder) / "internal-token").read_text().strip()

    def logs(self) -> dict[str, str]:
        return {path.name: path.read_text("utf-8", "replace") for path in Path(self.folder).glob("*.log")}
