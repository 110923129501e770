"""How many lines a second does one core read, check and sum, and in how much memory?

python tests/benchmarks/bench_ingest.py [--strict]

Bars on one core: >= 400,000 CSV rows/s, >= 250,000 JSON lines/s, resident memory < 400 MB and flat when
the file is repeated ten times. The rival of the same run is what one would write without thinking about
speed: csv.DictReader or json.loads, datetime.fromisoformat and a dictionary of counts; it checks nothing.
Each measurement runs in a process of its own; times are CPU seconds, so that neighbours count less.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import multiprocessing
import resource
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from importlib.resources import as_file, files
from pathlib import Path

from evertally.pipelines.bounding import UnitBound, UnitBounder, UnitNumbers
from evertally.pipelines.dead_letters import DeadLetterFile
from evertally.pipelines.events import EventParser
from evertally.pipelines.local.aggregate import aggregate
from evertally.pipelines.local.csv_source import CsvSource
from evertally.pipelines.local.demo import CARRIERS, demo_config
from evertally.pipelines.local.jsonl_source import JsonLinesSource
from evertally.pipelines.local.lines import LineReader
from evertally.pipelines.raw_records import FieldNames, Source

EVENTS = 328_521
CSV_BAR, JSON_BAR, MEMORY_BAR_MB = 400_000, 250_000, 400
Measured = tuple[float, float, int]  # lines a second, peak resident MB, events counted


def ours(path: Path, unit: str | None) -> int:
    config = demo_config(path, path.parent)
    fields = FieldNames("timestamp", "carrier", None, unit)
    reader = LineReader(str(path))
    source: Source = CsvSource(reader, fields) if ".csv" in path.name else JsonLinesSource(reader, fields)
    parser = EventParser(config.ticks, CARRIERS, None, None, config.source.values, UnitNumbers(bytes(32)))
    bounder = None if unit is None else UnitBounder(UnitBound(13, 672, 1), config.ticks)
    with DeadLetterFile(path.with_name("dead")) as letters:
        sums = aggregate(source, parser, config.ticks, len(CARRIERS), bounder, letters)
    return int(sums.rows(0, config.ticks.ticks).sum())


def naive(path: Path, unit: str | None) -> int:
    counts: Counter[tuple[datetime, str]] = Counter()
    with gzip.open(path, "rt", newline="") if path.suffix == ".gz" else path.open(newline="") as file:
        records = csv.DictReader(file) if ".csv" in path.name else map(json.loads, file)
        for record in records:
            hour = datetime.fromisoformat(record["timestamp"]).replace(minute=0)
            counts[hour, record["carrier"]] += 1
    return counts.total()


def _child(
    connection: object, work: Callable[[Path, str | None], int], path: Path, unit: str | None, times: int
) -> None:
    seconds = float("inf")
    for _ in range(times):
        start = time.process_time()
        counted = work(path, unit)
        seconds = min(seconds, time.process_time() - start)
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    connection.send((seconds, peak_mb, counted))  # type: ignore[attr-defined]  # a Connection


def measure(
    work: Callable[[Path, str | None], int], path: Path, lines: int, unit: str | None = None
) -> Measured:
    receiver, sender = multiprocessing.Pipe(duplex=False)
    times = 3 if lines == EVENTS else 1  # in one process: starting another costs more than a reading
    process = multiprocessing.get_context("spawn").Process(
        target=_child, args=(sender, work, path, unit, times)
    )
    process.start()
    seconds, peak_mb, counted = receiver.recv()
    process.join()
    return lines / seconds, peak_mb, counted


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--strict", action="store_true", help="exit 1 where a bar is missed")
    strict = arguments.parse_args().strict
    failed = False

    def report(name: str, measured: Measured, bar: float, rival: Measured | None) -> None:
        nonlocal failed
        speed, peak_mb, _ = measured
        good = speed >= bar and peak_mb < MEMORY_BAR_MB
        failed |= not good
        ratio = "" if rival is None else f"{speed / rival[0]:5.1f}x naive"
        print(f"{name:28s} {speed:10,.0f}/s {peak_mb:5.0f} MB  {ratio:14s} {'ok' if good else 'MISSED'}")

    with (
        as_file(files("evertally.pipelines.local") / "data" / "departures.csv.gz") as data,
        tempfile.TemporaryDirectory() as temporary,
    ):
        folder = Path(temporary)
        plain, tenfold, lines = folder / "a.csv", folder / "b.csv", folder / "c.jsonl"
        zipped = folder / "a.csv.gz"
        zipped.write_bytes(data.read_bytes())
        # written line by line: a child's peak memory begins at its parent's
        with gzip.open(data, "rt", newline="") as rows, plain.open("w", newline="") as file:
            file.writelines(rows)
        with tenfold.open("w", newline="") as file:
            for turn in range(10):
                with plain.open(newline="") as rows:
                    header = next(rows)
                    file.writelines([header] if turn == 0 else [])
                    file.writelines(rows)
        with plain.open(newline="") as rows, lines.open("w") as file:
            file.writelines(json.dumps(row) + "\n" for row in csv.DictReader(rows))
        naive_csv, naive_json = measure(naive, plain, EVENTS), measure(naive, lines, EVENTS)
        once = measure(ours, plain, EVENTS)
        report("CSV", once, CSV_BAR, naive_csv)
        report("CSV, gzip", measure(ours, zipped, EVENTS), CSV_BAR, naive_csv)
        ten = measure(ours, tenfold, 10 * EVENTS)
        report("CSV, ten times as long", ten, CSV_BAR, None)
        report("JSON lines", measure(ours, lines, EVENTS), JSON_BAR, naive_json)
        report("CSV, bounded by aircraft", measure(ours, plain, EVENTS, "tail"), 0, None)
        report("naive CSV", naive_csv, 0, None)
        report("naive JSON lines", naive_json, 0, None)
        assert (once[2], ten[2]) == (EVENTS, 10 * EVENTS)
        flat = ten[1] < 1.1 * once[1]
        print(f"memory at ten times the length: {ten[1] / once[1]:.2f}x  {'ok' if flat else 'MISSED'}")
    sys.exit(1 if strict and (failed or not flat) else 0)


if __name__ == "__main__":
    main()
