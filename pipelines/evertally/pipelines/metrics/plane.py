"""A small HTTP server for one plane: a few fixed paths, answered from memory.

Each route is a function that returns finished bytes at once; nothing a client does can start work on a
ledger or delay a release. Connections have a limit and a timeout, so that slow clients cannot pile up.
"""

from __future__ import annotations

import hmac
import ssl
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler
from typing import Any, Final, NamedTuple

from evertally.errors import InvalidParameter
from evertally.pipelines.metrics.bounded_server import BoundedServer
from evertally.pipelines.metrics.listen import Listen
from evertally.pipelines.metrics.operators import OperatorMetrics
from evertally.validation import is_loopback

__all__ = ["METRICS_TYPE", "Answer", "PlaneServer", "Route", "internal_plane", "text_answer"]

METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_IDLE_S: Final = 60.0
_HANDSHAKE_S: Final = 10.0


class Answer(NamedTuple):
    """A finished answer; `packed` is the same body compressed with gzip, empty where it does not pay."""

    status: int
    content_type: str
    body: bytes
    packed: bytes = b""


Route = Callable[[], Answer]


def text_answer(status: int, text: str) -> Answer:
    """A short answer in plain text."""
    return Answer(status, "text/plain; charset=utf-8", text.encode())


class PlaneServer:
    """Serves a plane on threads of its own.

    Args:
        listen: address and doors.
        routes: what each path answers.
        open_paths: paths that need no token (probes).
        check_host: refuse names that are not loopback: a web page may rebind its own name to 127.0.0.1.

    Raises:
        InvalidParameter: an address that is taken, a token or certificate file that cannot be used.
    """

    def __init__(
        self,
        listen: Listen,
        routes: Mapping[str, Route],
        *,
        open_paths: tuple[str, ...] = ("/healthz", "/readyz"),
        check_host: bool = False,
    ) -> None:
        handler = type(
            "Handler",
            (_Handler,),
            {
                "routes": dict(routes),
                "open_paths": open_paths,
                "token": listen.read_token(),
                "check_host": check_host,
            },
        )
        try:
            self._server: Final = _Server(listen, handler)
        except OSError as error:
            where = f"{listen.host}:{listen.port}"
            raise InvalidParameter("listen", where, f"a free address ({error.strerror})") from None
        self.port: Final = int(self._server.server_address[1])
        host = f"[{listen.host}]" if ":" in listen.host else listen.host
        scheme = "http" if listen.tls_cert is None else "https"
        self.address: Final = f"{scheme}://{host}:{self.port}"
        self._thread: Final = threading.Thread(
            target=self._server.serve_forever, name=f"plane-{self.port}", daemon=True
        )

    def start(self) -> None:
        """Serve from now on."""
        self._thread.start()

    def close(self) -> None:
        """Stop serving; once it is started."""
        self._server.shutdown()
        self._server.server_close()


def internal_plane(listen: Listen, metrics: OperatorMetrics) -> PlaneServer:
    """The operators' plane of a process: /internal/metrics and /healthz.

    Raises:
        InvalidParameter: doors that would show exact counts to a network; see `Listen.require_private`.
    """
    listen.require_private()
    return PlaneServer(
        listen,
        {
            "/internal/metrics": lambda: Answer(200, METRICS_TYPE, metrics.text()),
            "/healthz": lambda: text_answer(200, "ok\n"),
        },
        check_host=listen.local and listen.token_file is None,
    )


class _Server(BoundedServer):
    def __init__(self, listen: Listen, handler: type[BaseHTTPRequestHandler]) -> None:
        self._tls = listen.tls_context()
        super().__init__(listen.host, listen.port, handler)

    def finish_request(self, request: Any, client_address: Any) -> None:
        if self._tls is None:
            super().finish_request(request, client_address)
            return
        request.settimeout(_HANDSHAKE_S)
        with self._tls.wrap_socket(request, server_side=True) as secured:
            super().finish_request(secured, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "evertally"
    sys_version = ""
    timeout = _IDLE_S
    wbufsize = -1  # head and body leave together: two small writes would wait 40 ms for an acknowledgement
    disable_nagle_algorithm = True
    error_message_format = "%(code)d\n"
    error_content_type = "text/plain; charset=utf-8"
    routes: Mapping[str, Route]
    open_paths: tuple[str, ...]
    token: bytes | None
    check_host: bool

    def do_GET(self) -> None:
        self._answer(self._choose())

    def do_HEAD(self) -> None:
        self._answer(self._choose())

    def _choose(self) -> Answer:
        path = self.path.partition("?")[0]
        if self.check_host and not is_loopback(_host_name(self.headers.get("Host", ""))):
            return text_answer(421, "this address answers loopback names only\n")
        if self.token is not None and path not in self.open_paths:
            scheme, _, given = self.headers.get("Authorization", "").partition(" ")
            if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), self.token):
                return text_answer(401, "a bearer token is needed\n")
        route = self.routes.get(path)
        if route is not None:
            return route()
        known = [known for known in self.routes if not known.startswith("/static/")]
        return text_answer(404, f"not found; here is {', '.join(sorted(known))}\n")

    def _answer(self, answer: Answer) -> None:
        accepted = {
            word.partition(";")[0].strip() for word in self.headers.get("Accept-Encoding", "").split(",")
        }
        body = answer.packed if answer.packed and "gzip" in accepted else answer.body
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(body)))
        if body is answer.packed:
            self.send_header("Content-Encoding", "gzip")
        if answer.status == 401:
            self.send_header("WWW-Authenticate", 'Bearer realm="evertally"')
        self.send_header("Cache-Control", "no-store")
        self.send_header("Vary", "Accept-Encoding")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Content-Security-Policy", "default-src 'none'; style-src 'self'; img-src 'self'")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def handle(self) -> None:
        try:
            super().handle()
        except (ConnectionError, TimeoutError, ssl.SSLError):
            self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        """Scrapes come every few seconds: they are not logged."""


def _host_name(header: str) -> str:
    """The name in a Host header, without its port.

    >>> _host_name("localhost:9465"), _host_name("[::1]:9465"), _host_name("evil.example")
    ('localhost', '::1', 'evil.example')
    """
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.partition(":")[0]
