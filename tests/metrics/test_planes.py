"""The two planes' servers: doors, limits, and what they never show."""

from __future__ import annotations

import contextlib
import gzip
import http.client
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from evertally.errors import InvalidParameter
from evertally.pipelines.config_table import ConfigTable, Mistakes
from evertally.pipelines.metrics import (
    Answer,
    Listen,
    OperatorMetrics,
    PlaneServer,
    internal_plane,
    parse_listen,
    read_metrics_listen,
)

TOKEN = "a-token-of-some-length"


@contextlib.contextmanager
def serving(server: PlaneServer) -> Iterator[str]:
    server.start()
    try:
        yield server.address
    finally:
        server.close()


def get(address: str, path: str, verify: Any = False, **headers: str) -> httpx.Response:
    with httpx.Client(base_url=address, trust_env=False, verify=verify, timeout=30) as client:
        return client.get(path, headers=headers)


def token_file(folder: Path, text: str = TOKEN, mode: int = 0o600) -> Path:
    path = folder / "token"
    path.write_text(text + "\n")
    path.chmod(mode)
    return path


def certificate(folder: Path) -> tuple[Path, Path]:
    cert, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
         "-keyout", str(key), "-out", str(cert), "-days", "2", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"],
        check=True, capture_output=True,
    )  # fmt: skip
    return cert, key


def plane(**options: Any) -> PlaneServer:
    routes = {"/metrics": lambda: Answer(200, "text/plain", b"x" * 2000, gzip.compress(b"x" * 2000))}
    return PlaneServer(Listen("127.0.0.1", 0, **options), routes)


@pytest.mark.slow
def test_a_plane_answers_its_paths_and_nothing_else() -> None:
    with serving(plane()) as address:
        answer = get(address, "/metrics")
        assert (answer.status_code, answer.text) == (200, "x" * 2000)
        assert answer.headers["content-encoding"] == "gzip"
        assert answer.headers["server"] == "evertally"
        assert get(address, "/metrics", **{"accept-encoding": "identity"}).headers["content-length"] == "2000"
        for path in ("/", "/internal/metrics", "/metrics/", "/%2e%2e/etc/passwd", "//metrics"):
            assert get(address, path).status_code == 404
        with httpx.Client(base_url=address, trust_env=False, timeout=60, verify=False) as client:
            assert client.post("/metrics").status_code == 501
            head = client.head("/metrics")
            assert (head.status_code, head.content) == (200, b"")


@pytest.mark.slow
def test_a_bearer_token_guards_all_but_the_probes(tmp_path: Path) -> None:
    metrics = OperatorMetrics("worker")
    metrics.counter("events_read", "Events read.").inc(7)
    with serving(internal_plane(Listen("127.0.0.1", 0, token_file(tmp_path)), metrics)) as address:
        refused = get(address, "/internal/metrics")
        assert refused.status_code == 401
        assert refused.headers["www-authenticate"].startswith("Bearer")
        for wrong in ("Bearer wrong", "Bearer", f"Basic {TOKEN}", f"Bearer {TOKEN}x", "Bearer \u00e4"):
            sent = httpx.Headers([(b"authorization", wrong.encode())])
            with httpx.Client(base_url=address, trust_env=False, timeout=60, verify=False) as client:
                assert client.get("/internal/metrics", headers=sent).status_code == 401
        allowed = get(address, "/internal/metrics", Authorization=f"Bearer {TOKEN}")
        assert "evertally_worker_events_read_total 7.0" in allowed.text
        assert "process_resident_memory_bytes" in allowed.text
        assert get(address, "/healthz").status_code == 200


@pytest.mark.slow
def test_a_local_operators_plane_refuses_rebound_names() -> None:
    with serving(internal_plane(Listen("127.0.0.1", 0), OperatorMetrics("worker"))) as address:
        assert get(address, "/internal/metrics").status_code == 200
        assert get(address, "/internal/metrics", Host="localhost:1").status_code == 200
        assert get(address, "/internal/metrics", Host="evil.example").status_code == 421


@pytest.mark.slow
def test_tls_is_served_and_plain_http_is_not(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    with serving(plane(tls_cert=cert, tls_key=key)) as address:
        assert address.startswith("https://")
        trusting = ssl.create_default_context(cafile=str(cert))
        assert get(address, "/metrics", verify=trusting).status_code == 200
        with pytest.raises(httpx.HTTPError):
            get(address.replace("https", "http"), "/metrics")
        assert get(address, "/metrics", verify=trusting).status_code == 200  # it survived the stranger


@pytest.mark.slow
def test_client_certificates_are_asked_for(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    with serving(plane(tls_cert=cert, tls_key=key, client_ca=cert)) as address:
        context = ssl.create_default_context(cafile=str(cert))
        with pytest.raises(httpx.HTTPError):
            get(address, "/metrics", verify=context)
        context.load_cert_chain(cert, key)
        assert get(address, "/metrics", verify=context).status_code == 200


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({}, "token_file"),
        ({"token": True}, "tls_cert"),
        ({"tls": True}, "token_file"),
    ],
)
def test_an_operators_plane_beyond_loopback_needs_doors(
    tmp_path: Path, options: dict[str, bool], field: str
) -> None:
    given: dict[str, Any] = {}
    if "token" in options:
        given["token_file"] = token_file(tmp_path)
    if "tls" in options:
        given["tls_cert"], given["tls_key"] = certificate(tmp_path)
    with pytest.raises(InvalidParameter) as caught:
        internal_plane(Listen("0.0.0.0", 0, **given), OperatorMetrics("worker"))
    assert caught.value.field == field


def test_plain_http_beyond_loopback_is_a_choice(tmp_path: Path) -> None:
    Listen("0.0.0.0", 0, token_file(tmp_path), plain_http=True).require_private()


@pytest.mark.parametrize(
    ("text", "mode"), [("short", 0o600), (TOKEN, 0o604), ("", 0o600), ("a b" * 20, 0o600)]
)
def test_bad_token_files_are_refused(tmp_path: Path, text: str, mode: int) -> None:
    with pytest.raises(InvalidParameter) as caught:
        plane(token_file=token_file(tmp_path, text, mode))
    assert caught.value.field == "token_file"
    assert TOKEN not in str(caught.value)


def test_a_taken_port_and_bad_certificates_are_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        with pytest.raises(InvalidParameter, match="free address"):
            PlaneServer(Listen("127.0.0.1", taken.getsockname()[1]), {})
    nothing = tmp_path / "nothing.pem"
    nothing.write_text("no certificate")
    with pytest.raises(InvalidParameter, match="PEM"):
        plane(tls_cert=nothing, tls_key=nothing)


@pytest.mark.slow
def test_slow_clients_do_not_stand_in_the_way() -> None:
    """Clients that open a connection and say nothing, up to near the limit, delay nobody else."""
    with serving(plane()) as address, contextlib.ExitStack() as stack:
        port = int(address.rpartition(":")[2])
        for _ in range(100):
            stack.enter_context(socket.create_connection(("127.0.0.1", port)))
        began = time.monotonic()
        assert get(address, "/metrics").status_code == 200
        assert time.monotonic() - began < 10


@pytest.mark.slow
def test_connections_have_a_limit_and_come_back() -> None:
    with serving(plane()) as address:
        port = int(address.rpartition(":")[2])
        with contextlib.ExitStack() as stack:
            for _ in range(140):
                stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            deadline = time.monotonic() + 20
            while time.monotonic() < deadline:  # the accepting thread needs a moment to reach the limit
                try:
                    get(address, "/metrics")
                except httpx.HTTPError:
                    break
            else:
                raise AssertionError("no limit")
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            with contextlib.suppress(httpx.HTTPError):
                if get(address, "/metrics").status_code == 200:
                    return
        raise AssertionError("the plane did not recover")


@pytest.mark.slow
def test_garbage_is_answered_or_dropped() -> None:
    with serving(plane()) as address:
        port = int(address.rpartition(":")[2])
        for garbage in (b"\x16\x03\x01\x02\x00", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"A" * 100_000):
            with (
                socket.create_connection(("127.0.0.1", port)) as sent,
                contextlib.suppress(ConnectionError),
            ):
                sent.sendall(garbage)
                sent.shutdown(socket.SHUT_WR)
                while sent.recv(65536):
                    pass
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        for _ in range(3):  # one connection, kept alive
            connection.request("GET", "/metrics")
            assert connection.getresponse().read()
        connection.close()


def test_addresses_are_parsed_or_named() -> None:
    assert parse_listen("listen", "0.0.0.0:9464") == ("0.0.0.0", 9464)
    for wrong in ("", "9464", ":9464", "host:", "host:70000", "host:\u0661"):
        with pytest.raises(InvalidParameter):
            parse_listen("listen", wrong)


def test_a_configuration_declares_the_operators_plane(tmp_path: Path) -> None:
    token_file(tmp_path)
    cases = [
        ({}, None, []),
        ({"listen": "127.0.0.1:9465"}, ("127.0.0.1", 9465), []),
        ({"listen": "0.0.0.0:9465"}, None, ["metrics.token_file"]),
        ({"listen": "0.0.0.0:9465", "token_file": "token"}, None, ["metrics.tls_cert"]),
        ({"listen": "0.0.0.0:1", "token_file": "token", "plain_http": True}, ("0.0.0.0", 1), []),
        ({"token_file": "token"}, None, ["metrics.listen"]),
        ({"listen": "nowhere"}, None, ["metrics.listen"]),
        ({"listen": "127.0.0.1:1", "plain_http": "yes"}, None, ["metrics.plain_http"]),
    ]
    for data, expected, fields in cases:
        mistakes = Mistakes()
        found = read_metrics_listen(ConfigTable("metrics", data, mistakes), tmp_path, mistakes)
        assert [mistake.field for mistake in mistakes.found] == fields
        assert (None if found is None else (found.host, found.port)) == expected


def test_operator_metrics_have_one_form_of_name() -> None:
    metrics = OperatorMetrics("train")
    metrics.watch("steps_left", "Steps left.", lambda: 4.0)
    metrics.histogram("step_seconds", "Time of a step.").observe(0.2)
    metrics.gauge("loss", "Training loss.", ("run",)).labels("r1").set(0.5)
    text = metrics.text().decode()
    assert "evertally_train_steps_left 4.0" in text
    assert 'evertally_train_loss{run="r1"} 0.5' in text
    for wrong in ("Events", "events_total", "a__b", "_a", "a-b", "x_sum"):
        with pytest.raises(InvalidParameter):
            metrics.counter(wrong, "no")
    with pytest.raises(InvalidParameter):
        OperatorMetrics("Not one word")


@pytest.mark.slow
def test_a_scrape_and_a_change_may_come_together() -> None:
    metrics = OperatorMetrics("worker")
    counter = metrics.counter("events_read", "Events read.", ("stage",))
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            for number in range(50):
                counter.labels(f"s{number}").inc()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        for _ in range(50):
            assert b"evertally_worker_events_read_total" in metrics.text()
    finally:
        stop.set()
        thread.join()
