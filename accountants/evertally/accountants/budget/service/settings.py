"""How a service is run: public, fixed at start."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from evertally.errors import InvalidParameter
from evertally.validation import integer, is_loopback, one_of, positive_integer, positive_real

__all__ = ["PAGE_MODES", "ServiceSettings"]

PAGE_MODES: Final = ("loopback", "login", "off")


@dataclass(frozen=True, slots=True)
class ServiceSettings:
    """Limits and doors of one service process.

    Attributes:
        host, port: address to bind; port 0 lets the system choose.
        page: "loopback" shows the page without a login to local callers, "login" asks for a token (or
            takes the client certificate), "off" serves none.
        rate_per_s, burst: token bucket of each principal.
        body_bytes_max: largest accepted body.
        body_timeout_s: time a body may take to arrive.
        workers: threads that wait for the ledger; they share one group commit.
        drain_timeout_s: how long requests in flight may take after SIGTERM.
        tls_cert, tls_key: PEM files; "" for plain HTTP.
        client_ca: PEM file of the CA of client certificates; "" for bearer tokens.
        plain_http: allows plain HTTP beyond loopback, for a proxy in front that ends TLS.
    """

    host: str = "127.0.0.1"
    port: int = 8400
    page: Literal["loopback", "login", "off"] = "loopback"
    rate_per_s: float = 200.0
    burst: int = 400
    body_bytes_max: int = 64 * 1024
    body_timeout_s: float = 30.0
    workers: int = 64
    drain_timeout_s: int = 30
    tls_cert: str = ""
    tls_key: str = ""
    client_ca: str = ""
    plain_http: bool = False

    def __post_init__(self) -> None:
        integer("port", self.port, low=0, high=65535)
        one_of("page", self.page, PAGE_MODES)
        positive_real("rate_per_s", self.rate_per_s)
        positive_integer("burst", self.burst)
        positive_integer("body_bytes_max", self.body_bytes_max, high=2**20)
        positive_real("body_timeout_s", self.body_timeout_s)
        positive_integer("workers", self.workers, high=1024)
        positive_integer("drain_timeout_s", self.drain_timeout_s)
        if bool(self.tls_cert) != bool(self.tls_key):
            raise InvalidParameter("tls_key", self.tls_key, "both --tls-cert and --tls-key, or neither")
        if self.client_ca and not self.tls_cert:
            raise InvalidParameter("client_ca", self.client_ca, "TLS: give --tls-cert and --tls-key as well")
        if not is_loopback(self.host):
            if not self.tls_cert and not self.plain_http:
                raise InvalidParameter(
                    "host",
                    self.host,
                    "a loopback address, or TLS, or --plain-http behind a proxy that ends TLS",
                )
            if self.page == "loopback" and not self.client_ca:
                raise InvalidParameter("page", self.page, "'login' or 'off' for a host beyond loopback")

    @property
    def open_locally(self) -> bool:
        """True where the page and the metrics are shown without a login, to loopback callers only."""
        return self.page == "loopback" and is_loopback(self.host) and not self.client_ca
