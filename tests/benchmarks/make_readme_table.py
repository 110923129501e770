"""Write the table of figures in README.md: each is computed here, none is typed.

python tests/benchmarks/make_readme_table.py
"""

from __future__ import annotations

from pathlib import Path

from evertally.accountants import BallsInBins, BandedSquareRoot, Identity, calibrate_noise_multiplier
from evertally.accountants.gaussian import gaussian_mu
from evertally.counters import Rational
from evertally.counters.yardstick import yardstick, yardstick_variance

README = Path(__file__).resolve().parents[2] / "README.md"
BEGIN, END = "<!-- begin measured -->\n", "<!-- end measured -->"


def rows() -> list[tuple[str, str, str]]:
    """(question, figure, page or script behind it)."""
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
                "[accountants](docs/comparison-accountants.md)",
            )
        )
    return [
        (
            "variance against the mechanism that knows its last tick, worst from tick 2^8 to 2^32",
            f"{worst:.4g} times",
            "[comparison](docs/comparison.md)",
        ),
        (
            "standard error of a carrier's total after a year of hourly releases, epsilon 1 at delta 1e-6",
            f"{ours:.3g} flights; {known:.3g} for a mechanism that knows the end",
            "`make demo`",
        ),
        *found,
    ]


def main() -> None:
    text = README.read_text()
    table = ["| what | figure | where |", "|---|---|---|", *(f"| {a} | {b} | {c} |" for a, b, c in rows())]
    note = (
        "Written by `tests/benchmarks/make_readme_table.py`; speeds are in [benchmarks](docs/benchmarks.md)."
    )
    head, _, rest = text.partition(BEGIN)
    README.write_text(head + BEGIN + "\n".join(table) + f"\n\n{note}\n" + END + rest.partition(END)[2])


if __name__ == "__main__":
    main()
