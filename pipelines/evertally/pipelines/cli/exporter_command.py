"""`evertally exporter`: released totals for Prometheus."""

from __future__ import annotations

import signal
import sys
import threading
from pathlib import Path
from typing import Annotated

import typer

from evertally.pipelines.cli.output import LogFormat, Logs, begin

__all__ = ["exporter"]


def exporter(
    ledger: Annotated[
        str,
        typer.Option(
            envvar="EVERTALLY_LEDGER",
            help="SQLite file of the ledger, or a postgresql:// address (a role that may only read).",
        ),
    ],
    listen: Annotated[
        str, typer.Option(help="host:port of the public plane: /metrics and the page.")
    ] = "127.0.0.1:9464",
    internal_listen: Annotated[
        str, typer.Option(help="host:port of the operators' plane: /internal/metrics.")
    ] = "127.0.0.1:9465",
    refresh_s: Annotated[float, typer.Option(help="Seconds between two looks at the ledger.")] = 1.0,
    window: Annotated[
        list[str] | None,
        typer.Option(help="A window count to show; may be given again. Where none is given: 1h and 1d."),
    ] = None,
    series_max: Annotated[
        int, typer.Option(help="Most series shown; streams that do not fit are refused whole.")
    ] = 1000,
    token_file: Annotated[Path | None, typer.Option(help="Bearer token of the public plane.")] = None,
    internal_token_file: Annotated[
        Path | None, typer.Option(help="Bearer token of the operators' plane.")
    ] = None,
    tls_cert: Annotated[Path | None, typer.Option(help="Certificate chain of both planes, PEM.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Private key, PEM.")] = None,
    client_ca: Annotated[
        Path | None, typer.Option(help="CA of client certificates, PEM: both planes ask for one.")
    ] = None,
    plain_http: Annotated[
        bool,
        typer.Option("--plain-http", help="The operators' plane on plain HTTP beyond loopback."),
    ] = False,
    log_format: Logs = LogFormat.TEXT,
) -> None:
    """Show what is released, for Prometheus and for people; it reads the ledger and can change nothing.

    Needs no key file and no chain key. /healthz and /readyz stand on the public plane. SIGTERM: exit 0.
    """
    from evertally.pipelines.metrics.exporter import WINDOWS, Exporter, ExporterSettings, parse_windows
    from evertally.pipelines.metrics.listen import Listen, parse_listen

    log = begin(as_json=False, log_format=log_format)
    sys.setswitchinterval(0.0005)  # so that a scrape does not queue behind the rendering of the next answer
    settings = ExporterSettings(
        public=Listen(*parse_listen("listen", listen), token_file, tls_cert, tls_key, client_ca),
        internal=Listen(
            *parse_listen("internal_listen", internal_listen),
            internal_token_file,
            tls_cert,
            tls_key,
            client_ca,
            plain_http,
        ),
        refresh_s=refresh_s,
        windows=parse_windows(tuple(window) if window else WINDOWS),
        series_max=series_max,
    )
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    running = Exporter(ledger, settings)
    running.start()
    log.info("the public plane listens on %s, the operators' plane on %s", *running.addresses)
    stopping.wait()
    running.close()
    log.info("the exporter has stopped")
