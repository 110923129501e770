"""/healthz and /readyz for an orchestrator, and the operator's confirmation of the clock."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler
from typing import Final

from evertally.errors import InvalidParameter
from evertally.pipelines.metrics.bounded_server import BoundedServer

__all__ = ["HealthServer"]

Checks = Callable[[], Mapping[str, bool]]


class HealthServer:
    """Answers 200 where every check holds, else 503 with the names of those that do not.

    Args:
        listen: host and port; port 0 takes a free one.
        healthy: checks of /healthz: the loops turn.
        ready: checks of /readyz: partitions assigned and recovered, ledger reachable, clock trusted.
        confirm_clock: what POST /confirm-clock does.
    """

    def __init__(
        self, listen: tuple[str, int], healthy: Checks, ready: Checks, confirm_clock: Callable[[], None]
    ) -> None:
        class Handler(BaseHTTPRequestHandler):
            server_version = "evertally"
            sys_version = ""
            timeout = 10

            def do_GET(self) -> None:
                checks = {"/healthz": healthy, "/readyz": ready}.get(self.path)
                self._answer(404, {}) if checks is None else self._check(checks())

            def do_POST(self) -> None:
                if self.path != "/confirm-clock":
                    self._answer(404, {})
                    return
                if (
                    "Origin" in self.headers
                ):  # a browser says it: any page could send this in an operator's name
                    self._answer(403, {"clock": False})
                    return
                confirm_clock()
                self._answer(200, {"clock": True})

            def _check(self, found: Mapping[str, bool]) -> None:
                self._answer(200 if all(found.values()) else 503, found)

            def _answer(self, status: int, body: Mapping[str, bool]) -> None:
                data = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: object) -> None:
                """Probes come every few seconds: they are not logged."""

        try:
            self._server = BoundedServer(*listen, Handler)
        except OSError as error:
            raise InvalidParameter(
                "health.listen", f"{listen[0]}:{listen[1]}", f"a free address ({error.strerror})"
            ) from None
        self.port: Final = int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, name="health", daemon=True)

    def start(self) -> None:
        """Serve on a thread."""
        self._thread.start()

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
