"""A threading HTTP server that many or slow clients cannot wear out, and that logs nothing of theirs."""

from __future__ import annotations

import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

__all__ = ["BoundedServer"]

_CONNECTIONS_MAX: Final = 128


class BoundedServer(ThreadingHTTPServer):
    """Answers on threads of its own, at most 128 at a time; who comes then is turned away.

    Args:
        host: a name or address, IPv6 too.
        port: port 0 lets the system choose.
        handler: what answers.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, host: str, port: int, handler: type[BaseHTTPRequestHandler]) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._room = threading.BoundedSemaphore(_CONNECTIONS_MAX)
        super().__init__((host, port), handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """See ThreadingMixIn."""
        if not self._room.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """See ThreadingMixIn."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that breaks off is no event; a traceback could hold what it sent."""
