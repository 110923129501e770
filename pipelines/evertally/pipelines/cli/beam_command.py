"""`evertally beam`: the Kafka worker's configuration as a Beam job."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from evertally.pipelines.cli.output import AsJson, LogFormat, Logs, emit, said_all
from evertally.pipelines.cli.worker import LogLevel, begin_service

__all__ = ["beam"]


def beam(
    runner_options: Annotated[
        list[str] | None,
        typer.Argument(
            help="Options of Beam and of the runner, behind --, for example -- --job_name=visits."
        ),
    ] = None,
    config: Annotated[
        Path, typer.Option("--config", "-c", help="TOML file that declares the stream; that of `worker`.")
    ] = ...,  # type: ignore[assignment]  # typer's mark of a required option
    runner: Annotated[str, typer.Option("--runner", help="Beam runner.")] = "PrismRunner",
    prism_location: Annotated[
        Path | None, typer.Option("--prism-location", help="The Prism binary; `make prism` builds one.")
    ] = None,
    start_from: Annotated[
        str | None,
        typer.Option(
            "--from",
            help="Only at the very first start: earliest, latest, an RFC 3339 time, or epoch milliseconds.",
        ),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(
            "--key",
            help="Where workers find the key file (--closings: aggregation keys): a path, or secret:NAME.",
        ),
    ] = None,
    closings: Annotated[
        bool,
        typer.Option(
            "--closings",
            help="Write sealed closings for `evertally release`; workers get neither ledger nor key file.",
        ),
    ] = False,
    buckets: Annotated[
        int, typer.Option("--buckets", min=1, max=1024, help="Bounding steps that share the privacy units.")
    ] = 4,
    metrics_listen: Annotated[
        str | None,
        typer.Option(
            "--metrics-listen",
            help="host:port of /internal/metrics, for operators only; default: the TOML's table `metrics`.",
        ),
    ] = None,
    as_json: AsJson = False,
    log_format: Logs = LogFormat.TEXT,
    log_level: Annotated[LogLevel, typer.Option("--log-level", help="Least severe logs.")] = LogLevel.INFO,
) -> None:
    """Count a Kafka topic with Apache Beam: build the job, run it, wait for its end.

    The job releases by itself, or with --closings leaves that to `evertally release` beside it.

    Ticks are seconds of UTC and close by the workers' clocks. A job that was killed goes on from the
    ledger when this command is given again. No key and no password goes into the job.
    """
    log = begin_service(as_json=as_json, log_format=log_format, level=log_level)
    from evertally.pipelines.beam.job import run_job
    from evertally.pipelines.kafka.config import load_worker_config

    declared = load_worker_config(config)
    words = [f"--runner={runner}", f"--evertally_config={config}", f"--evertally_buckets={buckets}"]
    words += [] if start_from is None else [f"--evertally_from={start_from}"]
    words += [] if key is None else [f"--evertally_key={key}"]
    words += ["--evertally_closings"] if closings else []
    words += [] if metrics_listen is None else [f"--evertally_metrics_listen={metrics_listen}"]
    if prism_location is not None:
        words += [f"--prism_location={prism_location}", "--environment_type=LOOPBACK"]
    state = run_job([*words, "--streaming", *(runner_options or [])])
    log.info("the job ended: %s", state)
    emit({"ok": True, "stream": declared.spec.name, "state": state}, f"{declared.spec.name}: {state}")
    said_all()
