"""The probes' server: who may confirm the clock, and what clients can do to it."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading

import httpx
import pytest
from kafka_harness import wait_until

from evertally.pipelines.kafka.health import HealthServer


def test_a_web_page_cannot_confirm_the_clock() -> None:
    """A form on any page reaches a loopback address from its reader's browser, which names the page."""
    confirmed: list[int] = []
    server = HealthServer(("127.0.0.1", 0), dict, dict, lambda: confirmed.append(1))
    server.start()
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{server.port}", trust_env=False, timeout=60) as client:
            page = client.post("/confirm-clock", headers={"Origin": "https://elsewhere.example"})
            assert (page.status_code, confirmed) == (403, [])
            assert client.post("/confirm-clock").json() == {"clock": True}
    finally:
        server.close()
    assert confirmed == [1]


@pytest.mark.slow
def test_clients_that_break_off_leave_nothing_in_the_log_and_many_are_turned_away(
    capfd: pytest.CaptureFixture[str],
) -> None:
    server = HealthServer(("127.0.0.1", 0), dict, dict, lambda: None)
    server.start()
    before = threading.active_count()
    try:
        for sent in (b"GET /healthz HTTP/1.1\r\nX-Secret: hunter2\r\n", b"GET /healthz HTTP/1.1\r\n\r\n"):
            client = socket.create_connection(("127.0.0.1", server.port))
            client.sendall(sent)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.close()  # a reset, not an end
        # it comes behind those two: once it is answered their threads have begun, and are soon over
        assert httpx.get(f"http://127.0.0.1:{server.port}/", trust_env=False, timeout=60).status_code == 404
        wait_until("nobody is left", lambda: threading.active_count() == before)
        with contextlib.ExitStack() as stack:
            clients, most = [], 0
            for _ in range(300):
                clients.append(stack.enter_context(socket.create_connection(("127.0.0.1", server.port))))
                most = max(most, threading.active_count() - before)
            wait_until("the others are turned away", lambda: sum(map(_has_ended, clients)) >= 300 - 128)
            assert 100 < max(most, threading.active_count() - before) <= 128
    finally:
        server.close()
    assert capfd.readouterr().err == ""


def _has_ended(client: socket.socket) -> bool:
    client.setblocking(False)
    try:
        return client.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def test_an_ipv6_address_is_listened_on() -> None:
    if not socket.has_ipv6:
        pytest.skip("this machine has no IPv6")
    server = HealthServer(("::1", 0), lambda: {"turns": True}, dict, lambda: None)
    server.start()
    try:
        assert httpx.get(f"http://[::1]:{server.port}/healthz", trust_env=False, timeout=60).json() == {
            "turns": True
        }
    finally:
        server.close()
