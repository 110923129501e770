"""Client processes that charge as fast as they are answered, with duplicates."""

from __future__ import annotations

import json
import multiprocessing
import socket
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
    line = {"kind": "gaussian", "sensitivity": "1", "sigma": sigma}
    body = json.dumps(charge_body(mode="commit", line=line)).encode()
    every = round(1 / duplicates) if duplicates else 0
    connection = _Connection(address, token, body)
    started = time.perf_counter()
    for i in range(requests):
        key = f"{number}-{i - 3 if every and i % every == every - 1 else i}"
        try:
            status, said = connection.charge(key)
        except OSError:
            outcome.unknown.append(key)
            connection.close()
            if len(outcome.unknown) > 20:
                break
            time.sleep(0.05)
            continue
        outcome.answers += 1
        if status == 201:
            outcome.mismatched += outcome.granted.get(key, said) != said
            outcome.granted[key] = said
        else:
            outcome.refused += 1
    outcome.seconds = time.perf_counter() - started
    queue.put(outcome)


class _Connection:
    """One kept connection that sends the same charge under other keys, cheaper than `http.client`."""

    def __init__(self, address: str, token: str, body: bytes) -> None:
        place = urlsplit(address)
        self._place = (str(place.hostname), int(place.port or 80))
        self._head = (
            f"POST /v1/charges HTTP/1.1\r\nHost: {place.netloc}\r\nAuthorization: Bearer {token}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\nIdempotency-Key: "
        ).encode()
        self._tail = b"\r\n\r\n" + body
        self._socket: socket.socket | None = None
        self._read = b""

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket, self._read = None, b""

    def charge(self, key: str) -> tuple[int, bytes]:
        """(status, body) of the answer; OSError where none came."""
        if self._socket is None:
            self._socket = socket.create_connection(self._place, timeout=120)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.sendall(self._head + key.encode() + self._tail)
        while b"\r\n\r\n" not in self._read:
            self._receive(self._socket)
        head, _, self._read = self._read.partition(b"\r\n\r\n")
        lines = head.lower().split(b"\r\n")
        sizes = [int(line[15:]) for line in lines if line.startswith(b"content-length:")]
        while len(self._read) < sizes[0]:
            self._receive(self._socket)
        body, self._read = self._read[: sizes[0]], self._read[sizes[0] :]
        if b"connection: close" in lines:
            self.close()
        return int(lines[0].split()[1]), body

    def _receive(self, connection: socket.socket) -> None:
        got = connection.recv(1 << 16)
        if not got:
            raise ConnectionError("the service closed the connection")
        self._read += got
