"""How long does a scrape of 10,000 series take, and does it ever wait for a release?

Bar: 0.5 s for 10,000 series, also while ticks are released as fast as they can be. The rival in the same
run reads the ledger and renders at every scrape, as an exporter without a snapshot would.

    python tests/benchmarks/bench_exporter.py [--keys 2500] [--scrapes 60]
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.metrics.metrics_ledgers import Stream, opened, spec

from evertally.pipelines.metrics.exporter import parse_windows
from evertally.pipelines.metrics.exposition import PublicView, public_text
from evertally.pipelines.metrics.ledger_reader import LedgerReader
from evertally.pipelines.metrics.ledger_view import open_view

BAR_S = 0.5
PROGRAM = str(Path(sys.executable).with_name("evertally"))


def scrapes(address: str, count: int, pause_s: float) -> tuple[list[float], int]:
    """Seconds of each scrape, and the number of series."""
    seconds, series = [], 0
    for _ in range(count):
        began = time.perf_counter()
        with urllib.request.urlopen(f"{address}/metrics", timeout=60) as answer:
            body = answer.read()
        seconds.append(time.perf_counter() - began)
        series = sum(1 for line in body.splitlines() if not line.startswith(b"#"))
        time.sleep(pause_s)
    return seconds, series


def rival(ledger: Path, windows: dict[str, int], count: int) -> list[float]:
    """Seconds of reading and rendering afresh."""
    seconds = []
    for _ in range(count):
        began = time.perf_counter()
        reader = LedgerReader(open_view(str(ledger)), windows)
        standing = reader.read()
        public_text(PublicView(standing.streams, standing.scopes, ledger_up=True, series=0, series_limit=1,
                               refused_streams=0, refused_scopes=0))  # fmt: skip
        reader.close()
        seconds.append(time.perf_counter() - began)
    return seconds


def summary(name: str, seconds: list[float]) -> str:
    """Median and the slowest of them."""
    return f"{name:34} median {np.median(seconds):7.4f} s, slowest {max(seconds):7.4f} s"


def main() -> None:
    """Print the times, the ratio and the bar."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, default=2500)
    parser.add_argument("--scrapes", type=int, default=60)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        store, key_file = opened(folder)
        stream = Stream(store, key_file, spec("wide", [f"k{number}" for number in range(options.keys)]))
        stream.release([[1] * options.keys] * 6)
        began = time.perf_counter()
        process = subprocess.Popen(
            [PROGRAM, "exporter", "--ledger", str(folder / "ledger.db"), "--listen", "127.0.0.1:0",
             "--internal-listen", "127.0.0.1:0", "--window", "5m", "--series-max", "1000000"],
            stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert process.stderr is not None
        said = next(line for line in process.stderr if "listens" in line)
        started_s = time.perf_counter() - began
        ticks = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
        started_cpu_s = sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")
        found = re.search(r"http://[0-9.:]+", said)
        assert found is not None, said
        address = found[0]
        stop = threading.Event()
        released = 0

        def work() -> None:
            nonlocal released
            while not stop.is_set():
                stream.release([[1] * options.keys])
                released += 1

        try:
            idle, series = scrapes(address, options.scrapes, 0.0)
            thread = threading.Thread(target=work)
            thread.start()
            busy, _ = scrapes(address, options.scrapes, 0.05)
            stop.set()
            thread.join()
            memory = Path(f"/proc/{process.pid}/status").read_text()
        finally:
            process.terminate()
            process.wait(30)
        fresh = rival(folder / "ledger.db", parse_windows(("5m",)), 10)
        store.close()
    resident = int(re.search(r"VmRSS:\s+(\d+)", memory)[1]) // 1024  # type: ignore[index]
    print(f"{series} series; {resident} MB resident")
    print(f"the command answered {started_s:.2f} s after its start, {started_cpu_s:.2f} s of them on a core")
    print(summary("nothing is released", idle))
    print(summary(f"{released} ticks released meanwhile", busy))
    print(summary("rival: reads and renders afresh", fresh))
    print(f"ratio of the rival's median        {np.median(fresh) / np.median(idle):7.1f}")
    worst = max(*idle, *busy)
    verdict = "met" if worst <= BAR_S else "MISSED"
    print(f"bar of {BAR_S} s, slowest scrape     {worst / BAR_S:7.3f} of it: {verdict}")


if __name__ == "__main__":
    main()
