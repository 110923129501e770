"""`evertally topics`: create and check the topics of a stream."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from evertally.pipelines.cli.output import AsJson, LogFormat, Logs, counted, emit
from evertally.pipelines.cli.worker import LogLevel, begin_service

__all__ = ["app"]

app = typer.Typer(
    help="Create and check the Kafka topics of a stream.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
Config = Annotated[Path, typer.Option("--config", "-c", help="TOML file that declares the stream.")]


@app.command()
def create(
    config: Config,
    replication: Annotated[
        int | None,
        typer.Option("--replication", help="Copies of each topic; the cluster's default if not given."),
    ] = None,
    as_json: AsJson = False,
    log_format: Logs = LogFormat.TEXT,
) -> None:
    """Create what is missing of the stream's own topics (closings, releases, dead letters, units)."""
    begin_service(as_json=as_json, log_format=log_format, level=LogLevel.INFO)
    from evertally.pipelines.kafka.config import load_worker_config
    from evertally.pipelines.kafka.topics import create_topics

    declared = load_worker_config(config)
    created = create_topics(
        declared.broker,
        declared.topics,
        shards=declared.spec.shards,
        by_unit=declared.bound is not None,
        max_request_bytes=declared.max_request_bytes,
        select=declared.select is not None,
        replication=replication,
    )
    emit(
        {"ok": True, "created": created},
        "\n".join(["created:", *created]) if created else "nothing to create",
    )


@app.command()
def check(config: Config, as_json: AsJson = False, log_format: Logs = LogFormat.TEXT) -> None:
    """Check that every topic exists with settings under which no event and no release is lost."""
    begin_service(as_json=as_json, log_format=log_format, level=LogLevel.INFO)
    from evertally.pipelines.kafka.config import load_worker_config
    from evertally.pipelines.kafka.topics import check_topics

    declared = load_worker_config(config)
    found = check_topics(
        declared.broker,
        declared.topics,
        shards=declared.spec.shards,
        by_unit=declared.bound is not None,
        max_request_bytes=declared.max_request_bytes,
        select=declared.select is not None,
    )
    emit(
        {"ok": True, "input_partitions": found.events},
        f"all topics are fine; {counted(found.events, 'input partition')}",
    )
