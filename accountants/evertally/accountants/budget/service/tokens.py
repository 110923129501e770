"""Credentials: bearer tokens kept as hashes, and certificate names mapped to principals.

A token is 256 random bits behind a public id. Only the SHA-256 of the secret is stored; a hash without
salt and stretching is enough because the secret cannot be guessed. The id finds the row, the secret is
compared in constant time.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
from base64 import urlsafe_b64encode
from dataclasses import dataclass, field
from typing import Final

from evertally.accountants.budget.canonical import name
from evertally.accountants.budget.service.grants import Grant, Principal
from evertally.accountants.budget.service.tables import ServiceTables
from evertally.accountants.budget.sql import Transaction
from evertally.errors import InvalidParameter
from evertally.validation import integer

__all__ = ["Credential", "Credentials", "TokenStore"]

_SECRET_BYTES: Final = 32
_ID_BYTES: Final = 8
_LOCK: Final = "service/tokens"
_TOKEN: Final = re.compile(r"evt_([0-9a-f]{16})_([A-Za-z0-9_-]{43})", re.ASCII)
_CN_MAX: Final = 64


@dataclass(frozen=True, slots=True)
class Credential:
    """One stored credential.

    Attributes:
        token_id: public id, by which it is listed and revoked.
        principal: who it stands for.
        grants: what it allows.
        certificate_cn: subject common name of a client certificate; "" for a bearer token.
        created_ms, expires_ms, revoked_ms: epoch milliseconds, 0 for never.
    """

    token_id: str
    principal: str
    grants: tuple[Grant, ...]
    certificate_cn: str
    created_ms: int
    expires_ms: int
    revoked_ms: int
    digest: bytes = field(repr=False)

    def usable(self, now_ms: int) -> bool:
        """True where neither revoked nor expired."""
        return self.revoked_ms == 0 and (self.expires_ms == 0 or now_ms < self.expires_ms)


class Credentials:
    """A snapshot of every credential, for looking up without touching the database."""

    def __init__(self, entries: list[Credential]) -> None:
        self._by_id: Final = {entry.token_id: entry for entry in entries if not entry.certificate_cn}
        self._by_cn: Final = {entry.certificate_cn: entry for entry in entries if entry.certificate_cn}

    def of_token(self, presented: str, now_ms: int) -> tuple[str, Principal] | None:
        """(token id, principal) of a bearer token, None where it is not valid."""
        found = _TOKEN.fullmatch(presented)
        entry = self._by_id.get(found.group(1)) if found else None
        if found is None or entry is None:
            return None
        if not hmac.compare_digest(entry.digest, _digest(found.group(2))) or not entry.usable(now_ms):
            return None
        return entry.token_id, Principal(entry.principal, entry.grants)

    def of_id(self, token_id: str, now_ms: int) -> Principal | None:
        """The principal of a token that was presented before, None once it is not valid any more."""
        entry = self._by_id.get(token_id)
        return Principal(entry.principal, entry.grants) if entry and entry.usable(now_ms) else None

    def of_certificate(self, common_name: str, now_ms: int) -> Principal | None:
        """The principal of a client certificate that TLS has verified."""
        entry = self._by_cn.get(common_name)
        return Principal(entry.principal, entry.grants) if entry and entry.usable(now_ms) else None


class TokenStore:
    """Creates, revokes and lists credentials."""

    def __init__(self, tables: ServiceTables) -> None:
        self._tables = tables

    def create(
        self, principal: str, grants: tuple[Grant, ...], *, expires_in_ms: int = 0, certificate_cn: str = ""
    ) -> tuple[Credential, str]:
        """Store a new credential; returns it with the token ("" for a certificate), never shown again.

        Raises InvalidParameter for bad names, no grants, or a certificate name already mapped.
        """
        name("principal", principal)
        integer("expires_in_ms", expires_in_ms, low=0)
        if not grants:
            raise InvalidParameter("grant", "none", "at least one grant")
        if certificate_cn and (len(certificate_cn) > _CN_MAX or not certificate_cn.isprintable()):
            raise InvalidParameter(
                "certificate_cn", certificate_cn[:64], f"up to {_CN_MAX} printable characters"
            )
        token_id = os.urandom(_ID_BYTES).hex()
        secret = urlsafe_b64encode(os.urandom(_SECRET_BYTES)).rstrip(b"=").decode()
        digest = b"" if certificate_cn else _digest(secret)

        def work(tx: Transaction) -> Credential:
            now = tx.now_ms()
            if certificate_cn:
                taken = tx.rows(
                    "SELECT token_id FROM service_token WHERE certificate_cn = ? AND revoked_ms = 0",
                    certificate_cn,
                )
                if taken:
                    raise InvalidParameter("certificate_cn", certificate_cn, "a name that is not mapped yet")
            entry = Credential(
                token_id,
                principal,
                grants,
                certificate_cn,
                now,
                now + expires_in_ms if expires_in_ms else 0,
                0,
                digest,
            )
            tx.run(
                "INSERT INTO service_token (token_id, principal, digest, certificate_cn, grants, created_ms,"
                " expires_ms, revoked_ms) VALUES (?, ?, ?, ?, ?, ?, ?, 0)",
                *(
                    token_id,
                    principal,
                    digest,
                    certificate_cn,
                    " ".join(map(str, grants)),
                    now,
                    entry.expires_ms,
                ),
            )
            return entry

        entry = self._tables.write(work, _LOCK)
        return entry, "" if certificate_cn else f"evt_{token_id}_{secret}"

    def revoke(self, token_id: str) -> bool:
        """Make a credential useless from now on; False where it already was. InvalidParameter if unknown."""

        def work(tx: Transaction) -> bool:
            found = tx.rows("SELECT revoked_ms FROM service_token WHERE token_id = ?", token_id)
            if not found:
                raise InvalidParameter("token_id", token_id[:64], "the id of a token in this ledger")
            if found[0][0]:
                return False
            tx.run("UPDATE service_token SET revoked_ms = ? WHERE token_id = ?", tx.now_ms(), token_id)
            return True

        return self._tables.write(work, _LOCK)

    def list(self) -> list[Credential]:
        """Every credential, oldest first."""
        return self._tables.read(_all)

    def snapshot(self) -> Credentials:
        """What is needed to authenticate, as of now."""
        return Credentials([entry for entry in self.list() if entry.revoked_ms == 0])


def _all(tx: Transaction) -> list[Credential]:
    rows = tx.rows(
        "SELECT token_id, principal, grants, certificate_cn, created_ms, expires_ms, revoked_ms, digest"
        " FROM service_token ORDER BY created_ms, token_id"
    )
    return [
        Credential(
            str(token_id),
            str(principal),
            tuple(Grant.parse(text) for text in str(grants).split()),
            str(cn),
            int(created),
            int(expires),
            int(revoked),
            bytes(digest or b""),
        )
        for token_id, principal, grants, cn, created, expires, revoked, digest in rows
    ]


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()
