"""Who may do what: every (verb x role) cell, tokens, certificates, and what a stranger can learn."""

from __future__ import annotations

import datetime
import ssl
import time
from collections.abc import Iterator
from pathlib import Path

import apsw
import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from tests.budget_service.harness import Service, charge_body, prepare, start

from evertally.accountants.budget.service import Grant, ServiceTables, TokenStore
from evertally.errors import InvalidParameter

pytestmark = pytest.mark.slow

TRAINING = {
    "kind": "training",
    "strategy": {"kind": "Identity"},
    "participation": {"kind": "BallsInBins", "batches": 10, "epochs": 1},
    "noise_multiplier": "4",
}
DRAFT = {"kind": "gaussian", "sensitivity": "1"}
SCOPE: dict[str, object] = {"name": "health", "unit": "event", "adjacency": "add-remove"}
SCOPE |= {"epsilon_cap": "2", "delta_cap": "0.000001"}

# verb -> (method, path, body); every route of /v1 that names a scope or a stream
CALLS: dict[str, tuple[str, str, dict[str, object] | None]] = {
    "create": ("POST", "/v1/scopes", SCOPE),
    "read": ("GET", "/v1/scopes/health", None),
    "history": ("GET", "/v1/charges?scope=health", None),
    "quote": ("POST", "/v1/quote", charge_body()),
    "calibrate": (
        "POST",
        "/v1/calibrate",
        {"scope": "health", "line": {"kind": "gaussian", "sensitivity": "1"}},
    ),
    "reserve": ("POST", "/v1/charges", charge_body()),
    "charge": ("POST", "/v1/charges", charge_body(mode="commit")),
    "commit": ("POST", "/v1/charges/{own}/commit", None),
    "expire": ("POST", "/v1/charges/{spare}/expire", None),
    "lease": ("POST", "/v1/leases", charge_body(line=TRAINING)),
    "stream": ("GET", "/v1/streams/flights", None),
}
REQUESTER = {"read", "history", "quote", "calibrate", "reserve", "expire"}
# role -> (grants, verbs answered by the ledger; the others are 403, or 404 where nothing is granted at all)
ROLES: dict[str, tuple[tuple[str, ...], set[str]]] = {
    "reader": (("scope:health=read",), {"read", "history"}),
    "planner": (("scope:health=quote",), {"quote", "calibrate"}),
    "requester": (("scope:health=read,quote,reserve",), REQUESTER),
    "committer": (("scope:health=reserve,commit",), {"reserve", "charge", "commit", "expire"}),
    "trainer": (("scope:health=lease",), {"lease"}),
    "founder": (("scope:hea*=create",), {"create"}),
    "owner": (("scope:*=create,read,quote,reserve,commit,lease", "stream:*=read"), set(CALLS)),
    "watcher": (("stream:flights=read",), {"stream"}),
    "operator": (("service:*=operate",), set()),
    "elsewhere": (("scope:finance*=create,read,quote,reserve,commit,lease", "stream:x*=read"), set()),
}
OPEN_STATUSES = {
    "create": 201, "read": 200, "history": 200, "quote": 200, "calibrate": 200,
    "reserve": 201, "charge": 201, "commit": 200, "expire": 200, "lease": 422, "stream": 404,
}  # fmt: skip
"""Answers of the ledger itself: a gaussian scope refuses training runs, and there is no stream yet."""


Matrix = tuple[Service, dict[str, str], dict[tuple[str, str], str]]


@pytest.fixture(scope="module")
def matrix(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Matrix]:
    """A service, a token for each role, and two reservations owned by each role."""
    location = str(tmp_path_factory.mktemp("matrix") / "ledger.db")
    prepare(location)
    tables = ServiceTables(location)
    store = TokenStore(tables)
    tokens = {
        role: store.create(role, tuple(map(Grant.parse, grants)))[1] for role, (grants, _) in ROLES.items()
    }
    # a token of the same principal that may reserve, so that every role owns a charge to commit
    helpers = {role: store.create(role, (Grant.parse("scope:health=reserve"),))[1] for role in ROLES}
    tables.close()
    service = start(location, "", tokens)
    owned = {}
    for role, token in helpers.items():
        for which in ("own", "spare"):
            answer = httpx.post(
                service.address + "/v1/charges",
                json=charge_body(),
                headers={"Authorization": f"Bearer {token}"},
                trust_env=False,
                timeout=60,
            )
            owned[role, which] = answer.json()["charge_id"]
    yield service, tokens, owned
    service.kill()


@pytest.mark.parametrize("verb", CALLS)
@pytest.mark.parametrize("role", ROLES)
def test_authorization_matrix(matrix: Matrix, role: str, verb: str) -> None:
    service, tokens, owned = matrix
    method, path, body = CALLS[verb]
    answer = httpx.request(
        method,
        service.address + path.format(own=owned[role, "own"], spare=owned[role, "spare"]),
        json=body,
        headers={"Authorization": f"Bearer {tokens[role]}"},
        trust_env=False,
        timeout=60,
    )
    grants, allowed = ROLES[role]
    kind, name = ("stream", "flights") if verb == "stream" else ("scope", "health")
    sees = any(Grant.parse(text).matches(kind, name) for text in grants)
    if verb in allowed:
        assert answer.status_code == OPEN_STATUSES[verb], answer.text
    elif sees:
        assert answer.status_code == 403, answer.text
        assert answer.json()["code"] == "forbidden"
    else:
        assert answer.status_code == 404, answer.text


@pytest.mark.parametrize("verb", CALLS)
@pytest.mark.parametrize(
    "credential",
    [
        None,
        "Bearer",
        "Bearer evt_0000000000000000_" + "A" * 43,
        "Basic b3duZXI6",
        "{owner}",
        "bearer x y",
        "{cut}",
    ],
)
def test_without_a_valid_credential_everything_is_401(
    matrix: Matrix, verb: str, credential: str | None
) -> None:
    service, tokens, _ = matrix
    method, path, body = CALLS[verb]
    headers = {}
    if credential is not None:
        headers["Authorization"] = credential.replace("{owner}", tokens["owner"]).replace(
            "{cut}", "Bearer " + tokens["owner"][:-1] + ("A" if tokens["owner"][-1] != "A" else "B")
        )
    answer = httpx.request(
        method, service.address + path, json=body, headers=headers, trust_env=False, timeout=60
    )
    assert answer.status_code == 401
    assert answer.json()["code"] == "unauthorized"
    assert answer.headers["www-authenticate"].startswith("Bearer")


def test_401_comes_before_every_other_answer(service: Service) -> None:
    with httpx.Client(base_url=service.address, trust_env=False, timeout=60) as stranger:
        for answer in (
            stranger.get("/v1/nothing"),
            stranger.delete("/v1/charges"),
            stranger.post("/v1/charges", content=b"{"),
            stranger.post("/v1/charges", content=b"x" * 100_000),
            stranger.post("/v1/charges", content=b"{}", headers={"Content-Type": "text/plain"}),
            stranger.get("/v1"),
            stranger.options("/v1/charges"),
        ):
            assert answer.status_code == 401


def test_another_scope_cannot_be_told_from_none(service: Service) -> None:
    service.token("blind", "scope:mine*=create,read,quote,reserve,commit,lease")
    with service.client("blind") as blind:
        for method, path, body in CALLS.values():
            if "health" not in path and "health" not in str(body):
                continue
            there = blind.request(method, path, json=body)
            changed = None if body is None else {**body, "scope" if "scope" in body else "name": "nowhere"}
            absent = blind.request(method, path.replace("health", "nowhere"), json=changed)
            assert there.status_code == absent.status_code == 404
            assert there.content == absent.content
        assert blind.get("/v1/scopes").json() == []


def test_revoked_and_expired_tokens_stop_working(service: Service) -> None:
    short = service.token("short", "scope:health=read", expires_in_ms=2500)
    long = service.token("long", "scope:health=read")
    headers = {"Authorization": f"Bearer {long}"}
    with httpx.Client(base_url=service.address, trust_env=False, timeout=60) as client:
        assert client.get("/v1/scopes/health", headers=headers).status_code == 200
        tables = ServiceTables(service.location)
        store = TokenStore(tables)
        assert store.revoke(long.split("_")[1]) is True
        assert store.revoke(long.split("_")[1]) is False
        with pytest.raises(InvalidParameter, match="token_id"):
            store.revoke("nothing")
        tables.close()
        time.sleep(1.5)
        assert client.get("/v1/scopes/health", headers=headers).status_code == 401
        assert (
            client.get("/v1/scopes/health", headers={"Authorization": f"Bearer {short}"}).status_code == 401
        )


def test_tokens_are_kept_as_hashes_only(tmp_path: Path) -> None:
    location = str(tmp_path / "ledger.db")
    token = prepare(location)["owner"]
    secret = token.split("_", 2)[2]
    raw = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert secret.encode() not in raw
    assert len({prepare(str(tmp_path / f"{i}.db"))["owner"] for i in range(3)}) == 3
    connection = apsw.Connection(location)
    assert "service_token" in {row[0] for row in connection.execute("SELECT name FROM sqlite_master")}
    connection.close()


@pytest.mark.parametrize(
    "text",
    ["", "scope:health", "scope:=read", "scope:a=fly", "stream:a=reserve", "scope:*x=read"],
)
def test_bad_grants_are_refused(text: str) -> None:
    with pytest.raises(InvalidParameter, match="grant"):
        Grant.parse(text)


def test_prefix_grants_do_not_reach_beyond_their_prefix() -> None:
    grant = Grant.parse("scope:team/*=read")
    assert grant.matches("scope", "team/a")
    assert not grant.matches("scope", "teams")
    assert not grant.matches("stream", "team/a")
    assert not Grant.parse("scope:team=read").matches("scope", "team/a")


Pair = tuple[x509.Certificate, ec.EllipticCurvePrivateKey]


def _certificate(name: str, issuer: Pair | None) -> Pair:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer[0].subject if issuer else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
    )
    return builder.sign(issuer[1] if issuer else key, hashes.SHA256()), key


def _write(
    folder: Path, name: str, pair: tuple[x509.Certificate, ec.EllipticCurvePrivateKey]
) -> tuple[str, str]:
    certificate, key = folder / f"{name}.pem", folder / f"{name}.key"
    certificate.write_bytes(pair[0].public_bytes(serialization.Encoding.PEM))
    key.write_bytes(
        pair[1].private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    return str(certificate), str(key)


def test_certificates_stand_for_principals(tmp_path: Path) -> None:
    authority = _certificate("authority", None)
    ca, _ = _write(tmp_path, "ca", authority)
    cert, key = _write(tmp_path, "server", _certificate("localhost", authority))
    location = str(tmp_path / "certificates.db")
    tokens = prepare(location)
    tables = ServiceTables(location)
    store = TokenStore(tables)
    assert store.create("etl", (Grant.parse("scope:health=read"),), certificate_cn="etl.internal")[1] == ""
    with pytest.raises(InvalidParameter, match="certificate_cn"):
        store.create("other", (Grant.parse("scope:health=read"),), certificate_cn="etl.internal")
    tables.close()
    service = start(location, "", tokens, host="localhost", tls_cert=cert, tls_key=key, client_ca=ca)

    def get(name: str, issuer: Pair | None) -> httpx.Response:
        context = ssl.create_default_context(cafile=ca)
        if name:
            context.load_cert_chain(*_write(tmp_path, name, _certificate(name, issuer)))
        with httpx.Client(verify=context, trust_env=False, timeout=60) as client:
            return client.get(
                service.address + "/v1/scopes/health", headers={"Authorization": f"Bearer {tokens['owner']}"}
            )

    assert get("etl.internal", authority).status_code == 200
    assert get("unknown.internal", authority).status_code == 401
    with pytest.raises(httpx.TransportError):
        get("", None)
    with pytest.raises(httpx.TransportError):
        get("etl.internal", None)  # signed by itself
    service.kill()
