"""The typed client against a real service, and against one that misbehaves."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from tests.budget_service.harness import Service, wait_past

from evertally.accountants.budget import (
    ChargeRequest,
    CounterLine,
    CounterParameters,
    GaussianLine,
    Scope,
    TrainingLine,
)
from evertally.accountants.budget.client import BudgetClient
from evertally.accountants.budget.opening import open_ledger
from evertally.errors import (
    BudgetExceeded,
    Fenced,
    IntegrityError,
    InvalidParameter,
    ServiceUnavailable,
    StorageFull,
    UnsupportedMechanism,
)

pytestmark = pytest.mark.slow


def request(sigma: str = "100", **changes: object) -> ChargeRequest:
    fields: dict[str, object] = {"scope": "health", "unit": "event", "adjacency": "add-remove"}
    return ChargeRequest(**{**fields, "line": GaussianLine("1", sigma), **changes})  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def client(service: Service) -> Iterator[BudgetClient]:
    with BudgetClient(service.address, service.tokens["owner"]) as client:
        yield client


def test_client_speaks_the_ledgers_types(client: BudgetClient, service: Service) -> None:
    ledger = open_ledger(service.location)
    scope = Scope("team/two", "user", "replace-value", "1.5", 1e-7, disjoint=())
    assert client.create_scope(scope) == client.create_scope(scope) == ledger.scope_status("team/two")
    assert client.scopes() == ledger.scopes()
    quoted = client.quote(request())
    assert quoted.main == 100_000
    first = client.charge(request())
    assert first == client.charge(request(idempotency_key="again")) or first.main == 100_000
    reserved = client.reserve(request(), 60_000)
    assert reserved.expires_ms > 0
    assert client.commit_charge(reserved.charge_id).status == "committed"
    assert list(client.charges("health")) == ledger.charges("health")
    assert client.scope_status("health") == ledger.scope_status("health")
    assert client.streams() == []
    counter = CounterLine(CounterParameters("rational:W32", q=1, keys=4))
    draft = {key: value for key, value in counter.to_json().items() if key != "q"}
    fitted = client.calibrate("health", draft, units=10_000_000)
    assert isinstance(fitted, CounterLine)
    assert client.quote(request(line=fitted)).main <= 10_000_000
    ledger.close()


def test_retry_with_one_key_is_one_charge(client: BudgetClient) -> None:
    before = client.scope_status("health").spent.main
    answers = [client.charge(request(idempotency_key="one")) for _ in range(3)]
    assert len({answer.body for answer in answers}) == 1
    assert client.scope_status("health").spent.main == before + 100_000


def test_client_raises_what_the_ledger_would(client: BudgetClient, service: Service) -> None:
    with pytest.raises(BudgetExceeded) as refused:
        client.charge(request("0.1"))
    assert refused.value.requested == 100 * 10**9
    assert refused.value.cap == client.scope_status("health").caps.main
    with pytest.raises(InvalidParameter):
        client.scope_status("absent")
    with pytest.raises(InvalidParameter, match=r"charge\.unit"):
        client.charge(request(unit="aircraft"))
    with pytest.raises(InvalidParameter, match="name"):
        client.create_scope(Scope("health", "event", "add-remove", "3", "0.000001"))
    with pytest.raises(UnsupportedMechanism):
        client.quote(
            request(
                line=TrainingLine(
                    {"kind": "Identity"}, {"kind": "BallsInBins", "batches": 4, "epochs": 1}, "4"
                )
            )
        )
    lapsed = client.reserve(request(), 1)
    wait_past(lapsed.expires_ms)
    with pytest.raises(Fenced):
        client.commit_charge(lapsed.charge_id)
    with (
        BudgetClient(service.address, "evt_nothing") as stranger,
        pytest.raises(InvalidParameter, match="unauthorized"),
    ):
        stranger.scopes()


def test_lease_has_one_holder_and_refunds_only_what_never_began(client: BudgetClient) -> None:
    scope = Scope("train", "event", "add-remove", "8", "0.000001", filter="renyi", order="4")
    client.create_scope(scope)
    line = TrainingLine({"kind": "Identity"}, {"kind": "BallsInBins", "batches": 6, "epochs": 2}, "8")
    wish = ChargeRequest("train", "event", "add-remove", line, idempotency_key="run-1")
    digest = "ab" * 32
    lease = client.open_lease(wish, 60_000, digest)
    assert client.open_lease(wish, 60_000, digest) == lease
    assert (lease.status, lease.epoch, lease.steps_max) == ("reserved", 1, 12)
    with pytest.raises(InvalidParameter, match="idempotency_key"):
        client.open_lease(wish, 60_000, "cd" * 32)
    spent = client.scope_status("train").spent.main
    assert spent > 0
    with pytest.raises(InvalidParameter, match="manifest"):
        client.acquire_lease(lease.lease_id, "cd" * 32)
    second = client.acquire_lease(lease.lease_id, digest)
    assert second.epoch == 2
    with pytest.raises(Fenced):
        client.renew_lease(lease.lease_id, 1)
    assert client.renew_lease(lease.lease_id, 2).status == "active"
    assert client.renew_lease(lease.lease_id, 2, 5).steps_done == 5
    for steps in (4, 13):
        with pytest.raises(InvalidParameter, match="steps_done"):
            client.renew_lease(lease.lease_id, 2, steps)
    with pytest.raises(Fenced):
        client.close_lease(lease.lease_id, 1)
    assert client.close_lease(lease.lease_id, 2).status == "closed"
    assert client.close_lease(lease.lease_id, 2).status == "closed"
    with pytest.raises(Fenced):
        client.renew_lease(lease.lease_id, 2, 6)
    with pytest.raises(Fenced):
        client.acquire_lease(lease.lease_id, digest)
    assert client.scope_status("train").spent.main == spent  # begun: nothing comes back
    unused = client.open_lease(ChargeRequest("train", "event", "add-remove", line), 60_000)
    assert client.scope_status("train").spent.main == 2 * spent
    client.close_lease(unused.lease_id, unused.epoch)
    assert client.scope_status("train").spent.main == spent


Answers = list[tuple[int, dict[str, str], bytes]]


@pytest.fixture
def scripted() -> Iterator[Callable[[Answers], tuple[str, list[dict[str, str]]]]]:
    """A server that gives scripted answers and keeps the requests' headers."""
    servers: list[HTTPServer] = []

    def begin(answers: Answers) -> tuple[str, list[dict[str, str]]]:
        seen: list[dict[str, str]] = []

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.do_POST()

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                seen.append(dict(self.headers))
                status, headers, body = answers[min(len(seen), len(answers)) - 1]
                if status == 0:
                    self.close_connection = True
                    return
                self.send_response(status)
                for name, value in {**headers, "Content-Length": str(len(body))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *arguments: object) -> None: ...

        server = HTTPServer(("127.0.0.1", 0), Handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{server.server_port}", seen

    yield begin
    for server in servers:
        server.shutdown()
        server.server_close()


def _problem(status: int, code: str, **more: object) -> tuple[int, dict[str, str], bytes]:
    body = {"code": code, "detail": "said so", **more}
    return status, {"Content-Type": "application/problem+json"}, json.dumps(body).encode()


GRANTED: tuple[int, dict[str, str], bytes] = (
    201,
    {},
    b'{"charge_id":"c","status":"committed","main":1,"epsilon":0,"delta":0,"expires_ms":0}',
)


def test_retries_keep_the_idempotency_key_and_wait_longer(
    scripted: Callable[[Answers], tuple[str, list[dict[str, str]]]],
) -> None:
    waits: list[float] = []
    told = _problem(429, "rate_limited")
    address, seen = scripted(
        [(0, {}, b""), _problem(503, "ledger_unavailable"), (told[0], {"Retry-After": "2"}, told[2]), GRANTED]
    )
    with BudgetClient(address, "t", sleep=waits.append) as client:
        assert client.charge(request()).charge_id == "c"
    assert len(seen) == 4
    assert len({headers["Idempotency-Key"] for headers in seen}) == 1
    assert all(headers["Authorization"] == "Bearer t" for headers in seen)
    assert 0.05 <= waits[0] <= 0.075
    assert 0.1 <= waits[1] <= 0.15
    assert 2.0 <= waits[2] <= 3.0


def test_retries_are_bounded(scripted: Callable[[Answers], tuple[str, list[dict[str, str]]]]) -> None:
    address, seen = scripted([_problem(503, "draining")])
    client = BudgetClient(address, retries_max=2, sleep=lambda _: None)
    with client, pytest.raises(ServiceUnavailable, match="draining"):
        client.charge(request())
    assert len(seen) == 3
    nobody = BudgetClient("http://127.0.0.1:9", retries_max=1, sleep=lambda _: None, timeout_s=2.0)
    with nobody, pytest.raises(ServiceUnavailable, match="no answer"):
        nobody.charge(request())


def test_a_history_that_never_moves_on_ends(
    scripted: Callable[[Answers], tuple[str, list[dict[str, str]]]],
) -> None:
    said = dict.fromkeys(("main", "epsilon", "delta", "at_ms"), 0) | {"charge_id": "c", "event": "committed"}
    rows = [{"seq": n, "principal": "p", "line": "{}", **said} for n in range(1, 1001)]
    address, seen = scripted([(200, {}, json.dumps(rows).encode())])
    with BudgetClient(address) as client, pytest.raises(ServiceUnavailable, match="in no order"):
        list(client.charges("s"))
    assert len(seen) == 2


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (_problem(503, "integrity_error"), IntegrityError),
        (_problem(503, "storage_full"), StorageFull),
        (_problem(500, "internal_error"), ServiceUnavailable),
        (_problem(409, "fenced"), Fenced),
        (_problem(422, "unsupported_mechanism"), UnsupportedMechanism),
        (_problem(413, "body_too_large"), InvalidParameter),
        (
            _problem(409, "budget_exceeded", requested=2, spent=9, cap=10, unit="nano-mu2"),
            BudgetExceeded,
        ),
        ((502, {}, b"<html>"), ServiceUnavailable),
        ((200, {}, b"not json"), ServiceUnavailable),
        ((404, {}, b"[]"), ServiceUnavailable),
        ((200, {}, b"{}"), ServiceUnavailable),
        ((200, {}, b"[1]"), ServiceUnavailable),
        (_problem(409, "budget_exceeded"), ServiceUnavailable),
    ],
)
def test_answers_become_our_errors(
    scripted: Callable[[Answers], tuple[str, list[dict[str, str]]]],
    answer: tuple[int, dict[str, str], bytes],
    error: type[Exception],
) -> None:
    address, _ = scripted([answer])
    with BudgetClient(address, retries_max=1, sleep=lambda _: None) as client, pytest.raises(error):
        client.charge(request())
