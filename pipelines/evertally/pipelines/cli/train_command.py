"""`evertally train`: train a model on what is left of a budget."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from evertally.errors import InvalidParameter
from evertally.pipelines.cli.output import AsJson, LogFormat, Logs, emit
from evertally.pipelines.cli.worker import LogLevel, begin_service

__all__ = ["train"]


def train(
    config: Annotated[Path, typer.Option("--config", "-c", help="TOML file that declares the run.")],
    device: Annotated[str, typer.Option("--device", help="cpu, cuda or cuda:N.")] = "cpu",
    as_json: AsJson = False,
    log_format: Logs = LogFormat.TEXT,
) -> None:
    """Train a model with DP-KFC or DP-SGD under one lease that pays for the whole plan before its first step.

    The same command resumes a run that was stopped: published steps are never released a second time.
    Noise is in multiples of the clip norm, epsilon in nats, times in seconds. Needs the extra `train`.
    """
    log = begin_service(as_json=as_json, log_format=log_format, level=LogLevel.INFO)
    from evertally.pipelines.training.config import load_train_config

    declared = load_train_config(config)
    try:
        from evertally.pipelines.training.run import train_run
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("torch", "safetensors"):
            raise
        raise InvalidParameter(
            "environment",
            f"no module {error.name}",
            "PyTorch: in a clone `make train-venv`, elsewhere the extra `train` of the wheel",
        ) from None
    with _step_progress() as progress:
        report = train_run(declared, device=device, progress=progress)
    log.info("%d steps are published", report.steps)
    emit({"ok": True, **asdict(report), "accuracy": report.accuracy}, report.text(declared.folder))


@contextlib.contextmanager
def _step_progress() -> Iterator[Callable[[int, int], None]]:
    """A bar over published steps on a terminal's standard error; nothing where there is no terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("opening", total=None)

        def move(done: int, total: int) -> None:
            bar.update(task, description="steps published", completed=done, total=total)

        yield move
