"""`evertally release`: the releaser alone, over closings that another engine writes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from evertally.pipelines.cli.output import AsJson, LogFormat, Logs, emit
from evertally.pipelines.cli.worker import LogLevel, begin_service

__all__ = ["release"]


def release(
    config: Annotated[Path, typer.Option("--config", "-c", help="TOML file that declares the stream.")],
    as_json: AsJson = False,
    log_format: Logs = LogFormat.TEXT,
    log_level: Annotated[LogLevel, typer.Option("--log-level", help="Least severe logs.")] = LogLevel.INFO,
) -> None:
    """Release noisy totals (integers in value units) from the stream's closings topic; it reads no events.

    kafka.closing_sources says how many sources write closings; a tick closes when all have ended it.
    """
    log = begin_service(as_json=as_json, log_format=log_format, level=log_level)
    from evertally.pipelines.kafka.config import load_worker_config
    from evertally.pipelines.kafka.worker import Worker, run_worker

    declared = load_worker_config(config)
    run_worker(Worker(declared, release_only=True))
    log.info("drained")
    emit({"ok": True, "stream": declared.spec.name}, f"{declared.spec.name}: drained")
