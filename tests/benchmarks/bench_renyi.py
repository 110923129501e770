"""How fast is one Renyi sweep? Run as a program: python tests/benchmarks/bench_renyi.py.

Rival in the same run: the numpy engine against the compiled one, and random-allocation's direct accountant at
one order where it is installed. CPU seconds of one thread, the best of three.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from evertally.accountants import BallsInBins, BandedSquareRoot
from evertally.accountants.banded_moments import banded_log_moments
from evertally.accountants.small_moments import diagonal_log_moments


def best(run: Callable[[], object]) -> float:
    """Least CPU seconds of three runs, after one to warm up."""
    run()
    times = []
    for _ in range(3):
        start = time.process_time()
        run()
        times.append(time.process_time() - start)
    return min(times)


def main() -> None:
    """Print seconds and the share of each bar."""
    gram = BandedSquareRoot(4).gram(BallsInBins(100, 10))
    scaled = gram.diagonals(4) / 3.2**2
    identity = best(lambda: diagonal_log_moments(np.full(1000, 1.0), 64))
    compiled = best(lambda: banded_log_moments(scaled, 16, cyclic=True))
    short = best(lambda: banded_log_moments(scaled, 8, cyclic=True))
    plain = best(lambda: banded_log_moments(scaled, 8, cyclic=True, engine="numpy"))
    print("case                                         s      bar    share")
    print(f"identity b=1000, orders 2..64        {identity:9.4f}     0.20   {identity / 0.2:6.3f}")
    print(f"BSR p=4 N=1000 k=10, orders to 16    {compiled:9.4f}     5.00   {compiled / 5.0:6.3f}")
    print(f"numpy over compiled, orders to 8: {plain / short:.1f} x")


if __name__ == "__main__":
    main()
