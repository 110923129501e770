"""`evertally compare`: every mechanism at equal privacy, in numbers and in a picture."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from evertally.errors import InvalidParameter
from evertally.pipelines.cli.output import AsJson, LogFormat, Logs, begin, emit

if TYPE_CHECKING:
    from rich.table import Table

    from evertally.counters.rivals import Cost
    from evertally.counters.rivals.comparison import Row

__all__ = ["compare"]

_TICKS: Final = (2**12, 2**16, 2**20, 2**24)
_FIRST, _LAST = 2**5, 2**28
_COST_TICKS: Final = (2**11, 2**13)


def compare(
    to: Annotated[str, typer.Option("--to", help="Last tick, as 2^24 or 16777216.")] = "2^24",
    plot: Annotated[
        Path | None, typer.Option("--plot", help="PNG file to draw variance over V_t^2 into.")
    ] = None,
    as_json: AsJson = False,
    log_format: Logs = LogFormat.TEXT,
) -> None:
    """Compare mechanisms for running totals: variance at equal privacy, time, memory and smoothness.

    Variances are at mu = 1 for one contribution of 1, in counts squared; V_t^2 is the variance of the
    square root made for exactly t ticks. Time (one key, exact noise included) and memory are measured now.
    """
    begin(as_json=as_json, log_format=log_format)
    last = _tick(to)
    from evertally.counters.rivals.comparison import comparison_rows, contenders
    from evertally.pipelines.cli.progress import progress_bar

    if plot is not None:
        from evertally.pipelines.comparison_figure import draw_comparison

        draw_comparison(contenders(), last, plot)
    ticks = tuple(sorted({t for t in _TICKS if t <= last} | {last}))
    rows, costs = [], []
    total = len(contenders())
    with progress_bar("mechanisms compared") as progress:
        for row in comparison_rows(ticks):
            rows.append(row)
            costs.append(_costs(row, last))
            progress(len(rows), total)
    fields: dict[str, Any] = {
        "ok": True,
        "ticks": list(ticks),
        "mechanisms": [_fields(row, cost) for row, cost in zip(rows, costs, strict=True)],
    }
    if plot is not None:
        fields["png"] = str(plot)
    emit(fields, "" if as_json else _rendered(rows, costs, ticks))


def _tick(text: str) -> int:
    match = re.fullmatch(r"(?:2\^([0-9]{1,2})|([0-9]{1,12}))", text.strip())
    value = 0
    if match is not None:
        value = 2 ** int(match[1]) if match[1] else int(match[2])
    if not _FIRST <= value <= _LAST:
        raise InvalidParameter("to", text, "a tick from 2^5 to 2^28, as 2^24 or 16777216")
    return value


def _costs(row: Row, last: int) -> tuple[Cost, ...] | None:
    """Measured costs at two lengths; none for a row "as published", which runs the same mechanism."""
    if row.contender.claimed_norm_squared is not None:
        return None
    from evertally.counters.keys import KeyedNoise, NoiseKey
    from evertally.counters.rivals import measure_cost

    measured = []
    for ticks in sorted({min(last, ticks) for ticks in _COST_TICKS}):
        source = KeyedNoise(NoiseKey.generate("comparison"))
        measured.append(measure_cost(row.contender.rival(ticks), source, ticks))
    return tuple(measured)


def _fields(row: Row, costs: tuple[Cost, ...] | None) -> dict[str, Any]:
    contender = row.contender
    return {
        "key": contender.key,
        "mechanism": contender.label,
        "private": contender.claimed_norm_squared is None,
        "unbounded": contender.unbounded,
        "variance": list(row.variances),
        "ratio": list(row.ratios),
        "largest_step": row.largest_step,
        "cost": [
            {"ticks": cost.ticks, "tick_ns": round(cost.tick_ns), "held_bytes": cost.held_bytes}
            for cost in costs or ()
        ],
    }


def _rendered(rows: list[Row], costs: list[tuple[Cost, ...] | None], ticks: tuple[int, ...]) -> str:
    from rich.console import Console

    console = Console(width=None if Console().is_terminal else 180, highlight=False)
    with console.capture() as capture:
        console.print(_table(rows, costs, ticks))
    return capture.get().rstrip("\n")


def _table(rows: list[Row], costs: list[tuple[Cost, ...] | None], ticks: tuple[int, ...]) -> Table:
    from rich.table import Table

    measured = next(cost for cost in costs if cost is not None)
    lengths = " → ".join(_power(cost.ticks) for cost in measured)
    table = Table(
        title="variance at t (ratio to V_t²), mu = 1 for one contribution of 1",
        caption="step: max V(t+1)/V(t) for 16 ≤ t < 1024. Rows as published are not private at mu = 1.\n"
        f"Time and memory: one key, measured now over {_power(measured[-1].ticks)} ticks, noise included.",
    )
    table.add_column("mechanism", no_wrap=True)
    for t in ticks:
        table.add_column(f"t = {_power(t)}", justify="right", no_wrap=True)
    table.add_column("µs/tick", justify="right")
    table.add_column(f"KiB held, {lengths}", justify="right")
    table.add_column("step", justify="right")
    table.add_column("unbounded", justify="center")
    for row, cost in zip(rows, costs, strict=True):
        cells = [f"{v:.4g} ({r:.3g})" for v, r in zip(row.variances, row.ratios, strict=True)]
        spent = ["", ""]
        if cost is not None:
            held = " → ".join(f"{c.held_bytes / 1024:.0f}" for c in cost)
            spent = [f"{cost[-1].tick_ns / 1000:.1f}", held]
        contender = row.contender
        style = "dim" if contender.claimed_norm_squared is not None else None
        unbounded = "yes" if contender.unbounded else "no"
        table.add_row(contender.label, *cells, *spent, f"{row.largest_step:.3f}", unbounded, style=style)
    return table


def _power(t: int) -> str:
    return f"2^{t.bit_length() - 1}" if t & (t - 1) == 0 else str(t)
