"""Who may do what: verbs on scopes and streams, granted to a principal by name or by prefix.

A principal that holds no verb on a scope is told 404, whether the scope exists or not, before the
ledger is asked: it cannot learn that another's scope exists, not even from the time an answer takes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from evertally.accountants.budget.service.problems import Problem, Refusal
from evertally.errors import InvalidParameter

__all__ = ["VERBS", "Grant", "Principal", "authorize"]

VERBS: Final[dict[str, tuple[str, ...]]] = {
    "scope": ("create", "read", "quote", "reserve", "commit", "lease"),
    "stream": ("read",),
    "service": ("operate",),
}
"""Verbs that exist for each kind of resource."""

_GRANT: Final = re.compile(r"(scope|stream|service):([A-Za-z0-9][A-Za-z0-9._:/-]{0,127}\*?|\*)=([a-z,]+)")


@dataclass(frozen=True, slots=True)
class Grant:
    """Verbs on every resource of one kind whose name matches.

    Attributes:
        kind: "scope", "stream" or "service".
        pattern: a name, or a prefix followed by "*".
        verbs: what is allowed.

    >>> Grant.parse("scope:health/*=read,quote").matches("scope", "health/ed")
    True
    """

    kind: str
    pattern: str
    verbs: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> Grant:
        """Read KIND:PATTERN=VERB,VERB. Raises InvalidParameter."""
        found = _GRANT.fullmatch(text)
        if found is None:
            raise InvalidParameter(
                "grant", text[:64], "KIND:NAME=VERB,VERB with KIND scope, stream or service"
            )
        kind, pattern, verbs = found.group(1), found.group(2), tuple(found.group(3).split(","))
        for verb in verbs:
            if verb not in VERBS[kind]:
                raise InvalidParameter("grant", verb, f"for a {kind}: " + ", ".join(VERBS[kind]))
        return cls(kind, pattern, tuple(verb for verb in VERBS[kind] if verb in verbs))

    def __str__(self) -> str:
        return f"{self.kind}:{self.pattern}={','.join(self.verbs)}"

    def matches(self, kind: str, name: str) -> bool:
        """True where the grant speaks of this resource."""
        if kind != self.kind:
            return False
        return name.startswith(self.pattern[:-1]) if self.pattern.endswith("*") else name == self.pattern


@dataclass(frozen=True, slots=True)
class Principal:
    """Someone who was authenticated, with what is granted to them."""

    name: str
    grants: tuple[Grant, ...]

    def allows(self, kind: str, name: str, verb: str) -> bool:
        """True where a grant gives the verb."""
        return any(verb in grant.verbs and grant.matches(kind, name) for grant in self.grants)

    def sees(self, kind: str, name: str) -> bool:
        """True where any verb is granted."""
        return any(grant.matches(kind, name) for grant in self.grants)


def authorize(principal: Principal, kind: str, name: str, *verbs: str) -> None:
    """Refuse with 404 what the principal may not see, with 403 what it sees but may not do."""
    if not principal.sees(kind, name):
        raise Refusal(Problem("not_found", "there is no such resource, or none that you may see"))
    for verb in verbs:
        if not principal.allows(kind, name, verb):
            raise Refusal(Problem("forbidden", f"the verb {verb} is not granted on this {kind}", "", verb))
