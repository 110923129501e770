"""Client processes that charge as fast as they are answered, with duplicates."""

from __future__ import annotations

import http.client
import json
import multiprocessing
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.queues import Queue
from urllib.parse import urlsplit

from tests.budget_service.harness import charge_body


@dataclass
class Outcome:
    """What one client saw: answers' bodies by idempotency key, refusals, and keys without an answer."""

    granted: dict[str, bytes] = field(default_factory=dict)
    refused: int = 0
    unknown: list[str] = field(default_factory=list)
    mismatched: int = 0
    answers: int = 0
    seconds: float = 0.0


def run_clients(
    address: str, token: str, clients: int, requests: int, sigma: str = "1000", duplicates: float = 0.1
) -> list[Outcome]:
    """Every client sends `requests` charges; a share of them repeats an earlier key of its own."""
    context = multiprocessing.get_context("fork")
    queue: Queue[Outcome] = context.Queue()
    workers = [
        context.Process(target=_client, args=(queue, address, token, i, requests, sigma, duplicates))
        for i in range(clients)
    ]
    for worker in workers:
        worker.start()
    outcomes = [queue.get(timeout=3600) for _ in workers]
    for worker in workers:
        worker.join(60)
    return outcomes


def total_granted(outcomes: Sequence[Outcome]) -> tuple[int, int]:
    """(number, amount) of distinct grants."""
    bodies = [body for outcome in outcomes for body in outcome.granted.values()]
    return len(bodies), sum(json.loads(body)["main"] for body in bodies)


def _client(
    queue: Queue[Outcome], address: str, token: str, number: int, requests: int, sigma: str, duplicates: float
) -> None:
    outcome = Outcome()
    place = urlsplit(address)
    line = {"kind": "gaussian", "sensitivity": "1", "sigma": sigma}
    body = json.dumps(charge_body(mode="commit", line=line)).encode()
    every = round(1 / duplicates) if duplicates else 0
    connection = http.client.HTTPConnection(str(place.hostname), place.port, timeout=120)
    started = time.perf_counter()
    for i in range(requests):
        key = f"{number}-{i - 3 if every and i % every == every - 1 else i}"
        headers = {
            "Authorization": f"Bearer {token}", "Content-Type": "application/json", "Idempotency-Key": key
        }  # fmt: skip
        try:
            connection.request("POST", "/v1/charges", body, headers)
            answer = connection.getresponse()
            said = answer.read()
        except (OSError, http.client.HTTPException):
            outcome.unknown.append(key)
            connection.close()
            if len(outcome.unknown) > 20:
                break
            time.sleep(0.05)
            continue
        outcome.answers += 1
        if answer.status == 201:
            outcome.mismatched += outcome.granted.get(key, said) != said
            outcome.granted[key] = said
        else:
            outcome.refused += 1
    outcome.seconds = time.perf_counter() - started
    queue.put(outcome)
