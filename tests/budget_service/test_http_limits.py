"""Limits and endings: body size, rate, slow bodies, drain."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time

import apsw
import httpx
import pytest
from tests.budget_service.harness import Service, Starter, charge_body

from evertally.accountants.budget.opening import open_ledger
from evertally.accountants.budget.service import ServiceSettings
from evertally.accountants.budget.service.limits import RateLimiter
from evertally.errors import InvalidParameter

pytestmark = pytest.mark.slow


def _exchange(
    service: Service, head: str, *chunks: bytes, pause_s: float = 0.0
) -> tuple[bytes, dict[str, object]]:
    host, port = service.address.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        lines = [head, f"Host: {host}:{port}", f"Authorization: Bearer {service.tokens['owner']}"]
        lines += ["Content-Type: application/json", "Connection: close"]
        if "Content-Length" not in head:
            lines.append("Transfer-Encoding: chunked")
        try:
            connection.sendall("\r\n".join([*lines, "", ""]).encode())
            for chunk in chunks:
                connection.sendall(chunk)
        except (BrokenPipeError, ConnectionResetError):
            pass  # refused while sending
        answer = b""
        try:
            while part := connection.recv(65536):
                answer += part
        except ConnectionResetError:
            pass
    first, _, body = answer.partition(b"\r\n\r\n")
    return first.splitlines()[0], json.loads(body)


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def test_declared_body_beyond_the_limit_is_413(service: Service) -> None:
    with service.client() as client:
        body = b'{"a":"' + b"x" * 65536 + b'"}'
        answer = client.post("/v1/charges", content=body, headers={"Content-Type": "application/json"})
        assert answer.status_code == 413
        assert answer.json()["code"] == "body_too_large"
        padded = json.dumps(charge_body()).encode()
        padded += b" " * (65536 - len(padded))
        fits = client.post("/v1/quote", content=padded, headers={"Content-Type": "application/json"})
        assert fits.status_code in (200, 422)
        assert client.post("/v1/quote", content=padded + b" ").status_code == 413


def test_chunked_body_beyond_the_limit_is_413(service: Service) -> None:
    chunks = [_chunk(b" " * 8192) for _ in range(9)]
    status, said = _exchange(service, "POST /v1/charges HTTP/1.1", *chunks, b"0\r\n\r\n")
    assert b"413" in status
    assert said["code"] == "body_too_large"
    endless = [_chunk(b" " * 8192) for _ in range(40)]
    status, said = _exchange(service, "POST /v1/charges HTTP/1.1", *endless)
    assert b"413" in status


def test_chunked_body_within_the_limit_is_read(service: Service) -> None:
    data = json.dumps(charge_body()).encode()
    chunks = [_chunk(data[i : i + 10]) for i in range(0, len(data), 10)]
    status, said = _exchange(service, "POST /v1/quote HTTP/1.1", *chunks, b"0\r\n\r\n")
    assert b"200" in status
    assert said["main"] == 100_000


@pytest.mark.parametrize("complete", [True, False])
@pytest.mark.parametrize("headers", [1, 40])
def test_long_heads_are_refused_while_they_arrive(service: Service, headers: int, complete: bool) -> None:
    host, port = service.address.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        size = 17_000 // headers
        lines = [f"x-{i}: {'a' * size}" for i in range(headers)]
        text = "\r\n".join(["GET /healthz HTTP/1.1", f"Host: {host}", *lines])
        connection.sendall(text.encode() + (b"\r\n\r\n" if complete else b""))
        answer = connection.recv(65536)
    assert b" 400 " in answer.splitlines()[0]
    assert b"malformed_request" in answer
    with service.client() as client:  # many requests over one connection add nothing up
        padded = {"x-padding": "a" * 4000}
        assert [client.get("/v1/scopes", headers=padded).status_code for _ in range(8)] == [200] * 8


def test_garbage_after_a_charge_is_not_taken_for_its_answer(slow: Service) -> None:
    host, port = slow.address.removeprefix("http://").split(":")
    body = json.dumps(charge_body(mode="commit")).encode()
    head = [
        "POST /v1/charges HTTP/1.1",
        f"Host: {host}",
        f"Authorization: Bearer {slow.tokens['owner']}",
        "Content-Type: application/json",
        "Idempotency-Key: once",
        f"Content-Length: {len(body)}",
    ]
    text = "\r\n".join([*head, "", ""]).encode() + body
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall(text + b"\x00garbage\r\n\r\n")
        answer = b""
        with contextlib.suppress(ConnectionResetError):
            while part := connection.recv(65536):
                answer += part
    assert b" 400 " not in answer  # "400" would say that nothing was granted
    with slow.client() as client:
        key = {"Idempotency-Key": "once"}
        granted = client.post("/v1/charges", json=charge_body(mode="commit"), headers=key)
        assert granted.status_code == 201
        assert client.get("/v1/scopes/health").json()["spent"]["main"] == 100_000


def test_two_idempotency_keys_bind_nothing_and_are_refused(service: Service) -> None:
    with service.client() as client:
        before = client.get("/v1/scopes/health").json()
        answer = client.post(
            "/v1/charges", json=charge_body(), headers=[("Idempotency-Key", "a"), ("Idempotency-Key", "b")]
        )
        assert answer.status_code == 422
        assert answer.json()["field"] == "Idempotency-Key"
        for path in ("/v1/charges", "/v1/leases", "/v1/quote"):
            answer = client.post(path, json={}, headers=[("Idempotency-Key", "a"), ("Idempotency-Key", "b")])
            assert (answer.status_code, answer.json()["field"]) == (422, "Idempotency-Key")
        assert client.get("/v1/scopes/health").json() == before


def test_body_that_does_not_arrive_is_408(starter: Starter) -> None:
    service = starter(body_timeout_s=0.5)
    status, said = _exchange(service, "POST /v1/charges HTTP/1.1", _chunk(b"{"))
    assert b"408" in status
    assert said["code"] == "request_timeout"


def test_rate_limit_is_each_principals_own(starter: Starter) -> None:
    service = starter(rate_per_s=0.5, burst=10)
    service.token("second", "scope:health=read")
    with service.client() as owner, service.client("second") as second:
        statuses = [owner.get("/v1/scopes/health").status_code for _ in range(30)]
        assert statuses[:10] == [200] * 10
        assert statuses.count(429) >= 10
        assert second.get("/v1/scopes/health").status_code == 200
        refused = owner.get("/v1/scopes/health")
        while refused.status_code != 429:
            refused = owner.get("/v1/scopes/health")
        assert refused.json()["code"] == "rate_limited"
        assert "0.5 requests a second" in refused.json()["allowed"]
        time.sleep(int(refused.headers["retry-after"]))
        assert owner.get("/v1/scopes/health").status_code == 200


def test_token_bucket_refills_at_its_rate() -> None:
    now = [0.0]
    limiter = RateLimiter(10.0, 3, clock=lambda: now[0])
    assert [limiter.wait_s("a") == 0.0 for _ in range(4)] == [True, True, True, False]
    granted = 0
    for step in range(1, 1001):
        now[0] = step / 100
        granted += limiter.wait_s("a") == 0.0
    assert granted == pytest.approx(100, abs=1)  # 10 a second for 10 s


def _wait_until_refused(address: str) -> None:
    """Connect until the service has stopped listening; what waited to be accepted is broken off then."""
    host, port = address.removeprefix("http://").split(":")
    with contextlib.suppress(ConnectionRefusedError):
        while True:
            with contextlib.suppress(ConnectionResetError):
                socket.create_connection((host, int(port)), timeout=60).close()
            time.sleep(0.01)


def _in_flight(client: httpx.Client) -> int:
    """Requests besides this one that are being answered."""
    lines = client.get("/metrics").text.splitlines()
    (value,) = (line.split()[1] for line in lines if line.startswith("evertally_budget_requests_in_flight "))
    return int(float(value)) - 1


@pytest.fixture
def slow(starter: Starter) -> Service:
    return starter()


def test_sigterm_finishes_what_is_in_flight_and_refuses_the_rest(slow: Service) -> None:
    answers: list[httpx.Response] = []

    def charge(client: httpx.Client) -> None:
        with client:
            answers.append(client.post("/v1/charges", json=charge_body(mode="commit")))

    # clients are slow to make, and a charge waits ten seconds for the ledger, no longer
    threads = [threading.Thread(target=charge, args=(slow.client(),)) for _ in range(4)]
    with slow.client() as idle:
        assert idle.get("/v1/scopes/health").status_code == 200
        blocker = apsw.Connection(slow.location)
        blocker.execute("BEGIN IMMEDIATE")  # a charge in flight waits for the ledger
        for thread in threads:
            thread.start()
        while _in_flight(idle) < 4:
            time.sleep(0.05)
        slow.process.terminate()
        _wait_until_refused(slow.address)
        with pytest.raises(httpx.TransportError):
            idle.get("/v1/scopes/health")
        assert slow.process.poll() is None
        blocker.execute("ROLLBACK")
        blocker.close()
        for thread in threads:
            thread.join(30)
    assert slow.process.wait(30) == 0
    assert [answer.status_code for answer in answers] == [201] * 4
    ledger = open_ledger(slow.location)
    assert ledger.scope_status("health").spent.main == 400_000
    assert ledger.verify().ok
    ledger.close()


@pytest.mark.parametrize(
    "settings",
    [
        {"host": "0.0.0.0"},
        {"host": "0.0.0.0", "plain_http": True},
        {"tls_cert": "c"},
        {"client_ca": "c"},
        {"page": "public"},
        {"rate_per_s": float("nan")},
        {"burst": 0},
        {"port": 70000},
    ],
)
def test_unsafe_settings_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(InvalidParameter):
        ServiceSettings(**settings)  # type: ignore[arg-type]  # wrong values on purpose
