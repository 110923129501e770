"""Where a plane listens, and who may ask: TLS, client certificates, a bearer token."""

from __future__ import annotations

import os
import ssl
import stat
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from evertally.errors import InvalidParameter
from evertally.pipelines.config_table import ConfigTable, Mistakes
from evertally.validation import integer, is_loopback

__all__ = ["Listen", "parse_listen", "read_metrics_listen"]

_TOKEN_MIN: Final = 16
_TOKEN_MAX: Final = 4096


@dataclass(frozen=True, slots=True)
class Listen:
    """An address and its doors.

    Attributes:
        host, port: address to bind; port 0 lets the system choose.
        token_file: file with the bearer token that every request must carry; None for none.
        tls_cert, tls_key: PEM files for HTTPS; None for plain HTTP.
        client_ca: PEM file of the CA that client certificates must come from; None for none.
        plain_http: allows an operators' plane on plain HTTP beyond loopback, inside a closed network.
    """

    host: str
    port: int
    token_file: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    client_ca: Path | None = None
    plain_http: bool = False

    def __post_init__(self) -> None:
        integer("listen.port", self.port, low=0, high=65535)
        if not self.host:
            raise InvalidParameter("listen", self.host, "host:port, for example 127.0.0.1:9465")
        if (self.tls_cert is None) != (self.tls_key is None):
            raise InvalidParameter("tls_key", self.tls_key, "both a certificate and its key, or neither")
        if self.client_ca is not None and self.tls_cert is None:
            raise InvalidParameter("client_ca", str(self.client_ca), "TLS: a certificate and its key as well")

    @property
    def local(self) -> bool:
        """True where only callers of this machine can reach it."""
        return is_loopback(self.host)

    @classmethod
    def chosen(cls, declared: Listen | None, address: str | None) -> Listen | None:
        """What a command's --metrics-listen makes of the declared plane: another address, the same doors.

        >>> Listen.chosen(None, None), Listen.chosen(Listen("::1", 1), "127.0.0.1:2").port
        (None, 2)
        """
        if address is None:
            return declared
        host, port = parse_listen("--metrics-listen", address)
        return cls(host, port) if declared is None else replace(declared, host=host, port=port)

    def require_private(self) -> None:
        """Refuse doors that would show exact counts to a network.

        Raises InvalidParameter beyond loopback without a token or client certificates, or without TLS
        where `plain_http` does not allow it.
        """
        if self.local:
            return
        if self.token_file is None and self.client_ca is None:
            raise InvalidParameter(
                "token_file", None, "a token or a client CA: the operators' plane shows exact counts"
            )
        if self.tls_cert is None and not self.plain_http:
            raise InvalidParameter(
                "tls_cert", None, "TLS beyond loopback, or plain_http inside a closed network"
            )

    def read_token(self) -> bytes | None:
        """The bearer token, None where none is asked for.

        Raises InvalidParameter for a file that is not there, that strangers can read, or that holds no token.
        """
        if self.token_file is None:
            return None
        try:
            descriptor = os.open(self.token_file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            with os.fdopen(descriptor, "rb") as file:
                if stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o007:
                    raise InvalidParameter("token_file", str(self.token_file), "a file strangers cannot read")
                token = file.read(_TOKEN_MAX + 1).strip()
        except OSError as error:
            raise InvalidParameter(
                "token_file", str(self.token_file), f"a readable file ({error.strerror})"
            ) from None
        if not _TOKEN_MIN <= len(token) <= _TOKEN_MAX or not all(33 <= byte <= 126 for byte in token):
            raise InvalidParameter(
                "token_file", str(self.token_file), f"one line of {_TOKEN_MIN} or more ASCII characters"
            )
        return token

    def tls_context(self) -> ssl.SSLContext | None:
        """TLS 1.2 or newer with the given certificate; None for plain HTTP.

        Raises InvalidParameter for files that cannot be used.
        """
        if self.tls_cert is None:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(self.tls_cert, self.tls_key)
            if self.client_ca is not None:
                context.load_verify_locations(self.client_ca)
                context.verify_mode = ssl.CERT_REQUIRED
        except OSError as error:  # ssl.SSLError is one
            raise InvalidParameter(
                "tls_cert", str(self.tls_cert), f"a certificate and its key in PEM ({error.strerror})"
            ) from None
        return context


def parse_listen(field: str, text: str) -> tuple[str, int]:
    """Host and port of "host:port"; an IPv6 host stands in brackets.

    >>> parse_listen("listen", "127.0.0.1:9464"), parse_listen("listen", "[::1]:0")
    (('127.0.0.1', 9464), ('::1', 0))
    """
    host, _, port = text.rpartition(":")
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not host or not (port.isascii() and port.isdigit() and len(port) < 6) or int(port) > 65535:
        raise InvalidParameter(field, text, "host:port, for example 127.0.0.1:9464")
    return host, int(port)


def read_metrics_listen(table: ConfigTable, folder: Path, mistakes: Mistakes) -> Listen | None:
    """The operators' plane of a configuration's table [metrics]; None where there is none.

    Keys: listen, token_file, tls_cert, tls_key, client_ca, plain_http.
    """
    text = table.text("listen", "host:port of /internal/metrics", required=False)
    files: dict[str, Path | None] = {}
    for key in ("token_file", "tls_cert", "tls_key", "client_ca"):
        name = table.text(key, "a file", required=False)
        files[key] = None if name is None else folder / name
    plain = table.raw("plain_http", "true or false", required=False) or False
    if not isinstance(plain, bool):
        mistakes.add("metrics.plain_http", plain, "true or false")
        return None
    if text is None:
        if any(files.values()):
            mistakes.add("metrics.listen", "nothing", "host:port of /internal/metrics")
        return None

    def build() -> Listen:
        host, port = parse_listen("listen", text)
        listen = Listen(
            host,
            port,
            files["token_file"],
            files["tls_cert"],
            files["tls_key"],
            files["client_ca"],
            plain_http=plain,
        )
        listen.require_private()
        return listen

    return mistakes.attempt(build, "metrics.")
