"""Requests made from the published description: never a 5xx, never a change of budget without a 2xx."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from tests.budget_service.harness import Service

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


def _ask(case: Any, service: Service, ledger: LedgerStore) -> None:
    before = _rows(ledger)
    answer = case.call(
        base_url=service.address, headers={"Authorization": f"Bearer {service.tokens['owner']}"}, timeout=120
    )
    after = _rows(ledger)
    assert answer.status_code < 500, answer.text
    if not 200 <= answer.status_code < 300:
        assert after == before
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
    _fuzz(described, service, ledger, 60_000)


_TOKENS = [
    "0", "-1", "1", "NaN", "1e999", "1e-999", '"0.5"', '"1e400"', '"NaN"', '"Infinity"', "null", "true",
    "[]", "{}", '"\\ud800"', '"\\u0000"', "9" * 40, '"' + "9" * 90 + '"', '"event"', '"health"', '"..//x"',
]  # fmt: skip
_SHAPES = (
    '{"scope":%s,"unit":%s,"adjacency":"add-remove","line":{"kind":"gaussian","sensitivity":%s,"sigma":%s}}',
    '{"scope":"health","unit":"event","adjacency":%s,"group":%s,"members":[%s],'
    '"line":{"kind":"gaussian","sensitivity":"1","sigma":%s}}',
    '{"scope":"health","unit":"event","adjacency":"add-remove","line":{"kind":"gaussian","sensitivity":%s,'
    '"sigma":%s,"releases":%s},"ttl_ms":%s}',
    '{"scope":"health","unit":"event","adjacency":"add-remove","line":{"kind":"counter","mechanism":%s,"q":%s,'
    '"keys":%s,"clip":%s}}',
    '{"scope":"health","unit":"event","adjacency":"add-remove","line":{"kind":"training",'
    '"strategy":{"kind":"BLT","output_scales":[%s],"buffer_decays":[%s]},'
    '"participation":{"kind":"BallsInBins","batches":%s,"epochs":2},"noise_multiplier":%s}}',
)


@pytest.mark.slow
@pytest.mark.parametrize("shape", range(len(_SHAPES)))
def test_mutated_charges(service: Service, ledger: LedgerStore, shape: int) -> None:
    """Every tuple of odd values in a fixed walk through the four places of each shape: 2,000 a shape."""
    headers = {"Content-Type": "application/json"}
    with service.client() as client:
        for i in range(2000):
            places = [_TOKENS[(i * step + i // 21) % len(_TOKENS)] for step in (1, 2, 4, 5)]
            before = _rows(ledger) if i % 10 == 0 else None
            answer = client.post("/v1/charges", content=_SHAPES[shape] % tuple(places), headers=headers)
            assert answer.status_code < 500, (places, answer.text)
            if before is not None and answer.status_code >= 300:
                assert _rows(ledger) == before
