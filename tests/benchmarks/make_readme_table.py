"""Write the table of figures in README.md: each is computed here or read from a page that a script wrote.

python tests/benchmarks/make_readme_table.py
"""

from __future__ import annotations

import re
from pathlib import Path

from evertally.accountants import BallsInBins, BandedSquareRoot, Identity, calibrate_noise_multiplier
from evertally.accountants.gaussian import gaussian_mu
from evertally.counters import Rational
from evertally.counters.yardstick import yardstick, yardstick_variance

README = Path(__file__).resolve().parents[2] / "README.md"
# (question, the page and the script that wrote it, where the figure stands in it, its unit)
PRINTED = (
    (
        "a release with exact noise, 10,000 keys, one core",
        ("benchmarks.md", "bench_rational.py"),
        r"10,000 keys, a release with exact noise +([\d.]+) ns",
        "ns a key",
    ),
    (
        "JSON events a second of one Kafka worker",
        ("benchmarks.md", "bench_kafka_worker.py"),
        r"events/s by the wall clock +(\d+)",
        "events/s",
    ),
    (
        "JSON events a second of the Flink job, 2 TaskManagers on 2 cores, 1,000 keys",
        ("benchmarks-flink.md", "bench_flink.py"),
        r"this job, 2 TaskManagers, 1,000 keys \| ([\d,]+)",
        "events/s",
    ),
)
BEGIN, END = "<!-- begin measured -->\n", "<!-- end measured -->"


def rows() -> list[tuple[str, str, str]]:
    """(question, figure, page and script behind it), each figure computed now."""
    w32 = Rational.preset("W32")
    variance = w32.sensitivity_squared()
    worst = max(variance * w32.noise_power(2**e) / yardstick_variance(2**e) for e in range(8, 33))
    hours, mu = 8761, gaussian_mu(1.0, 1e-6)
    ours = (variance * w32.noise_power(hours)) ** 0.5 / mu
    known = yardstick(hours) / mu
    found = []
    for name, strategy, scheme in (
        ("DP-SGD, 1,000 steps, one epoch", Identity(), BallsInBins(1000, 1)),
        ("banded square root, 10 epochs of 100 steps", BandedSquareRoot(4), BallsInBins(100, 10)),
    ):
        bound = calibrate_noise_multiplier(strategy, scheme, epsilon=2.0, delta=1e-5)
        plain = calibrate_noise_multiplier(strategy, scheme, epsilon=2.0, delta=1e-5, bounds={"gaussian"})
        found.append(
            (
                f"noise multiplier for epsilon 2 at delta 1e-5: {name}",
                f"{bound.value:.4g} ({bound.source}); without amplification {plain.value:.4g}",
                "[accountants](docs/comparison-accountants.md), `make_accountants_comparison.py`",
            )
        )
    return [
        (
            "variance against the mechanism that knows its last tick, worst from tick 2^8 to 2^32",
            f"{worst:.4g} times",
            "[comparison](docs/comparison.md), `make_counter_comparison.py`",
        ),
        (
            "standard error of a carrier's total after a year of hourly releases, epsilon 1 at delta 1e-6",
            f"{ours:.3g} flights; {known:.3g} for a mechanism that knows the end",
            "`make demo`",
        ),
        *found,
    ]


def printed() -> list[tuple[str, str, str]]:
    """Figures that the pages of benchmarks hold; one that is not there is left out."""
    found = []
    for question, (page, script), pattern, unit in PRINTED:
        figure = re.search(pattern, (README.parent / "docs" / page).read_text())
        if figure:
            where = f"[{page.removesuffix('.md')}](docs/{page}), `{script}`"
            found.append((question, f"{figure[1]} {unit}", where))
    return found


def table() -> str:
    """The block between the markers."""
    lines = ["| what | figure | page and script |", "|---|---|---|"]
    lines += [f"| {a} | {b} | {c} |" for a, b, c in (*rows(), *printed())]
    note = "Scripts stand in `tests/benchmarks`; this table is written by `make_readme_table.py` there."
    return "\n".join(lines) + f"\n\n{note}\n"


def main() -> None:
    text = README.read_text()
    head, _, rest = text.partition(BEGIN)
    README.write_text(head + BEGIN + table() + END + rest.partition(END)[2])


if __name__ == "__main__":
    main()
