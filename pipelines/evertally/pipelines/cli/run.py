"""`evertally run`: the local pipeline as a command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from evertally.pipelines.cli.output import AsJson, LogFormat, Logs, begin, counted, emit

__all__ = ["run"]


def run(
    config: Annotated[Path, typer.Option("--config", "-c", help="TOML file that declares the stream.")],
    resume: Annotated[bool, typer.Option("--resume", help="Continue the stream of the state file.")] = False,
    as_json: AsJson = False,
    log_format: Logs = LogFormat.TEXT,
) -> None:
    """Count a CSV or JSON-lines file (plain, .gz or standard input) and release noisy totals at every tick.

    Ticks close only after the whole input was read and verified; times are milliseconds or RFC 3339,
    tick lengths are seconds. The stream is charged once, when it begins; --resume costs nothing, reads
    the input again from its start, and refuses input that differs from what was released.
    """
    log = begin(as_json=as_json, log_format=log_format)
    from evertally.pipelines.cli.progress import progress_bar
    from evertally.pipelines.config import load_config
    from evertally.pipelines.guarantee import guarantee_sentence
    from evertally.pipelines.local.runner import run_local

    declared = load_config(config)
    log.info("reading %s", declared.source.path)
    with progress_bar("ticks released", before="reading") as progress:
        summary = run_local(declared, resume=resume, progress=progress)
    log.info("tick %d of %d is published", summary.ticks, summary.ticks)
    sentence = guarantee_sentence(summary.header)
    emit(
        {
            "ok": True,
            "stream": summary.header.stream,
            "incarnation": summary.header.incarnation,
            "ticks": summary.ticks,
            "ticks_released_now": summary.released,
            "keys": len(summary.header.keys),
            "releases": str(summary.releases),
            "dead_letters": str(summary.dead_letters),
            "epsilon": summary.header.epsilon,
            "delta": summary.header.delta,
            "mu": summary.header.mu,
            "guarantee": sentence,
        },
        f"{summary.header.stream}: {counted(summary.ticks, 'tick')} x "
        f"{counted(len(summary.header.keys), 'key')} in {summary.releases} "
        f"({counted(summary.released, 'tick')} released now); lines that could not be counted are "
        f"listed in {summary.dead_letters}\n{sentence}",
    )
