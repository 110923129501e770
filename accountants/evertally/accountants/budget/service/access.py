"""From a request to a principal: a bearer token, or the certificate that TLS has verified."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from starlette.types import Scope as AsgiScope

from evertally.accountants.budget.service.grants import Principal
from evertally.accountants.budget.service.problems import Problem, Refusal
from evertally.accountants.budget.service.tokens import Credentials, TokenStore

__all__ = ["CERTIFICATE_CN", "PRINCIPAL", "Access", "Workers", "header"]

T = TypeVar("T")
PRINCIPAL: Final = "evertally.principal"
CERTIFICATE_CN: Final = "evertally.certificate_cn"
_FRESH_S: Final = 1.0


class Workers:
    """Threads that wait for the ledger, and a few apart for accountants that compute for seconds."""

    def __init__(self, threads: int) -> None:
        self._waiting: Final = ThreadPoolExecutor(threads, "ledger")
        self._computing: Final = ThreadPoolExecutor(2, "accountant")

    async def run(self, work: Callable[[], T], *, heavy: bool = False) -> T:
        """Run blocking work; it is finished even when the caller goes away."""
        pool = self._computing if heavy else self._waiting
        return await asyncio.get_running_loop().run_in_executor(pool, work)

    def close(self) -> None:
        """Wait for what runs, then stop."""
        self._waiting.shutdown(wait=True)
        self._computing.shutdown(wait=True, cancel_futures=True)


class Access:
    """Authenticates against a snapshot of the credentials that is never older than a second."""

    def __init__(self, tokens: TokenStore, workers: Workers, *, certificates: bool) -> None:
        self._tokens: Final = tokens
        self._workers: Final = workers
        self._certificates: Final = certificates
        self._snapshot: Credentials | None = None
        self._read_at = 0.0
        self._refreshing: Final = asyncio.Lock()

    async def of_request(self, scope: AsgiScope) -> Principal:
        """The principal of a request. Refuses with 401; 503 where the ledger cannot be read."""
        credentials = await self.credentials()
        if self._certificates:
            found = credentials.of_certificate(str(scope.get(CERTIFICATE_CN, "")), _now_ms())
        else:
            kind, _, presented = header(scope, b"authorization").partition(" ")
            known = credentials.of_token(presented, _now_ms()) if kind.lower() == "bearer" else None
            found = None if known is None else known[1]
        if found is None:
            challenge = {} if self._certificates else {"WWW-Authenticate": 'Bearer realm="evertally"'}
            way = "a client certificate" if self._certificates else "`Authorization: Bearer TOKEN`"
            detail = f"no valid credential came with the request; it comes as {way}"
            raise Refusal(Problem("unauthorized", detail, headers=challenge))
        return found

    async def of_login(self, presented: str) -> tuple[str, Principal] | None:
        """(token id, principal) of a token typed into the login form."""
        return (await self.credentials()).of_token(presented, _now_ms())

    async def of_session(self, token_id: str) -> Principal | None:
        """The principal of a session's token, None once it was revoked or has expired."""
        return (await self.credentials()).of_id(token_id, _now_ms())

    async def credentials(self) -> Credentials:
        """The snapshot, read again where it is older than a second."""
        if self._snapshot is None or time.monotonic() - self._read_at > _FRESH_S:
            async with self._refreshing:
                if self._snapshot is None or time.monotonic() - self._read_at > _FRESH_S:
                    started = time.monotonic()
                    self._snapshot = await self._workers.run(self._tokens.snapshot)
                    self._read_at = started
        return self._snapshot


def header(scope: AsgiScope, wanted: bytes) -> str:
    """A request header's value, "" where it is absent or given twice."""
    values = [value for key, value in scope["headers"] if key == wanted]
    return values[0].decode("latin-1").strip() if len(values) == 1 else ""


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
