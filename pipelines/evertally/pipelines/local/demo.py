"""The demo: a year of New York departures by carrier, every hour, epsilon 1 at delta 1e-6 for ever.

The pipeline under show is `run_local`, unchanged. The true totals in the table are computed here, from
the raw file, with none of the pipeline's code: no other part of evertally can print a true total.
"""

from __future__ import annotations

import csv
import gzip
from collections import Counter
from dataclasses import dataclass
from decimal import Decimal
from importlib.resources import as_file, files
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from evertally.accountants.budget.scopes import Scope
from evertally.errors import StorageFull
from evertally.pipelines.config import RunConfig
from evertally.pipelines.config_parts import SourceConfig
from evertally.pipelines.events import ValueRule
from evertally.pipelines.local.runner import Progress, run_local, stream_exists
from evertally.pipelines.plot import ReleaseTable, draw_releases
from evertally.pipelines.raw_records import FieldNames
from evertally.pipelines.releases import StreamHeader, read_releases
from evertally.pipelines.stream_spec import StreamSpec
from evertally.pipelines.ticks import TickGrid, parse_ms

__all__ = ["CARRIERS", "DemoResult", "DemoRow", "demo_config", "run_demo", "true_totals"]

CARRIERS: Final = (
    "9E",
    "AA",
    "AS",
    "B6",
    "DL",
    "EV",
    "F9",
    "FL",
    "HA",
    "MQ",
    "OO",
    "UA",
    "US",
    "VX",
    "WN",
    "YV",
)
_DATA: Final = "departures.csv.gz"
_TICK_MS: Final = 3_600_000
_START: Final = "2013-01-01T05:00:00Z"
_END: Final = "2014-01-01T06:00:00Z"


@dataclass(frozen=True, slots=True)
class DemoRow:
    """One carrier at the end of the year.

    Attributes:
        carrier: its code.
        noisy_total: what was released at the last tick.
        stderr: its standard error.
        true_total: departures in the raw file.
    """

    carrier: str
    noisy_total: int
    stderr: float
    true_total: int

    @property
    def error_in_stderr(self) -> float:
        """(noisy - true) in standard errors."""
        return (self.noisy_total - self.true_total) / self.stderr


@dataclass(frozen=True, slots=True)
class DemoResult:
    """The demo's table and its files.

    Attributes:
        header: the stream as published.
        rows: one for each carrier.
        releases: the releases file.
        picture: the picture; None where matplotlib (extra `plots`) is not installed.
        stderr_known_end: standard error, in departures, of a mechanism that knows the last tick.
    """

    header: StreamHeader
    rows: tuple[DemoRow, ...]
    releases: Path
    picture: Path | None
    stderr_known_end: float


def run_demo(out: Path, progress: Progress | None = None) -> DemoResult:
    """Run the stream (or continue the one in `out`), draw it and compare it with the raw file.

    Args:
        out: folder for releases, picture, state and key; made where there is none.
        progress: told after every block of ticks.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageFull(f"{out}: the folder could not be made ({error.strerror})") from None
    with as_file(files("evertally.pipelines.local") / "data" / _DATA) as data:
        config = demo_config(data, out)
        summary = run_local(config, resume=stream_exists(config), progress=progress)
        truth = true_totals(data)
    table = ReleaseTable.collect(*read_releases(summary.releases))
    picture = out / "totals.png" if find_spec("matplotlib") else None
    if picture is not None:
        draw_releases(table, picture)
    last = table.values[-1]
    rows = tuple(
        DemoRow(carrier, int(last[index]), float(table.stderr[-1]), truth[carrier])
        for index, carrier in enumerate(CARRIERS)
    )
    return DemoResult(summary.header, rows, summary.releases, picture, float(table.known_end()[-1]))


def demo_config(data: Path, out: Path) -> RunConfig:
    """The demo's stream: keys are carriers, the privacy unit is one departure."""
    ticks = TickGrid.between(parse_ms(_START), parse_ms(_END), _TICK_MS)
    name = "departures"
    spec = StreamSpec(
        name=name,
        keys=CARRIERS,
        start_ms=ticks.start_ms,
        tick_ms=ticks.tick_ms,
        scope=Scope(name, "event", "add-remove", 1.0, 1e-6),
    )
    return RunConfig(
        spec=spec,
        ticks=ticks,
        source=SourceConfig(
            str(data), "csv", FieldNames("timestamp", "carrier"), None, ValueRule(Decimal(1), 0, 1)
        ),
        other=None,
        bound=None,
        releases=out / "releases.jsonl",
        dead_letters=out / "dead-letters.jsonl",
        state=out / "state.sqlite",
        key_file=out / "noise.key",
    )


def true_totals(data: Path) -> Counter[str]:
    """Departures of each carrier in the raw file: the exact numbers that the pipeline never shows."""
    with gzip.open(data, "rt", encoding="ascii", newline="") as file:
        rows = csv.reader(file)
        column = next(rows).index("carrier")
        return Counter(row[column] for row in rows)
