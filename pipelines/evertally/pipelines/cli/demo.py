"""`evertally demo`: the local pipeline on a year of departures, beside the truth it protects."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from evertally.pipelines.cli.output import AsJson, LogFormat, Logs, begin, emit

if TYPE_CHECKING:
    from evertally.pipelines.local.demo import DemoResult

__all__ = ["demo"]


def demo(
    out: Annotated[Path, typer.Option("--out", help="Folder for releases, picture, state and key.")] = Path(
        "evertally-demo"
    ),
    as_json: AsJson = False,
    log_format: Logs = LogFormat.TEXT,
) -> None:
    """Count 328,521 departures from New York in 2013 by carrier, every hour, at epsilon 1, delta 1e-6.

    One charge pays for all 8,761 hourly ticks and for every one after them. Shown again in the same
    folder it costs nothing more and gives the same bytes. Totals and standard errors are in departures.
    """
    begin(as_json=as_json, log_format=log_format)
    from evertally.pipelines.cli.progress import progress_bar
    from evertally.pipelines.guarantee import guarantee_sentence
    from evertally.pipelines.local.demo import run_demo

    with progress_bar("ticks released", before="reading", always=not as_json) as progress:
        result = run_demo(out, progress)
    sentence = guarantee_sentence(result.header)
    if not as_json:
        _print_table(result)
    emit(
        {
            "ok": True,
            "releases": str(result.releases),
            "picture": None if result.picture is None else str(result.picture),
            "stderr": result.rows[0].stderr,
            "stderr_known_end": float(f"{result.stderr_known_end:.6g}"),
            "epsilon": result.header.epsilon,
            "delta": result.header.delta,
            "mu": result.header.mu,
            "guarantee": sentence,
            "carriers": [
                {
                    "carrier": row.carrier,
                    "noisy_total": row.noisy_total,
                    "stderr": row.stderr,
                    "true_total": row.true_total,
                    "error_in_stderr": round(row.error_in_stderr, 3),
                }
                for row in result.rows
            ],
        },
        f"{sentence}\nStandard error at the end {result.rows[0].stderr:.1f}; a mechanism that knew the end "
        f"would reach {result.stderr_known_end:.1f}. The true totals are shown by this demo alone.\n"
        f"Releases: {result.releases}   Picture: "
        f"{result.picture or 'none without matplotlib (the extra `plots` of the wheel)'}",
    )


def _print_table(result: DemoResult) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title="Departures from New York in 2013, by carrier")
    table.add_column("carrier")
    for name in ("noisy total", "standard error", "true total", "error in standard errors"):
        table.add_column(name, justify="right")
    for row in sorted(result.rows, key=lambda row: -row.noisy_total):
        table.add_row(
            row.carrier,
            f"{row.noisy_total:,}",
            f"{row.stderr:.1f}",
            f"{row.true_total:,}",
            f"{row.error_in_stderr:+.2f}",
        )
    Console().print(table)
