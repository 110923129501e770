"""Logins of the page: a random cookie that stands for a token while the token is valid."""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

__all__ = ["COOKIE", "SESSION_S", "Sessions"]

COOKIE: Final = "evertally_session"
SESSION_S: Final = 12 * 3600
_SESSIONS_MAX: Final = 1000


class Sessions:
    """Sessions of one process, in memory: a restart logs everybody out, a revoked token does so at once."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock: Final = clock
        self._tokens: OrderedDict[str, tuple[str, float]] = OrderedDict()

    def open(self, token_id: str) -> str:
        """A new session for a token that was just presented; the oldest goes when there are too many."""
        while len(self._tokens) >= _SESSIONS_MAX:
            self._tokens.popitem(last=False)
        session = secrets.token_urlsafe(32)
        self._tokens[session] = token_id, self._clock() + SESSION_S
        return session

    def token_id(self, session: str) -> str | None:
        """The token behind a session, None where it is unknown or over."""
        token_id, until = self._tokens.get(session, ("", 0.0))
        if not token_id or self._clock() >= until:
            self._tokens.pop(session, None)
            return None
        return token_id

    def close(self, session: str) -> None:
        """Forget a session."""
        self._tokens.pop(session, None)
