"""What every request passes before any route: drain, authentication, rate, body limits; and the metrics.

It stands outside the framework because a body must not be read for a stranger, a 401 must come before
any other answer, and no exception may leave the service as anything but problem details.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Mapping
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Send
from starlette.types import Scope as AsgiScope

from evertally.accountants.budget.service.access import PRINCIPAL, Access, header
from evertally.accountants.budget.service.limits import RateLimiter
from evertally.accountants.budget.service.problems import Problem, Refusal, problem_of, response_of
from evertally.accountants.budget.service.settings import ServiceSettings
from evertally.accountants.budget.service.telemetry import Telemetry
from evertally.errors import EvertallyError

__all__ = ["Guard"]

_LOG: Final = logging.getLogger("evertally.budget.service")
_API: Final = "/v1"
_IDEMPOTENCY: Final = b"idempotency-key"
_TWO_KEYS: Final = Problem("invalid_parameter", "it binds nothing", "Idempotency-Key", "two", "one key")
_BODY_METHODS: Final = ("POST", "PUT", "PATCH")
_HEADERS: Final = (
    (
        b"content-security-policy",
        b"default-src 'self'; frame-ancestors 'none'; form-action 'self'; base-uri 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)


class Guard:
    """An ASGI application around the routes."""

    def __init__(
        self,
        app: ASGIApp,
        access: Access,
        settings: ServiceSettings,
        telemetry: Telemetry,
        direct: Mapping[tuple[str, str], ASGIApp],
    ) -> None:
        """`direct` answers (method, path) without a search through the routes of `app`."""
        self._app = app
        self._direct = direct
        self._access = access
        self._settings = settings
        self._telemetry = telemetry
        self._limiter = RateLimiter(settings.rate_per_s, settings.burst)
        self.draining = False

    def drain(self) -> None:
        """Refuse every request that begins from now on."""
        self.draining = True
        self._telemetry.draining.set(1)

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        started = time.perf_counter()
        answer = _Answer(send)
        self._telemetry.in_flight.inc()
        try:
            await self._answer(scope, receive, answer)
        finally:
            self._telemetry.in_flight.dec()
            route = getattr(scope.get("route"), "path", "none")
            self._telemetry.requests.labels(route, _method(scope), str(answer.status)).inc()
            self._telemetry.duration.labels(route).observe(time.perf_counter() - started)

    async def _answer(self, scope: AsgiScope, receive: Receive, answer: _Answer) -> None:
        try:
            if self.draining:
                raise Refusal(
                    Problem(
                        "draining",
                        "the service is shutting down; nothing was granted",
                        headers={"Retry-After": "1"},
                    )
                )
            app = self._direct.get((scope["method"], scope["path"]), self._app)
            await app(scope, await self._admitted(scope, receive), answer)
        except Refusal as refusal:
            await self._refuse(scope, receive, answer, refusal.problem)
        except EvertallyError as error:
            await self._refuse(scope, receive, answer, problem_of(error))
        except Exception:
            _LOG.exception("a request failed; nothing was granted by it")
            await self._refuse(
                scope, receive, answer, Problem("internal_error", "the service failed; its log says more")
            )

    async def _admitted(self, scope: AsgiScope, receive: Receive) -> Receive:
        path = scope["path"]
        if path == _API or path.startswith(_API + "/"):
            principal = await self._access.of_request(scope)
            scope[PRINCIPAL] = principal
            wait_s = self._limiter.wait_s(principal.name)
            if wait_s > 0.0:
                allowed = f"{self._settings.rate_per_s:g} requests a second, {self._settings.burst} at once"
                raise Refusal(
                    Problem(
                        "rate_limited",
                        f"too many requests; ask again in {wait_s:.3f} s",
                        allowed=allowed,
                        headers={"Retry-After": str(math.ceil(wait_s))},
                    )
                )
            if sum(key == _IDEMPOTENCY for key, _ in scope["headers"]) > 1:
                raise Refusal(_TWO_KEYS)
            media_type = header(scope, b"content-type").partition(";")[0].strip().lower()
            if scope["method"] in _BODY_METHODS and media_type not in ("application/json", ""):
                raise Refusal(
                    Problem(
                        "unsupported_media_type",
                        "the body must be JSON",
                        "content-type",
                        media_type[:64],
                        "application/json",
                    )
                )
        return await self._bounded(scope, receive)

    async def _bounded(self, scope: AsgiScope, receive: Receive) -> Receive:
        """Read the whole body, however it is framed, and hand it on; refuse it beyond the limit."""
        limit = self._settings.body_bytes_max
        declared = header(scope, b"content-length")
        if declared.isdigit() and int(declared[:19]) > limit:
            raise Refusal(_too_large(limit))
        body = bytearray()
        more = True
        try:
            async with asyncio.timeout(self._settings.body_timeout_s):
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return _replay(b"", receive, disconnected=True)
                    body += message.get("body", b"")
                    if len(body) > limit:
                        raise Refusal(_too_large(limit))
                    more = message.get("more_body", False)
        except TimeoutError:
            raise Refusal(
                Problem(
                    "request_timeout",
                    "the body did not arrive in time",
                    allowed=f"{self._settings.body_timeout_s:g} s",
                    headers={"Connection": "close"},
                )
            ) from None
        return _replay(bytes(body), receive, disconnected=False)

    async def _refuse(self, scope: AsgiScope, receive: Receive, answer: _Answer, problem: Problem) -> None:
        if not answer.status:
            await response_of(problem)(scope, receive, answer)


class _Answer:
    """`send` with the security headers added and the status kept."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.status = 0

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            present = {key for key, _ in message["headers"]}
            message["headers"] = [*message["headers"], *(pair for pair in _HEADERS if pair[0] not in present)]
        await self._send(message)


def _replay(body: bytes, receive: Receive, *, disconnected: bool) -> Receive:
    handed_on = disconnected

    async def again() -> Message:
        nonlocal handed_on
        if handed_on:
            return {"type": "http.disconnect"} if disconnected else await receive()
        handed_on = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


def _too_large(limit: int) -> Problem:
    return Problem(
        "body_too_large",
        f"the body is larger than {limit} bytes",
        "body",
        allowed=f"at most {limit} bytes",
        headers={"Connection": "close"},
    )


def _method(scope: AsgiScope) -> str:
    method = scope["method"]
    return method if method in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS") else "other"
