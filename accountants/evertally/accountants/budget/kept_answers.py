"""First answers by idempotency key, each under an HMAC: a retry gets the same bytes and is charged nothing.

An answer that somebody else than the ledger wrote would be a grant that nothing paid for, so that one
which does not fit its HMAC, or whose charge is gone, is refused where it is read.
"""

from __future__ import annotations

import hashlib
import json
from typing import Final

from evertally.accountants.budget import charge_states
from evertally.accountants.budget.chain import check_row, seal_row
from evertally.accountants.budget.charges import ChargeRequest
from evertally.accountants.budget.sql import Transaction, blob
from evertally.errors import IntegrityError, InvalidParameter

__all__ = ["altered", "content_digest", "find", "keep", "seal_all"]

_COLUMNS: Final = "principal, idempotency_key, digest, body, mac"
_CHUNK: Final = 10_000


def content_digest(body: str, ttl_ms: int | None) -> bytes:
    """What a retry has to repeat: the request's body and how long it reserves, None for a final charge."""
    return hashlib.sha256(f"{body}|{ttl_ms}".encode()).digest()


def find(tx: Transaction, key: bytes, request: ChargeRequest, content: bytes) -> bytes | None:
    """The bytes that a request of this content was answered with before, None where it is new.

    Raises InvalidParameter where its idempotency key was used for another request.
    """
    if not request.idempotency_key:
        return None
    found = tx.rows(
        f"SELECT {_COLUMNS} FROM answer WHERE principal = ? AND idempotency_key = ?",  # noqa: S608  # nosec B608  # literals
        *(request.principal, request.idempotency_key),
    )
    if not found:
        return None
    _check(key, found[0])
    digest, body = blob(found[0][2]), blob(found[0][3])
    if digest != content:
        raise InvalidParameter(
            "idempotency_key", request.idempotency_key, "a new key: this one was used for another request"
        )
    if charge_states.read(tx, key, json.loads(body)["charge_id"]) is None:
        raise IntegrityError(f"the charge that answered {request.idempotency_key} is not in the ledger")
    return body


def keep(tx: Transaction, key: bytes, request: ChargeRequest, content: bytes, body: bytes) -> None:
    """Bind an answer to the request's principal, idempotency key and content; nothing without a key."""
    if not request.idempotency_key:
        return
    fields = request.principal, request.idempotency_key, content, body
    tx.run(
        f"INSERT INTO answer ({_COLUMNS}) VALUES (?, ?, ?, ?, ?)",  # noqa: S608  # nosec B608  # literals
        *(*fields, _mac(key, *fields)),
    )


def altered(tx: Transaction, key: bytes) -> tuple[int, list[str]]:
    """(answers, problems): each kept answer that no longer fits its HMAC, in words."""
    problems: list[str] = []
    (total,) = tx.rows("SELECT count(*) FROM answer")[0]
    count, last = 0, ("", "")
    while rows := tx.rows(
        f"SELECT {_COLUMNS} FROM answer WHERE (principal, idempotency_key) > (?, ?)"  # noqa: S608  # nosec B608  # literals
        " ORDER BY principal, idempotency_key LIMIT ?",
        *(*last, _CHUNK),
    ):
        for row in rows:
            try:
                _check(key, row)
            except IntegrityError as error:
                problems.append(str(error))
        count, last = count + len(rows), (rows[-1][0], rows[-1][1])
        if count > total:  # a damaged table can lead back to where it has been
            raise IntegrityError("the kept answers are in no order: their table is damaged")
    return count, problems


def seal_all(tx: Transaction, key: bytes) -> None:
    """Give the rows of an older version their HMACs."""
    for principal, name, digest, body in tx.rows(
        "SELECT principal, idempotency_key, digest, body FROM answer"
    ):
        tx.run(
            "UPDATE answer SET mac = ? WHERE principal = ? AND idempotency_key = ?",
            *(_mac(key, principal, name, blob(digest), blob(body)), principal, name),
        )


def _check(key: bytes, row: tuple[object, ...]) -> None:
    principal, name, digest, body, mac = row
    what = f"the answer kept for {name}"
    check_row(key, b"answer", blob(mac or b""), what, principal, name, blob(digest), blob(body))


def _mac(key: bytes, principal: str, name: str, digest: bytes, body: bytes) -> bytes:
    return seal_row(key, b"answer", principal, name, digest, body)
