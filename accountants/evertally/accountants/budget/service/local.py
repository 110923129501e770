"""Doors that are open to local callers only: address and requested name are both loopback."""

from __future__ import annotations

from starlette.requests import Request

from evertally.accountants.budget.service.problems import Problem, Refusal
from evertally.validation import is_loopback

__all__ = ["check_local"]


def check_local(request: Request) -> None:
    """Refuse foreign names (a web page that rebinds its DNS name to loopback) and forwarded requests."""
    host = (
        request.headers.get("host", "").rpartition("]")[0].lstrip("[")
        or request.headers.get("host", "").partition(":")[0]
    )
    forwarded = "forwarded" in request.headers or "x-forwarded-for" in request.headers
    if forwarded or not is_loopback(host):
        raise Refusal(
            Problem(
                "misdirected_request",
                "without a login this is shown to local callers only; behind a proxy use --page login",
                "host",
                host[:64],
                "localhost, 127.0.0.1 or [::1]",
            )
        )
