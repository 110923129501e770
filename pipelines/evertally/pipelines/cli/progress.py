"""A progress bar on a terminal's standard error; nothing where there is no terminal."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from evertally.pipelines.local.runner import Progress as TickProgress

__all__ = ["tick_progress"]


@contextlib.contextmanager
def tick_progress(*, always: bool = False) -> Iterator[TickProgress]:
    """A callback that moves the bar; the number of ticks is public.

    Args:
        always: write the bar to standard error even where it is no terminal (the last state only).
    """
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not (always or console.is_terminal)) as bar:
        task = bar.add_task("reading", total=None)

        def move(done: int, total: int) -> None:
            bar.update(task, description="ticks released", completed=done, total=total)

        yield move
