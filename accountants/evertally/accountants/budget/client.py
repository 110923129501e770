"""A typed client of the budget service: the ledger's own types and errors, over HTTP.

A charge always travels with an idempotency key, so that a retry can never be charged twice; everything
else that is retried changes nothing when it is repeated.
"""

from __future__ import annotations

import dataclasses
import json
import os
import ssl
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self, TypeVar
from urllib.parse import quote

import httpx

from evertally.accountants.budget.charges import ChargeRequest
from evertally.accountants.budget.ledger import ChargeRow, Receipt
from evertally.accountants.budget.lines import line_from_json
from evertally.accountants.budget.loss import Line
from evertally.accountants.budget.scopes import Caps, Scope, ScopeStatus
from evertally.accountants.budget.training import TrainingLine
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
from evertally.validation import integer, positive_real

__all__ = ["BudgetClient", "LeaseGrant"]

A = TypeVar("A")
R = TypeVar("R")
_RETRIED: Final = (429, 502, 503, 504)
_WAIT_MAX_S: Final = 5.0
_PAGE: Final = 1000
_COMPUTED_S: Final = 300.0


@dataclass(frozen=True, slots=True)
class LeaseGrant:
    """The right to run a planned training run.

    Attributes:
        lease_id: names the lease; also the id of the charge that pays for it.
        scope: the scope that pays.
        status: "reserved", "active" or "closed".
        epoch: fencing epoch under which this holder works.
        steps_max: steps of the planned run.
        steps_done: highest number of steps reported.
        expires_ms: when the reservation lapses unless it is renewed; 0 once active.
        line: the run that is charged; `line.mechanism()` is the strategy and participation it has to use.
    """

    lease_id: str
    scope: str
    status: str
    epoch: int
    steps_max: int
    steps_done: int
    expires_ms: int
    line: TrainingLine


class BudgetClient:
    """Asks one budget service. May be used from many threads; close it, or use it in a `with`.

    Every method raises what the ledger itself would raise (BudgetExceeded, InvalidParameter,
    UnsupportedMechanism, Fenced, ...), and ServiceUnavailable when no usable answer came in time.

    Args:
        address: for example "https://budget.internal:8400".
        token: bearer token; "" where a certificate is used.
        ca: PEM file of the service's CA; the system's CAs where not given.
        certificate: PEM files (certificate, key) for mTLS.
        timeout_s: for connecting and for each answer; one that an accountant computes (a training line's)
            may take five minutes, because asking again would only compute it twice.
        retries_max: further tries after the first.
        backoff_s: wait before the first retry; doubles with each, up to 5 s.
    """

    def __init__(  # nosec B107  # an empty text is no token
        self,
        address: str,
        token: str = "",
        *,
        ca: str = "",
        certificate: tuple[str, str] | None = None,
        timeout_s: float = 10.0,
        retries_max: int = 5,
        backoff_s: float = 0.05,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        integer("retries_max", retries_max, low=0, high=100)
        context = ssl.create_default_context(cafile=ca or None)
        if certificate is not None:
            context.load_cert_chain(*certificate)
        self._http: Final = httpx.Client(
            base_url=address,
            headers={"Authorization": f"Bearer {token}"} if token else {},
            timeout=positive_real("timeout_s", timeout_s),
            verify=context,
            trust_env=False,
        )
        self._computed: Final = httpx.Timeout(max(timeout_s, _COMPUTED_S), connect=timeout_s)
        self._retries_max: Final = retries_max
        self._backoff_s: Final = positive_real("backoff_s", backoff_s)
        self._sleep: Final = sleep

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: object, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections; again is a no-op."""
        self._http.close()

    def create_scope(self, scope: Scope) -> ScopeStatus:
        """Create a scope; the equal definition again is a no-op."""
        return _status(self._json("POST", "/v1/scopes", json.loads(scope.definition())))

    def scope_status(self, name: str) -> ScopeStatus:
        """Definition, cap and spend of a scope. Raises InvalidParameter for one you cannot see."""
        return _status(self._json("GET", f"/v1/scopes/{quote(name, safe='')}"))

    def scopes(self) -> list[ScopeStatus]:
        """Every scope you may read, by name."""
        return [_status(said) for said in self._json("GET", "/v1/scopes")]

    def quote(self, request: ChargeRequest) -> Receipt:
        """Dry run: what `charge` would answer now."""
        return _receipt(self._send("POST", "/v1/quote", json.loads(request.body())))

    def reserve(self, request: ChargeRequest, ttl_ms: int) -> Receipt:
        """Admit a charge that lapses unless `commit_charge` comes within ttl_ms. Raises BudgetExceeded."""
        return self._charge(request, {"mode": "reserve", "ttl_ms": ttl_ms})

    def charge(self, request: ChargeRequest) -> Receipt:
        """Reserve and commit at once. Raises BudgetExceeded."""
        return self._charge(request, {"mode": "commit"})

    def commit_charge(self, charge_id: str) -> Receipt:
        """Make your reservation final, BEFORE its noise is drawn. Raises Fenced when it has lapsed."""
        return _receipt(self._send("POST", f"/v1/charges/{quote(charge_id, safe='')}/commit"))

    def expire_charge(self, charge_id: str) -> bool:
        """Give your undrawn reservation back at once; False where it had lapsed before.

        Raises InvalidParameter for a committed charge: nothing of it is refunded.
        """
        return bool(self._json("POST", f"/v1/charges/{quote(charge_id, safe='')}/expire")["expired"])

    def charges(self, scope: str, after_seq: int = 0) -> Iterator[ChargeRow]:
        """History of a scope in order, fetched page by page."""
        while True:
            where = {"scope": scope, "after_seq": str(after_seq), "limit": str(_PAGE)}
            rows = self._json("GET", "/v1/charges", where=where)
            for said in rows:
                row = ChargeRow(scope=scope, **said)
                if row.seq <= after_seq:
                    raise ServiceUnavailable("the budget service answered a history in no order")
                after_seq = row.seq
                yield row
            if len(rows) < _PAGE:
                return

    def calibrate(self, scope: str, draft: Mapping[str, object], units: int | None = None) -> Line:
        """The line with the least noise that fits what remains (or `units` of it).

        Args:
            scope: the scope that is to pay.
            draft: a line's `to_json()` without its noise (q, sigma, noise_multiplier).
            units: spend at most this much of the scope's main unit.
        """
        wanted = {"scope": scope, "line": dict(draft), "units": units}
        return line_from_json(self._json("POST", "/v1/calibrate", wanted)["line"])

    def streams(self) -> list[dict[str, Any]]:
        """Public facts of every stream you may read."""
        return list(self._json("GET", "/v1/streams"))

    def open_lease(self, request: ChargeRequest, ttl_ms: int, manifest_digest: str = "") -> LeaseGrant:
        """Reserve a planned training run and become its first holder. Raises BudgetExceeded."""
        more = {"ttl_ms": ttl_ms, "manifest_digest": manifest_digest}
        body = {**json.loads(request.body()), **more}
        key = request.idempotency_key or uuid.uuid4().hex
        return _lease(_object(self._send("POST", "/v1/leases", body, key=key)))

    def read_lease(self, lease_id: str) -> LeaseGrant:
        """Where a lease of yours stands; changes nothing."""
        return _lease(self._json("GET", f"/v1/leases/{quote(lease_id, safe='')}"))

    def acquire_lease(self, lease_id: str, manifest_digest: str = "") -> LeaseGrant:
        """Take a lease over under a new epoch; the former holder is refused from now on."""
        return self._on_lease(lease_id, "acquire", {"manifest_digest": manifest_digest})

    def renew_lease(self, lease_id: str, epoch: int, steps_done: int = 0) -> LeaseGrant:
        """Confirm that the lease is still yours; the first call commits its budget. Raises Fenced."""
        return self._on_lease(lease_id, "renew", {"epoch": epoch, "steps_done": steps_done})

    def close_lease(self, lease_id: str, epoch: int) -> LeaseGrant:
        """End a lease; its budget returns only where it was never renewed. Raises Fenced."""
        return self._on_lease(lease_id, "close", {"epoch": epoch})

    def _charge(self, request: ChargeRequest, how: Mapping[str, object]) -> Receipt:
        body = {**json.loads(request.body()), **how}
        key = request.idempotency_key or uuid.uuid4().hex
        return _receipt(self._send("POST", "/v1/charges", body, key=key))

    def _on_lease(self, lease_id: str, verb: str, body: Mapping[str, object]) -> LeaseGrant:
        return _lease(self._json("POST", f"/v1/leases/{quote(lease_id, safe='')}/{verb}", body))

    def _json(
        self, method: str, path: str, body: object = None, *, where: Mapping[str, str] | None = None
    ) -> Any:
        return _object(self._send(method, path, body, where=where))

    def _send(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        key: str = "",
        where: Mapping[str, str] | None = None,
    ) -> httpx.Response:
        headers = {"Idempotency-Key": key} if key else {}
        patience = self._computed if _is_training(body) else self._http.timeout
        content = b"" if body is None else json.dumps(body, allow_nan=False).encode()
        if content:
            headers["Content-Type"] = "application/json"
        tries = self._retries_max + 1
        for attempt in range(tries):
            wait_s = self._backoff_s * 2**attempt
            try:
                answer = self._http.request(
                    method, path, content=content, headers=headers, params=where, timeout=patience
                )
            except httpx.TransportError as error:
                failure: EvertallyError = ServiceUnavailable(
                    f"the budget service at {self._http.base_url} gave no answer: {type(error).__name__}"
                )
            else:
                if answer.is_success:
                    return answer
                failure = _error_of(answer)
                if answer.status_code not in _RETRIED:
                    raise failure
                wait_s = max(wait_s, _retry_after_s(answer))
            if attempt + 1 < tries:
                self._sleep(min(_WAIT_MAX_S, wait_s) * (1.0 + int.from_bytes(os.urandom(2)) / 2**17))
        raise failure


def _error_of(answer: httpx.Response) -> EvertallyError:
    """Our error for a problem document."""
    try:
        said = answer.json()
        code, detail = str(said["code"]), str(said["detail"])
        if code == "budget_exceeded":
            return BudgetExceeded(said["requested"], said["spent"], said["cap"], said["unit"])
    except (ValueError, KeyError, TypeError):
        return ServiceUnavailable(f"the budget service answered {answer.status_code} without a problem")
    match code:
        case "fenced":
            return Fenced(detail)
        case "unsupported_mechanism":
            return UnsupportedMechanism(detail)
        case "integrity_error":
            return IntegrityError(detail)
        case "storage_full":
            return StorageFull(detail)
        case _ if answer.status_code in _RETRIED or answer.is_server_error:
            return ServiceUnavailable(f"the budget service says {code}: {detail}")
        case _:
            return InvalidParameter(said.get("field") or code, said.get("received", ""), detail)


def _is_training(body: object) -> bool:
    line = body.get("line") if isinstance(body, Mapping) else None
    return isinstance(line, Mapping) and line.get("kind") == TrainingLine.kind


def _retry_after_s(answer: httpx.Response) -> float:
    told = answer.headers.get("Retry-After", "")
    return float(told) if told.isascii() and told.isdigit() and len(told) < 6 else 0.0


def _object(answer: httpx.Response) -> Any:
    try:
        return answer.json()
    except ValueError:
        raise ServiceUnavailable("the budget service answered something that is not JSON") from None


def _usable(read: Callable[[A], R]) -> Callable[[A], R]:
    """What reads an answer; JSON of another kind is no usable answer."""

    def checked(answer: A) -> R:
        try:
            return read(answer)
        except EvertallyError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError):
            raise ServiceUnavailable(
                "the budget service answered something else than was asked for"
            ) from None

    return checked


@_usable
def _receipt(answer: httpx.Response) -> Receipt:
    said = _object(answer)
    return Receipt(
        *(said["charge_id"], said["status"], said["main"], said["epsilon"], said["delta"]),
        said["expires_ms"],
        answer.content,
    )


@_usable
def _status(said: Mapping[str, Any]) -> ScopeStatus:
    fields = {field.name: said[field.name] for field in dataclasses.fields(Scope)}
    scope = Scope(**{**fields, "disjoint": tuple(fields["disjoint"])})
    return ScopeStatus(
        scope, Caps(**said["cap"]), Caps(**said["spent"]), said["rows"], bytes.fromhex(said["chain"])
    )


@_usable
def _lease(said: Mapping[str, Any]) -> LeaseGrant:
    line = line_from_json(said["line"])
    if not isinstance(line, TrainingLine):
        raise ServiceUnavailable("the budget service answered a lease without a training run")
    plain = {field.name: said[field.name] for field in dataclasses.fields(LeaseGrant) if field.name != "line"}
    return LeaseGrant(line=line, **plain)
