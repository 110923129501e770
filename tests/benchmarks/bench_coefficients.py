"""Do 2^20 coefficients take at most 3 us each cold, and what does the disk cache save?

python tests/benchmarks/bench_coefficients.py [--terms 1048576] [--strict]
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time

from evertally.counters import log_perturbed
from evertally.counters.log_perturbed import LogPerturbed
from evertally.counters.series_fft import BACKENDS

BAR_US = 3.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--terms", type=int, default=1 << 20)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--strict", action="store_true")
    arguments = parser.parse_args()
    n = arguments.terms
    worst = 0.0
    for ratio in (0.0, 1.2):
        colds, warms = [], []
        for _ in range(arguments.repeats):
            with tempfile.TemporaryDirectory() as folder:
                os.environ["EVERTALLY_CACHE"] = folder
                mechanism = LogPerturbed(0.01, ratio)
                log_perturbed._IN_MEMORY.clear()
                start = time.perf_counter()
                mechanism.noise_coefficients(n)
                middle = time.perf_counter()
                log_perturbed._IN_MEMORY.clear()
                mechanism.noise_coefficients(n)
                colds.append(middle - start)
                warms.append(time.perf_counter() - middle)
        cold, warm = 1e6 * min(colds) / n, 1e6 * min(warms) / n
        worst = max(worst, cold)
        print(
            f"loglog_ratio={ratio}: cold {cold:.2f} us each, from disk {warm:.3f} us each "
            f"({cold / warm:.0f}x), FFT on {BACKENDS[0]}"
        )
    met = worst <= BAR_US
    print(f"measured / bar = {worst / BAR_US:.2f} (bar {BAR_US} us cold): {'met' if met else 'MISSED'}")
    raise SystemExit(1 if arguments.strict and not met else 0)


if __name__ == "__main__":
    main()
