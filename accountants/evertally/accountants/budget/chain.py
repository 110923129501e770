"""Keyed hash chains over the ledger's rows, so that an altered, lost or reordered row is noticed.

Each link is HMAC-SHA256(key, tag || previous || canonical bytes of the rows). The key is the ledger's
own, kept in a file beside it: whoever holds both can verify, whoever holds only the rows cannot forge.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from typing import Final

from evertally.errors import IntegrityError

__all__ = ["KEY_BYTES", "link", "sealed_digest", "seal_row", "tick_bytes"]

KEY_BYTES: Final = 32
_EMPTY: Final = hashlib.sha256(b"no sealed state").hexdigest()


def link(key: bytes, tag: bytes, previous: bytes, payload: bytes) -> bytes:
    """The next value of a chain, 32 bytes. `tag` keeps chains of different kinds apart."""
    return hmac.digest(
        key, b"evertally/%d/%b/%d/%b" % (len(tag), tag, len(previous), previous) + payload, "sha256"
    )


def seal_row(key: bytes, tag: bytes, *fields: object) -> bytes:
    """HMAC over one mutable row's fields (text, integers, bytes), injectively encoded."""
    parts = [f.hex() if isinstance(f, bytes) else str(f) for f in fields]
    return link(key, tag, b"", "".join(f"{len(p)}:{p}" for p in parts).encode())


def check_row(key: bytes, tag: bytes, stored: bytes, what: str, *fields: object) -> None:
    """Raise IntegrityError, naming `what`, when a row no longer fits its HMAC."""
    if not hmac.compare_digest(stored, seal_row(key, tag, *fields)):
        raise IntegrityError(f"{what} was altered outside the ledger")


def tick_bytes(
    t: int, keys: Iterable[int], values: Iterable[str], stderrs: Iterable[str], ends_ms: Iterable[int]
) -> bytes:
    """Canonical bytes of one tick's rows, given their columns (values as decimal text)."""
    rows = [f"{k},{v},{e},{ms}" for k, v, e, ms in zip(keys, values, stderrs, ends_ms, strict=True)]
    return f"{t}|{';'.join(rows)}".encode()


def sealed_digest(sealed: bytes | None) -> str:
    """Digest of a sealed state that stands for it in the head's HMAC."""
    return _EMPTY if sealed is None else hashlib.sha256(sealed).hexdigest()
