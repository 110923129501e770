"""The happy paths of /v1, and every refusal's code, over a real server."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import apsw
import httpx
import pytest
from tests.budget_service.harness import GAUSSIAN, Service, Starter, charge_body, wait_past

from evertally.accountants.budget.service.problems import CODES

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def client(service: Service) -> Iterator[httpx.Client]:
    with service.client() as client:
        yield client


def problem(answer: httpx.Response, code: str) -> dict[str, object]:
    """The problem document, checked against its registered status."""
    assert answer.headers["content-type"] == "application/problem+json", answer.text
    said: dict[str, object] = answer.json()
    assert (answer.status_code, said["code"]) == (CODES[code][0], code), answer.text
    assert said["status"] == answer.status_code
    assert said["type"] == f"urn:evertally:problem:{code}"
    assert {"title", "detail", "field", "received", "allowed"} <= said.keys()
    return said


def test_scope_is_created_read_and_listed(client: httpx.Client) -> None:
    body = {"name": "team/one", "unit": "aircraft", "adjacency": "add-remove"}
    body |= {"epsilon_cap": "1", "delta_cap": "0.00001"}
    created = client.post("/v1/scopes", json=body)
    assert created.status_code == 201
    again = client.post("/v1/scopes", json=body)
    assert again.json() == created.json()
    said = client.get("/v1/scopes/team/one").json()
    assert said == created.json() == client.get("/v1/scopes/team%2Fone").json()
    assert said["spent"]["main"] == 0
    assert said["cap"]["main"] > said["zcdp_main"] > 0
    assert "guarantee is the cap" in said["statement"]
    assert [scope["name"] for scope in client.get("/v1/scopes").json()] == ["health", "team/one"]
    problem(client.post("/v1/scopes", json={**body, "epsilon_cap": "2"}), "scope_exists")


def test_quote_changes_nothing_and_predicts_the_charge(client: httpx.Client) -> None:
    before = client.get("/v1/scopes/health").json()
    quoted = client.post("/v1/quote", json=charge_body()).json()
    assert client.get("/v1/scopes/health").json() == before
    charged = client.post("/v1/charges", json=charge_body(mode="commit")).json()
    # golden: (1/100)^2 in nano-mu2
    assert quoted["main"] == charged["main"] == 100_000
    after = client.get("/v1/scopes/health").json()
    assert after["spent"]["main"] - before["spent"]["main"] == 100_000
    assert after["remaining"]["main"] == after["cap"]["main"] - after["spent"]["main"]


def test_reserve_then_commit_is_charged_once(client: httpx.Client) -> None:
    before = client.get("/v1/scopes/health").json()["spent"]["main"]
    reserved = client.post("/v1/charges", json=charge_body()).json()
    assert reserved["status"] == "reserved"
    path = f"/v1/charges/{reserved['charge_id']}/commit"
    first, second = client.post(path), client.post(path)
    assert first.json()["status"] == second.json()["status"] == "committed"
    assert client.get("/v1/scopes/health").json()["spent"]["main"] - before == 100_000
    rows = client.get("/v1/charges", params={"scope": "health", "limit": 1000}).json()
    mine = [row["event"] for row in rows if row["charge_id"] == reserved["charge_id"]]
    assert mine == ["reserved", "committed"]


def test_history_is_paged(client: httpx.Client) -> None:
    for _ in range(3):
        client.post("/v1/charges", json=charge_body(mode="commit"))
    rows = client.get("/v1/charges", params={"scope": "health"}).json()
    paged: list[object] = []
    while page := client.get(
        "/v1/charges", params={"scope": "health", "after_seq": len(paged), "limit": 2}
    ).json():
        paged += page
    assert paged == rows
    assert [row["seq"] for row in rows] == list(range(1, len(rows) + 1))


def test_expired_reservation_is_fenced(client: httpx.Client) -> None:
    reserved = client.post("/v1/charges", json=charge_body(ttl_ms=1)).json()
    wait_past(reserved["expires_ms"])
    problem(client.post(f"/v1/charges/{reserved['charge_id']}/commit"), "fenced")


def test_same_idempotency_key_gives_the_first_bytes(client: httpx.Client) -> None:
    for mode in ("reserve", "commit"):
        headers = {"Idempotency-Key": f"once-{mode}"}
        answers = [client.post("/v1/charges", json=charge_body(mode=mode), headers=headers) for _ in range(3)]
        assert len({answer.content for answer in answers}) == 1
        assert {answer.status_code for answer in answers} == {201}
        other = charge_body(mode=mode, line={**GAUSSIAN, "sigma": "101"})
        said = problem(client.post("/v1/charges", json=other, headers=headers), "idempotency_key_reused")
        assert said["field"] == "idempotency_key"


def test_idempotency_key_belongs_to_its_principal(service: Service, client: httpx.Client) -> None:
    headers = {"Idempotency-Key": "shared"}
    mine = client.post("/v1/charges", json=charge_body(), headers=headers).json()
    with service.client("someone-else") as other:
        theirs = other.post("/v1/charges", json=charge_body(), headers=headers).json()
        assert theirs["charge_id"] != mine["charge_id"]
        problem(other.post(f"/v1/charges/{mine['charge_id']}/commit"), "not_found")


def test_budget_refusal_states_the_amounts(client: httpx.Client) -> None:
    before = client.get("/v1/scopes/health").json()
    body = charge_body(line={**GAUSSIAN, "sigma": "0.5"})
    for path in ("/v1/charges", "/v1/quote"):
        said = problem(client.post(path, json=body), "budget_exceeded")
        assert said["requested"] == 4 * 10**9
        assert (said["spent"], said["cap"]) == (before["spent"]["main"], before["cap"]["main"])
        assert said["unit"] == "nano-mu2"
    assert client.get("/v1/scopes/health").json() == before


def test_counter_and_windows_and_selection_lines_are_priced(client: httpx.Client) -> None:
    counter = {"kind": "counter", "mechanism": "rational:W32", "q": 2**23, "keys": 16}
    windows: dict[str, object] = {"kind": "windows", "sensitivity": "1", "sigma": "400", "window": "sliding"}
    windows |= {"length_ms": 3000, "stride_ms": 1000}
    selection = {**counter, "kind": "key_selection", "q": 2**22, "threshold": 10**5, "horizon": 1000}
    for line in (counter, windows, selection):
        answer = client.post("/v1/quote", json=charge_body(line=line))
        assert answer.status_code == 200, answer.text
        assert answer.json()["main"] > 0
    # golden: three windows touched, (1/400)^2 each
    assert client.post("/v1/quote", json=charge_body(line=windows)).json()["main"] == 18750


@pytest.mark.parametrize(
    "draft",
    [
        {"kind": "gaussian", "sensitivity": "1", "releases": 3},
        {"kind": "counter", "mechanism": "rational:W32", "keys": 4},
    ],
)
def test_calibrated_noise_is_the_least_that_fits(client: httpx.Client, draft: dict[str, object]) -> None:
    answer = client.post("/v1/calibrate", json={"scope": "health", "line": draft, "units": 50_000_000})
    said = answer.json()
    assert answer.status_code == 200, said
    assert 50_000_000 * (1 - 1e-6) < said["quote"]["main"] <= 50_000_000
    assert (
        client.post("/v1/quote", json=charge_body(line=said["line"])).json()["main"] == said["quote"]["main"]
    )
    left = client.get("/v1/scopes/health").json()["remaining"]["main"]
    body = {"scope": "health", "line": draft, "units": left + 1}
    problem(client.post("/v1/calibrate", json=body), "budget_exceeded")


def test_group_members_cost_the_largest(client: httpx.Client) -> None:
    body: dict[str, object] = {
        "name": "keys",
        "unit": "event",
        "adjacency": "add-remove",
        "disjoint": ["carrier"],
    }
    assert (
        client.post("/v1/scopes", json={**body, "epsilon_cap": "2", "delta_cap": "1e-6"}).status_code == 201
    )

    def charge(members: list[str]) -> int:
        request = charge_body(scope="keys", group="carrier", members=members, mode="commit")
        amount: int = client.post("/v1/charges", json=request).json()["main"]
        return amount

    assert [charge(["AA"]), charge(["UA"]), charge(["AA", "DL"])] == [100_000, 0, 100_000]


BAD_BODIES: list[tuple[object, str]] = [
    (charge_body(line={**GAUSSIAN, "sigma": 1.5}), "line.sigma"),
    (charge_body(line={**GAUSSIAN, "sigma": "NaN"}), "line.sigma"),
    (charge_body(line={**GAUSSIAN, "sigma": "-1"}), "line.sigma"),
    (charge_body(line={**GAUSSIAN, "sigma": "0"}), "line.sigma"),
    (charge_body(line={**GAUSSIAN, "sigma": True}), "line.sigma"),
    (charge_body(line={**GAUSSIAN, "sigma": 0}), "line.sigma"),
    (charge_body(line={**GAUSSIAN, "releases": "3"}), "line.releases"),
    (charge_body(line={**GAUSSIAN, "releases": 2.0}), "line.releases"),
    (charge_body(line={**GAUSSIAN, "mu": "0.1"}), "line.mu"),
    (charge_body(line={"kind": "magic"}), "line"),
    (charge_body(cost=0), "cost"),
    (charge_body(unit="aircraft"), "charge.unit"),
    (charge_body(group="carrier", members=["a"]), "charge.group"),
    (charge_body(group="carrier"), "charge.members"),
    (charge_body(ttl_ms=0), "ttl_ms"),
    (charge_body(mode="maybe"), "mode"),
    ({key: value for key, value in charge_body().items() if key != "line"}, "line"),
]


@pytest.mark.parametrize(("body", "field"), BAD_BODIES, ids=[field for _, field in BAD_BODIES])
def test_bad_values_are_refused_by_name(client: httpx.Client, body: object, field: str) -> None:
    said = problem(client.post("/v1/charges", json=body), "invalid_parameter")
    assert said["field"] == field
    assert said["allowed"]


@pytest.mark.parametrize(
    "raw",
    [
        b"{", b"", b"[]", b'"x"', b"\xff\xfe", b"null", b"[" * 60_000, b'{"scope":"\\ud800"}',
        b'{"a":' + b"9" * 5000 + b"}", b'{"scope": NaN}', b"1e999",
    ],
    ids=["open", "empty", "list", "text", "utf16", "null", "deep", "surrogate", "digits", "nan", "huge"],
)  # fmt: skip
def test_bodies_that_are_no_request_are_refused(client: httpx.Client, raw: bytes) -> None:
    answer = client.post("/v1/charges", content=raw, headers={"Content-Type": "application/json"})
    assert answer.status_code in (400, 422)
    assert answer.json()["code"] in ("malformed_request", "invalid_parameter")


@pytest.mark.parametrize("cap", ["1e-400", "1e999", "0", "-1", "inf", "NaN", "1e9999", "0.0000000001"])
def test_caps_out_of_range_are_refused(client: httpx.Client, cap: str) -> None:
    body = {"name": "odd", "unit": "event", "adjacency": "add-remove"}
    for amounts in ({"epsilon_cap": cap, "delta_cap": "0.00001"}, {"epsilon_cap": "1", "delta_cap": cap}):
        answer = client.post("/v1/scopes", json={**body, **amounts})
        if answer.status_code == 201:
            assert cap == "0.0000000001"
            assert "delta_cap" in amounts
        else:
            problem(answer, "invalid_parameter")


def test_other_refusals(client: httpx.Client) -> None:
    problem(client.get("/v1/scopes/none"), "not_found")
    problem(client.get("/v1/charges", params={"scope": "none"}), "not_found")
    problem(client.get("/v1/charges", params={"scope": "health", "limit": "x"}), "invalid_parameter")
    problem(client.get("/v1/charges", params={"scope": "health", "after_seq": 2**70}), "invalid_parameter")
    problem(client.post("/v1/charges/abc/commit"), "not_found")
    problem(client.post("/v1/charges/a b/commit"), "not_found")
    problem(client.get("/v1/nothing"), "not_found")
    allowed = client.delete("/v1/charges")
    problem(allowed, "method_not_allowed")
    assert allowed.headers["allow"]
    text = {"Content-Type": "text/plain"}
    problem(client.post("/v1/charges", content=b"{}", headers=text), "unsupported_media_type")
    headers = {"Idempotency-Key": "has space"}
    problem(client.post("/v1/charges", json=charge_body(), headers=headers), "invalid_parameter")
    windows: dict[str, object] = {"kind": "windows", "sensitivity": "1", "sigma": "1", "window": "tumbling"}
    windows |= {"length_ms": 10, "stride_ms": 10}
    body = {"name": "users", "unit": "user", "adjacency": "add-remove"}
    client.post("/v1/scopes", json={**body, "epsilon_cap": "1", "delta_cap": "0.00001"})
    unbounded = charge_body(scope="users", unit="user", line=windows)
    problem(client.post("/v1/quote", json=unbounded), "unsupported_mechanism")


def test_garbage_instead_of_http_is_answered_with_a_problem(service: Service) -> None:
    host, port = service.address.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall(b"\x16\x03\x01garbage\r\n\r\n")
        said = connection.makefile("rb").read()
    head, _, body = said.partition(b"\r\n\r\n")
    assert b"400" in head.splitlines()[0]
    assert json.loads(body)["code"] == "malformed_request"


def test_probes_and_description(service: Service, client: httpx.Client) -> None:
    with httpx.Client(base_url=service.address, trust_env=False, timeout=60) as anyone:
        assert anyone.get("/healthz").json() == {"status": "ok"}
        assert anyone.get("/readyz").json() == {"status": "ok"}
        metrics = anyone.get("/metrics").text
        described = anyone.get("/openapi.json").json()
    assert "owner" not in metrics
    assert "health" not in metrics.replace("/healthz", "")
    assert 'route="/v1/charges"' in metrics
    assert set(described["paths"]) >= {
        "/v1/scopes",
        "/v1/quote",
        "/v1/charges",
        "/v1/calibrate",
        "/v1/leases",
    }
    for path, operations in described["paths"].items():
        for operation in operations.values():
            assert "application/problem+json" in operation["responses"]["422"]["content"]
            assert ("security" in operation) == path.startswith("/v1")
    assert "not a differential privacy statement" in json.dumps(described)


def test_security_headers_are_on_every_answer(client: httpx.Client) -> None:
    for path in ("/", "/v1/scopes", "/v1/none", "/healthz"):
        headers = client.get(path).headers
        assert headers["content-security-policy"].startswith("default-src 'self'")
        assert headers["x-content-type-options"] == "nosniff"


def test_locked_ledger_is_503_and_grants_nothing(starter: Starter) -> None:
    service = starter()
    with service.client() as client:
        assert client.post("/v1/charges", json=charge_body()).status_code == 201
        blocker = apsw.Connection(service.location)
        blocker.execute("BEGIN IMMEDIATE")
        try:
            said = client.post("/v1/charges", json=charge_body())
            assert problem(said, "ledger_unavailable")
            assert said.headers["retry-after"] == "1"
        finally:
            blocker.execute("ROLLBACK")
            blocker.close()
        assert client.post("/v1/charges", json=charge_body()).status_code == 201
        assert client.get("/v1/scopes/health").json()["spent"]["main"] == 200_000


def test_metrics_look_at_the_ledger_themselves(starter: Starter) -> None:
    """Where nobody asks for /readyz, as under systemd, nobody else would."""
    service = starter()
    with service.client() as client:
        assert "evertally_budget_ledger_up 1.0" in client.get("/metrics").text
        Path(service.location).rename(service.location + ".away")
        assert "evertally_budget_ledger_up 0.0" in client.get("/metrics").text
        Path(service.location + ".away").rename(service.location)
        assert "evertally_budget_ledger_up 1.0" in client.get("/metrics").text


def test_damaged_ledger_is_503_and_not_ready(starter: Starter) -> None:
    service = starter()
    with service.client() as client:
        assert client.post("/v1/charges", json=charge_body()).status_code == 201
        damage = apsw.Connection(service.location)
        damage.execute("UPDATE scope SET main = 0")
        damage.close()
        problem(client.post("/v1/charges", json=charge_body()), "integrity_error")
        problem(client.get("/v1/scopes/health"), "integrity_error")
        assert Path(service.location).exists()
