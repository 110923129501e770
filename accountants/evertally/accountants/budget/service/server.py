"""One service process: uvicorn with TLS, certificates handed to the application, and a graceful drain."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import uvicorn
from starlette.types import ASGIApp, Receive, Send
from starlette.types import Scope as AsgiScope
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from evertally.accountants.budget.ledger import LedgerStore
from evertally.accountants.budget.service.access import CERTIFICATE_CN
from evertally.accountants.budget.service.app import create_app
from evertally.accountants.budget.service.guard import Guard
from evertally.accountants.budget.service.problems import MEDIA_TYPE, Problem
from evertally.accountants.budget.service.settings import ServiceSettings
from evertally.errors import InvalidParameter, ServiceUnavailable

__all__ = ["serve_ledger"]

_HEADER_BYTES_MAX: Final = 16 * 1024
_LONG_HEAD: Final = f"the request's head is longer than {_HEADER_BYTES_MAX} bytes"
_KEEP_ALIVE_S: Final = 75
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


def serve_ledger(
    ledger: LedgerStore,
    location: str | Path,
    settings: ServiceSettings,
    started: Callable[[str], None] = lambda _: None,
) -> None:
    """Serve until SIGTERM or SIGINT, finish what is in flight, close the ledger and return.

    Args:
        ledger: an open ledger; it is closed at the end.
        location: where the ledger is, for the service's own tables.
        settings: limits and doors.
        started: called with the service's address once it listens.

    Raises:
        InvalidParameter: certificate files that cannot be used.
        ServiceUnavailable: the address cannot be bound.
    """
    guard, state = create_app(ledger, location, settings)
    try:
        server = _Server(_config(guard, settings), guard, started)
        with (
            contextlib.suppress(KeyboardInterrupt),
            asyncio.Runner(loop_factory=server.config.get_loop_factory()) as runner,
        ):
            runner.run(server.serve())
    finally:
        state.close()
    if not server.started:
        raise ServiceUnavailable(
            f"{settings.host} port {settings.port} cannot be bound; free it, or give another --host or --port"
        )


class _Server(uvicorn.Server):
    """A server that says where it listens, refuses new requests while it drains, and exits with 0."""

    def __init__(self, config: uvicorn.Config, guard: Guard, announce: Callable[[str], None]) -> None:
        super().__init__(config)
        self._guard = guard
        self._announce = announce

    async def startup(self, sockets: Any = None) -> None:
        try:
            await super().startup(sockets)
        except SystemExit:
            return  # the address is taken; `started` stays False
        port = self.servers[0].sockets[0].getsockname()[1]
        host = f"[{self.config.host}]" if ":" in self.config.host else self.config.host
        self._announce(f"{'https' if self.config.is_ssl else 'http'}://{host}:{port}")

    async def main_loop(self) -> None:
        if self.started:
            await super().main_loop()

    async def shutdown(self, sockets: Any = None) -> None:
        self._guard.drain()
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        # the base class raises the signal again at the end; a drained service has done what it was told
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            for number in _SIGNALS:
                loop.remove_signal_handler(number)


class _Protocol(HttpToolsProtocol):
    """HTTP/1.1 that hands the client certificate's name on, bounds heads, answers garbage with a problem."""

    _in_head = True
    _head_bytes = 0
    _kept_bytes = 0

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        certificate = transport.get_extra_info("peercert")
        if certificate:
            self.app = _named(self.app, _common_name(certificate))

    def data_received(self, data: bytes) -> None:
        self._head_bytes += len(data)  # counts from 0 again at every end of a head or message
        super().data_received(data)
        if self._in_head and self._head_bytes > _HEADER_BYTES_MAX and not self.transport.is_closing():
            self.send_400_response(_LONG_HEAD)

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_head:
            return  # trailers say nothing here
        super().on_header(name, value)
        self._kept_bytes += len(name) + len(value)
        if self._kept_bytes + len(self.url) > _HEADER_BYTES_MAX:
            raise ValueError(_LONG_HEAD)

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        self._in_head, self._head_bytes = False, 0

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._in_head, self._head_bytes, self._kept_bytes = True, 0, 0

    def send_400_response(self, msg: str) -> None:
        cycle = self.cycle
        waits = cycle is None or cycle.response_complete or (cycle.more_body and not cycle.response_started)
        if waits and not self.pipeline:  # else it would be read as another request's answer
            body = Problem("malformed_request", msg, allowed="HTTP/1.1").body()
            head = (
                f"HTTP/1.1 400 Bad Request\r\ncontent-type: {MEDIA_TYPE}\r\n"
                f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
            )
            self.transport.write(head.encode() + body)
        self.transport.close()


def _config(guard: Guard, settings: ServiceSettings) -> uvicorn.Config:
    tls: dict[str, Any] = {}
    if settings.tls_cert:
        tls = {"ssl_certfile": settings.tls_cert, "ssl_keyfile": settings.tls_key}
    if settings.client_ca:
        tls |= {"ssl_ca_certs": settings.client_ca, "ssl_cert_reqs": ssl.CERT_REQUIRED}
    config = uvicorn.Config(
        guard,
        host=settings.host,
        port=settings.port,
        loop="auto",
        http=_Protocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=settings.drain_timeout_s,
        **tls,
    )
    try:
        config.load()
    except (OSError, ssl.SSLError) as error:
        raise InvalidParameter(
            "tls", type(error).__name__, "readable PEM files that belong together"
        ) from None
    if config.ssl is not None:
        config.ssl.minimum_version = ssl.TLSVersion.TLSv1_2
    return config


def _named(app: Any, common_name: str) -> ASGIApp:
    async def named(scope: AsgiScope, receive: Receive, send: Send) -> None:
        scope[CERTIFICATE_CN] = common_name
        await app(scope, receive, send)

    return named


def _common_name(certificate: dict[str, Any]) -> str:
    """The one common name of a verified certificate's subject, "" where there is none or several."""
    names = [value for part in certificate.get("subject", ()) for key, value in part if key == "commonName"]
    return str(names[0]) if len(names) == 1 else ""
