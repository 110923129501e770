"""Starts real service processes on loopback over fresh ledgers."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import httpx

from evertally.accountants.budget import Scope
from evertally.accountants.budget.opening import open_ledger
from evertally.accountants.budget.service import Grant, ServiceTables, TokenStore

SERVER = """
import json, sys
from evertally.accountants.budget.opening import open_ledger
from evertally.accountants.budget.service import ServiceSettings, serve_ledger
location, key_file, settings = json.loads(sys.argv[1])
serve_ledger(open_ledger(location, key_file=key_file or None), location, ServiceSettings(**settings),
             lambda address: print(address, flush=True))
print("stopped", flush=True)
"""
Starter = Callable[..., "Service"]
ALL = "scope:*=create,read,quote,reserve,commit,lease"


@dataclass
class Service:
    """One running service and the ledger behind it."""

    process: subprocess.Popen[str]
    address: str
    location: str
    key_file: str
    tokens: dict[str, str] = field(default_factory=dict)

    def client(self, principal: str = "owner") -> httpx.Client:
        token = self.tokens.get(principal) or self.token(principal, ALL, "stream:*=read")
        return httpx.Client(
            base_url=self.address, headers={"Authorization": f"Bearer {token}"}, timeout=60, trust_env=False
        )

    def token(self, principal: str, *grants: str, expires_in_ms: int = 0) -> str:
        tables = ServiceTables(self.location)
        try:
            _, token = TokenStore(tables).create(
                principal, tuple(map(Grant.parse, grants)), expires_in_ms=expires_in_ms
            )
        finally:
            tables.close()
        self.tokens[principal] = token
        time.sleep(1.1)  # a running service looks again after a second
        return token

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        self.process.terminate()
        return self.process.wait(60)

    def kill(self) -> None:
        """SIGKILL, where it still runs."""
        self.process.kill()
        self.process.wait(60)
        assert self.process.stdout is not None
        self.process.stdout.close()


def start(location: str, key_file: str, tokens: dict[str, str], **settings: object) -> Service:
    """A service on a port of the system's choice, without a rate limit unless one is set."""
    settings = {"port": 0, "rate_per_s": 1e6, "burst": 10**6, **settings}
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER, json.dumps([location, key_file, settings])],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    address = process.stdout.readline().strip()
    service = Service(process, address, location, key_file, tokens)
    if not address.startswith("http"):
        service.kill()
        raise AssertionError("the service did not start")
    return service


def prepare(location: str, key_file: str = "") -> dict[str, str]:
    """A fresh ledger with one scope and the owner's token."""
    ledger = open_ledger(location, key_file=key_file or None)
    ledger.create_scope(Scope("health", "event", "add-remove", "2", "0.000001"))
    ledger.close()
    tables = ServiceTables(location)
    _, token = TokenStore(tables).create("owner", (Grant.parse(ALL), Grant.parse("stream:*=read")))
    tables.close()
    return {"owner": token}


def wait_past(expires_ms: int) -> None:
    """Wait until a reservation of this end has lapsed."""
    while time.time() * 1000 <= expires_ms:
        time.sleep(0.002)


GAUSSIAN = {"kind": "gaussian", "sensitivity": "1", "sigma": "100"}


def charge_body(**changes: object) -> dict[str, object]:
    """A small charge to the scope `health`."""
    return {"scope": "health", "unit": "event", "adjacency": "add-remove", "line": GAUSSIAN, **changes}
