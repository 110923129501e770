"""`evertally serve`: the budget service over a ledger."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from evertally.pipelines.cli.output import LogFormat, Logs, begin

__all__ = ["serve"]


def serve(
    ledger: Annotated[str, typer.Option(help="SQLite file of the ledger, or a postgresql:// address.")],
    host: Annotated[
        str, typer.Option(help="Address to bind; beyond loopback TLS is required.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to bind; 0 lets the system choose one.")] = 8400,
    key_file: Annotated[
        Path | None, typer.Option(help="Chain key (32 bytes, mode 0600); LEDGER.chainkey where not given.")
    ] = None,
    tls_cert: Annotated[str, typer.Option(help="Certificate chain, PEM.")] = "",
    tls_key: Annotated[str, typer.Option(help="Private key, PEM.")] = "",
    client_ca: Annotated[
        str,
        typer.Option(help="CA of client certificates, PEM: principals come from certificates, not tokens."),
    ] = "",
    page: Annotated[
        str,
        typer.Option(
            help="The page at /: 'loopback' (no login, local callers only), 'login' (by token) or 'off'."
        ),
    ] = "loopback",
    rate: Annotated[float, typer.Option(help="Requests a second of one principal.")] = 200.0,
    burst: Annotated[int, typer.Option(help="Requests of one principal at once.")] = 400,
    drain_timeout_s: Annotated[
        int, typer.Option(help="Seconds that requests in flight may take after SIGTERM.")
    ] = 30,
    plain_http: Annotated[
        bool, typer.Option("--plain-http", help="Plain HTTP beyond loopback, behind a proxy that ends TLS.")
    ] = False,
    create: Annotated[bool, typer.Option(help="Create the ledger where there is none.")] = True,
    log_format: Logs = LogFormat.TEXT,
) -> None:
    """Admit or refuse charges over HTTP (/v1) and show the budget at /.

    Stops on SIGTERM after the requests in flight; exits with 0.
    """
    from evertally.accountants.budget.opening import open_ledger
    from evertally.accountants.budget.service import ServiceSettings, serve_ledger

    options: dict[str, Any] = {"page": page, "rate_per_s": rate, "burst": burst}
    settings = ServiceSettings(
        host=host,
        port=port,
        tls_cert=tls_cert,
        tls_key=tls_key,
        client_ca=client_ca,
        drain_timeout_s=drain_timeout_s,
        plain_http=plain_http,
        **options,
    )
    log = begin(as_json=False, log_format=log_format)
    store = open_ledger(ledger, key_file=key_file, create=create)
    serve_ledger(
        store, ledger, settings, lambda address: log.info("the budget service listens on %s", address)
    )
    log.info("the budget service has stopped; everything in flight was answered")
