"""Problem details (RFC 9457): every refusal names a stable code, the field, what came and what is allowed."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from starlette.responses import Response

from evertally.errors import (
    BudgetExceeded,
    EvertallyError,
    Fenced,
    IntegrityError,
    InvalidParameter,
    ServiceUnavailable,
    StorageFull,
    UnsupportedMechanism,
)

__all__ = ["CODES", "MEDIA_TYPE", "Problem", "Refusal", "problem_of", "problem_of_body", "response_of"]

MEDIA_TYPE: Final = "application/problem+json"
TYPE_PREFIX: Final = "urn:evertally:problem:"
_TEXT_MAX: Final = 64
_TAGS: Final = frozenset(
    {"counter", "gaussian", "windows", "key_selection", "training", "body", "query", "path", "header"}
)
"""Parts of a schema's place that are not names of fields."""

CODES: Final[Mapping[str, tuple[int, str]]] = {
    "malformed_request": (400, "The request cannot be read"),
    "unauthorized": (401, "A valid token or certificate is needed"),
    "forbidden": (403, "This verb is not granted"),
    "not_found": (404, "There is no such thing, or none that you may see"),
    "method_not_allowed": (405, "The method does not exist here"),
    "request_timeout": (408, "The body did not arrive in time"),
    "budget_exceeded": (409, "The budget refuses this charge"),
    "fenced": (409, "Another holder has taken over, or the reservation has expired"),
    "scope_exists": (409, "A scope of this name has another definition"),
    "body_too_large": (413, "The body is too large"),
    "unsupported_media_type": (415, "The body must be JSON"),
    "misdirected_request": (421, "This page answers to loopback names only"),
    "invalid_parameter": (422, "A value is not allowed"),
    "idempotency_key_reused": (422, "The idempotency key belongs to another request"),
    "unsupported_mechanism": (422, "No valid privacy bound is known for this mechanism"),
    "rate_limited": (429, "Too many requests"),
    "internal_error": (500, "The service failed"),
    "ledger_unavailable": (503, "The ledger cannot be reached; nothing was granted"),
    "storage_full": (503, "The ledger's disk refuses writes; nothing was granted"),
    "integrity_error": (503, "The ledger contradicts itself; nothing was granted"),
    "draining": (503, "The service is shutting down"),
}
"""Every code with its status and title. Codes are stable; details are for people and may change."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One refusal.

    Attributes:
        code: a key of `CODES`.
        detail: a sentence for people.
        field: dotted name of the field at fault, "" where the request as a whole is.
        received: how the received value reads, cut to 64 characters.
        allowed: what would have been accepted.
        extra: further members, for example the amounts of a refused charge.
        headers: response headers that belong to the refusal.
    """

    code: str
    detail: str
    field: str = ""
    received: str = ""
    allowed: str = ""
    extra: Mapping[str, object] = dataclasses.field(default_factory=dict)
    headers: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def status(self) -> int:
        """HTTP status of the code."""
        return CODES[self.code][0]

    def body(self) -> bytes:
        """The JSON document; ASCII, so that no received text can break it."""
        members: dict[str, object] = {
            "type": TYPE_PREFIX + self.code,
            "title": CODES[self.code][1],
            "status": self.status,
            "detail": self.detail,
            "code": self.code,
            "field": self.field,
            "received": self.received,
            "allowed": self.allowed,
            **self.extra,
        }
        return json.dumps(members, ensure_ascii=True, allow_nan=False).encode()


class Refusal(Exception):
    """Raised inside the service to answer with a problem."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.code)
        self.problem: Final = problem


def response_of(problem: Problem) -> Response:
    """The problem as an HTTP response."""
    return Response(problem.body(), problem.status, dict(problem.headers), MEDIA_TYPE)


def received_text(value: object) -> str:
    """How a received value reads: scalars as written, containers by their kind only."""
    if value is None or isinstance(value, bool | int | float):
        return repr(value)[:_TEXT_MAX]
    if isinstance(value, str):
        return value[:_TEXT_MAX]
    kinds: dict[type, str] = {dict: "an object", list: "a list", tuple: "a list"}
    return kinds.get(type(value), type(value).__name__)


def problem_of_body(first: Mapping[str, Any]) -> Problem:
    """The problem for the first complaint of a schema about a request."""
    if first["type"] in ("json_invalid", "json_type"):
        return Problem("malformed_request", "the body is not JSON", "body", "", "a JSON object")
    field = ".".join(str(part) for part in first["loc"] if part not in _TAGS)[:256] or "body"
    said = str(first["msg"])
    return Problem("invalid_parameter", said, field, received_text(first.get("input")), said)


def problem_of(error: EvertallyError) -> Problem:
    """The problem that stands for one of our errors."""
    match error:
        case BudgetExceeded():
            amounts = {
                "requested": error.requested,
                "spent": error.spent,
                "cap": error.cap,
                "unit": error.unit,
            }
            room = f"at most {error.cap - error.spent} {error.unit}"
            return Problem("budget_exceeded", str(error), "line", str(error.requested), room, amounts)
        case InvalidParameter(field="idempotency_key"):
            return _of_parameter("idempotency_key_reused", error)
        case InvalidParameter(field="scope" | "charge_id" | "lease_id"):
            return Problem("not_found", "there is no such resource, or none that you may see")
        case InvalidParameter():
            return _of_parameter("invalid_parameter", error)
        case UnsupportedMechanism():
            return Problem("unsupported_mechanism", str(error), "line")
        case Fenced():
            return Problem("fenced", str(error))
        case StorageFull():
            return Problem("storage_full", str(error), headers={"Retry-After": "30"})
        case ServiceUnavailable():
            return Problem("ledger_unavailable", str(error), headers={"Retry-After": "1"})
        case IntegrityError():
            return Problem("integrity_error", "the ledger contradicts itself; its operator must look at it")
        case _:
            return Problem("internal_error", "the service failed; nothing was granted")


def _of_parameter(code: str, error: InvalidParameter) -> Problem:
    return Problem(code, str(error)[:512], error.field, received_text(error.got), error.expected)
