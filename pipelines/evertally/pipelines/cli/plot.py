"""`evertally plot`: a picture of a releases file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from evertally.pipelines.cli.output import AsJson, LogFormat, Logs, begin, emit

__all__ = ["plot"]


def plot(
    releases: Annotated[Path, typer.Argument(help="Releases file, JSON lines.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="PNG file to write.")],
    as_json: AsJson = False,
    log_format: Logs = LogFormat.TEXT,
) -> None:
    """Draw noisy totals with bands of two standard errors, and the standard error against a known end.

    Totals and standard errors are in value units, ticks in seconds. The second panel compares with the
    square-root mechanism that knows the last tick, at equal privacy.
    """
    begin(as_json=as_json, log_format=log_format)
    from evertally.pipelines.plot import ReleaseTable, draw_releases
    from evertally.pipelines.releases import read_releases

    table = ReleaseTable.collect(*read_releases(releases))
    draw_releases(table, out)
    ours, known = float(table.stderr[-1]), float(table.known_end()[-1])
    emit(
        {
            "ok": True,
            "png": str(out),
            "stream": table.header.stream,
            "ticks": int(table.ticks[-1]),
            "keys": len(table.header.keys),
            "stderr_end": ours,
            "stderr_known_end": float(f"{known:.6g}"),
        },
        f"{out}: {int(table.ticks[-1])} ticks of {table.header.stream}; standard error at the end {ours:.4g},"
        f" of a mechanism that knew the end {known:.4g}",
    )
