"""`evertally worker`: consume, count, release from Kafka."""

from __future__ import annotations

import enum
import logging
import re
from pathlib import Path
from typing import Annotated, Final

import typer

from evertally.pipelines.cli.output import AsJson, LogFormat, Logs, begin, emit

__all__ = ["LogLevel", "begin_service", "worker"]


class LogLevel(enum.StrEnum):
    """Least severe logs that are written."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"


_PLACES: Final = re.compile(r"((?:offset|position)s?\W+(?:is\W+)?)\d+|\d+(?= records)", re.IGNORECASE)


class _Unnumbered(logging.Filter):
    """Takes offsets and numbers of records, which count events, out of what kafka-python says.

    Its tracebacks are left out too: they could hold what a call was given.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        if record.name.partition(".")[0] == "kafka":
            text = _PLACES.sub(lambda found: f"{found[1] or ''}N", record.getMessage())
            record.msg, record.args, record.exc_info, record.exc_text = text, None, None, None
        return True


def begin_service(*, as_json: bool, log_format: LogFormat, level: LogLevel) -> logging.Logger:
    """As `begin`, with kafka-python's warnings in the same form; at DEBUG it would log keys and values."""
    log = begin(as_json=as_json, log_format=log_format)
    log.setLevel(level.upper())
    for handler in log.handlers:
        handler.addFilter(_Unnumbered())
    kafka = logging.getLogger("kafka")
    kafka.handlers[:] = log.handlers
    kafka.setLevel(logging.WARNING)
    kafka.propagate = False
    # it warns of each step over 0.1 s, which any busy machine has, in words for its own developers
    logging.getLogger("kafka.net.selector").setLevel(logging.ERROR)
    return log


def worker(
    config: Annotated[Path, typer.Option("--config", "-c", help="TOML file that declares the stream.")],
    start_from: Annotated[
        str | None,
        typer.Option(
            "--from",
            help="Only at the very first start: earliest, latest, an RFC 3339 time, or epoch milliseconds.",
        ),
    ] = None,
    new_incarnation: Annotated[
        bool,
        typer.Option(
            "--new-incarnation",
            help="Pay for a new incarnation (totals from 0), then exit; stop all workers first.",
        ),
    ] = False,
    as_json: AsJson = False,
    log_format: Logs = LogFormat.TEXT,
    log_level: Annotated[LogLevel, typer.Option("--log-level", help="Least severe logs.")] = LogLevel.INFO,
) -> None:
    """Count the events of a Kafka topic and release noisy totals at every tick, each exactly once.

    Ticks are seconds of UTC and close by this machine's clock. SIGTERM drains and exits 0; a second
    signal stops at once. /healthz and /readyz stand at health.listen of the configuration.
    """
    log = begin_service(as_json=as_json, log_format=log_format, level=log_level)
    from evertally.pipelines.kafka.config import load_worker_config
    from evertally.pipelines.kafka.context import open_new_incarnation
    from evertally.pipelines.kafka.worker import Worker, run_worker

    declared = load_worker_config(config)
    if new_incarnation:
        number = open_new_incarnation(declared)
        emit({"ok": True, "incarnation": number}, f"{declared.spec.name}: incarnation {number} is open")
        return
    run_worker(Worker(declared, start_from=start_from))
    log.info("drained")
    emit({"ok": True, "stream": declared.spec.name}, f"{declared.spec.name}: drained")
