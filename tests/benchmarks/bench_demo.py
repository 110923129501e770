"""How long does the demo take, from the command to the picture?

python tests/benchmarks/bench_demo.py [--strict]

Bar: <= 8 s wall on 2 cores, after installation, with the plot. The rival of the same run counts the same
file without any privacy, in the plainest Python: csv.DictReader and a dictionary.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from importlib.resources import as_file, files
from pathlib import Path

BAR_S = 8.0
RIVAL = """
import csv, gzip, sys
from collections import Counter
from datetime import datetime
with gzip.open(sys.argv[1], "rt", newline="") as file:
    rows = csv.DictReader(file)
    Counter((datetime.fromisoformat(row["timestamp"]).replace(minute=0), row["carrier"]) for row in rows)
"""


def wall_s(*command: str) -> float:
    start = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - start


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--strict", action="store_true", help="exit 1 where the bar is missed")
    strict = arguments.parse_args().strict
    program = str(Path(sys.executable).with_name("evertally"))
    with (
        as_file(files("evertally.pipelines.local") / "data" / "departures.csv.gz") as data,
        tempfile.TemporaryDirectory() as folder,
    ):
        wall_s(program, "--version")  # the first start writes bytecode
        demo = min(wall_s(program, "demo", "--out", f"{folder}/{n}") for n in range(3))
        rival = min(wall_s(sys.executable, "-c", RIVAL, str(data)) for _ in range(3))
        start_up = min(wall_s(program, "--help") for _ in range(3))
    good = demo <= BAR_S
    print(f"demo       {demo:6.2f} s  {demo / rival:5.1f}x the exact count  {'ok' if good else 'MISSED'}")
    print(f"exact count {rival:5.2f} s  (plain Python, no privacy, no ledger, no plot)")
    print(f"--help      {start_up:5.2f} s  {'ok' if start_up < 1 else 'MISSED'} (bar 1 s)")
    sys.exit(1 if strict and not (good and start_up < 1) else 0)


if __name__ == "__main__":
    main()
