"""Requests made from the published description: never a 5xx, never a change of budget without a 2xx."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from http.client import HTTPConnection, RemoteDisconnected
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from tests.budget_service.harness import Service, prepare, start
from tests.budget_service.request_walk import Request, RequestWalk
from tests.faults.fault_page import record
from tests.fuzz.attack import GROWTH_BYTES, HANG_S, resident

from evertally.accountants.budget.ledger import LedgerStore
from evertally.accountants.budget.opening import open_ledger


@pytest.fixture(scope="module")
def described(service: Service) -> Any:
    raw = httpx.get(service.address + "/openapi.json", trust_env=False, timeout=60).json()
    return schemathesis.openapi.from_dict(raw)


@pytest.fixture(scope="module")
def ledger(service: Service) -> Iterator[LedgerStore]:
    ledger = open_ledger(service.location)
    yield ledger
    ledger.close()


def _rows(ledger: LedgerStore) -> list[tuple[str, int, int]]:
    return [(status.scope.name, status.rows, status.spent.main) for status in ledger.scopes()]


def _only_returned(before: list[tuple[str, int, int]], after: list[tuple[str, int, int]]) -> bool:
    """Whether nothing changed but that a lapsed reservation was given back: a quote and a refusal do that."""
    if [name for name, _, _ in before] != [name for name, _, _ in after]:
        return False
    pairs = zip(before, after, strict=True)
    return all(old == new or (new[1] > old[1] and new[2] < old[2]) for old, new in pairs)


def _ask(case: Any, service: Service, ledger: LedgerStore) -> None:
    before = _rows(ledger)
    answer = case.call(
        base_url=service.address, headers={"Authorization": f"Bearer {service.tokens['owner']}"}, timeout=120
    )
    after = _rows(ledger)
    assert answer.status_code < 500, answer.text
    if not 200 <= answer.status_code < 300:
        assert _only_returned(before, after)
        if answer.status_code not in (301, 307):
            assert answer.json()["status"] == answer.status_code
    assert all(status.spent.main <= status.caps.main for status in ledger.scopes())


def _fuzz(described: Any, service: Service, ledger: LedgerStore, examples: int) -> int:
    """Generate `examples` requests for each operation; how many operations there are."""
    operations = [found.ok() for found in described.get_all_operations()]
    for operation in operations:

        @settings(
            max_examples=examples,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy())
        def ask(case: Any) -> None:
            _ask(case, service, ledger)

        ask()
    return len(operations)


@pytest.mark.slow
def test_generated_requests(described: Any, service: Service, ledger: LedgerStore) -> None:
    assert _fuzz(described, service, ledger, 30) >= 17


@pytest.mark.soak
def test_generated_requests_at_full_size(described: Any, service: Service, ledger: LedgerStore) -> None:
    _fuzz(described, service, ledger, 500)


def _ask_walked(connection: HTTPConnection, request: Request) -> tuple[int, bytes, float]:
    """(status, body, seconds) of a walked request; asks once more where a kept connection was closed."""
    for attempt in (1, 2):
        start = time.perf_counter()
        try:
            connection.request(
                request.method, request.target, body=request.body, headers=dict(request.headers)
            )
            answer = connection.getresponse()
            return answer.status, answer.read(), time.perf_counter() - start
        except (RemoteDisconnected, BrokenPipeError, ConnectionResetError):
            connection.close()
            assert attempt == 1, (request, "the service closed two connections without an answer")
    raise AssertionError


def _judge_walked(connection: HTTPConnection, walk: RequestWalk, request: Request) -> bool:
    """Ask, judge the answer; whether it may have changed the ledger."""
    status, body, seconds = _ask_walked(connection, request)
    again = 0
    while seconds > HANG_S:  # on a busy machine any request can be slow once
        again += 1
        assert again <= 3, (request, f"more than {HANG_S} s, three times in turn")
        status, body, seconds = _ask_walked(connection, request)
    assert status < 500, (request, body[:2000])
    if request.method == "HEAD" or status < 300:
        if request.method == "POST" and body.startswith(b"{"):
            said = json.loads(body)
            for name in ("charge_id", "lease_id", "name"):
                if isinstance(said.get(name), str):
                    walk.learn(said[name])
    elif status not in (301, 307):
        assert json.loads(body)["status"] == status, (request, body[:2000])
    asks = request.target.startswith(
        ("/v1/quote", "/v1/calibrate")
    )  # they change nothing, whatever they answer
    return request.method == "POST" and not asks and (status < 300 or again > 0)


def _walk(service: Service, ledger: LedgerStore, requests: int, seed: int) -> Counter[str]:
    """Send walked requests and judge each; look at the ledger every ten. Counts by kind."""
    walk = RequestWalk(service.tokens, seed)
    place = urlsplit(service.address)
    connection = HTTPConnection(str(place.hostname), int(place.port or 80), timeout=60)
    before, warm = _rows(ledger), 0
    counts: Counter[str] = Counter()
    for number in range(0, requests, 10):
        if number == requests // 5:
            warm = resident(service.process.pid)
        changing = sum(_judge_walked(connection, walk, next(walk)) for _ in range(10))
        after = _rows(ledger)
        assert changing or _only_returned(before, after), (
            f"a change without a success among {number} to {number + 9}, seed {seed}"
        )
        before = after
        counts["changing"] += changing
        counts["requests"] += 10
    connection.close()
    assert all(status.spent.main <= status.caps.main for status in ledger.scopes())
    assert resident(service.process.pid) - warm < GROWTH_BYTES
    return counts


@pytest.mark.slow
def test_ten_thousand_walked_requests(service: Service, ledger: LedgerStore) -> None:
    counts = _walk(service, ledger, 10_000, seed=20)
    assert counts["changing"] > 100


@pytest.mark.soak
@pytest.mark.timeout(14_400)
def test_a_million_walked_requests(tmp_path: Path) -> None:
    """Forty services in turn, each over its own ledger, 25,000 requests each."""
    started, seed, done = time.monotonic(), time.time_ns() % 2**32, 0
    for turn in range(40):
        location = str(tmp_path / f"{turn}.db")
        service = start(location, "", prepare(location))
        ledger = open_ledger(location)
        try:
            done += _walk(service, ledger, 25_000, seed + turn)["requests"]
        finally:
            ledger.close()
            service.kill()
    record({"request": done}, seed, done, time.monotonic() - started)
