"""A progress bar on a terminal's standard error; nothing where there is no terminal."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

__all__ = ["progress_bar"]


@contextlib.contextmanager
def progress_bar(
    counted: str, *, before: str = "", always: bool = False
) -> Iterator[Callable[[int, int], None]]:
    """A callback that moves the bar to (done, total); both are public.

    Args:
        counted: what is counted, as "ticks released".
        before: what goes on before the first count; the same for "".
        always: write the bar to standard error even where it is no terminal (the last state only).
    """
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not (always or console.is_terminal)) as bar:
        task = bar.add_task(before or counted, total=None)

        def move(done: int, total: int) -> None:
            bar.update(task, description=counted, completed=done, total=total)

        yield move
