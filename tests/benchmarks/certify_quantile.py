"""How far is the normal quantile that draws rest on from the truth? Ten million points, ball arithmetic.

python tests/benchmarks/certify_quantile.py [--points 10000000] [--strict]

Bar: |ndtri(p) - Phi^-1(p)| <= 2^-46 max(1, x) everywhere the fast path trusts it; the worst error seen is
printed in bits. The rival is the bar itself: four bits and more of margin were found.
"""

from __future__ import annotations

import argparse
import math

import flint
import numpy as np
from scipy.special import ndtri


def worst_bits(points: int) -> float:
    """log2 of the largest error relative to max(1, x), over a low-discrepancy set down to 2^-44."""
    flint.ctx.prec = 90
    arb, root = flint.arb, flint.arb(2).sqrt()
    worst = 0.0
    half = points // 2
    for first in range(0, half, 1 << 16):
        golden = np.modf(np.arange(first + 1, min(first + (1 << 16), half) + 1) * 0.6180339887498949)[0]
        p = np.maximum(np.concatenate([0.5 * golden, np.exp2(-1 - 43 * golden)]), 2.0**-44)
        x = -ndtri(p)
        density = np.exp(-0.5 * x * x) / math.sqrt(2 * math.pi) * np.maximum(1.0, x)
        for probability, quantile, scale in zip(p.tolist(), x.tolist(), density.tolist(), strict=True):
            gap = (arb(quantile) / root).erfc() / 2 - arb(probability)
            worst = max(worst, float(abs(gap).upper()) / scale)
    return math.log2(worst)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, default=10_000_000)
    parser.add_argument("--strict", action="store_true")
    arguments = parser.parse_args()
    bits = worst_bits(arguments.points)
    met = bits <= -46
    verdict = "met" if met else "MISSED"
    print(f"worst error 2^{bits:.2f} max(1, x) at {arguments.points} points, bar 2^-46: {verdict}")
    raise SystemExit(1 if arguments.strict and not met else 0)


if __name__ == "__main__":
    main()
