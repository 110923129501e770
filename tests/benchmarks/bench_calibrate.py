"""How much noise, and how long to find it? Run as a program: python tests/benchmarks/bench_calibrate.py.

Six mechanisms at N = 1000, without conditional composition: cold, then other targets with the Gram
statistics kept, then delta 1e-8 over 1e-3. Noise is given over the unamplified Gaussian's, and next to its
bar. CPU seconds of one thread; all but the cold ones are the least of three neighbouring targets, since a
busy machine only adds to them.
"""

from __future__ import annotations

import math
import time

from evertally.accountants import (
    BLT,
    BallsInBins,
    BandedInverseMF,
    BandedInverseSquareRoot,
    BandedSquareRoot,
    BandMF,
    Identity,
    calibrate_noise_multiplier,
    gaussian_noise_multiplier,
)
from evertally.accountants.strategies import Strategy

SIX: tuple[Strategy, ...] = (
    Identity(),
    BandedSquareRoot(4),
    BandedInverseSquareRoot(4),
    BandMF(4),
    BandedInverseMF(4),
    BLT((0.3, 0.15), (0.95, 0.5)),
)
SCHEME = BallsInBins(100, 10)


def timed(strategy: Strategy, scheme: BallsInBins, epsilon: float, delta: float) -> tuple[float, float, str]:
    """Noise, CPU seconds and source."""
    start = time.process_time()
    found = calibrate_noise_multiplier(strategy, scheme, epsilon=epsilon, delta=delta)
    return found.value, time.process_time() - start, found.source


def least(strategy: Strategy, epsilon: float, delta: float) -> float:
    """CPU seconds, the least of three targets that nothing is remembered of."""
    return min(timed(strategy, SCHEME, epsilon * (1.0 + i * 1e-3), delta)[1] for i in range(3))


def main() -> None:
    """Print the three tables."""
    timed(BandedSquareRoot(2), BallsInBins(8, 2), 1.0, 1e-5)
    print("mechanism                 sigma /plain  source             cold<=60s cached<=1s 1e-8/1e-3<=1.5")
    for strategy in SIX:
        sigma, cold, source = timed(strategy, SCHEME, 2.0, 1e-5)
        plain = math.sqrt(strategy.gram(SCHEME).maximum) * gaussian_noise_multiplier(2.0, 1e-5)
        cached = max(least(strategy, epsilon, 1e-5) for epsilon in (1.0, 2.2))
        large, small = (least(strategy, 2.0, delta) for delta in (1e-3, 1e-8))
        name = type(strategy).__name__
        times = f"{cold:9.2f} {cached:10.2f} {small / large:14.2f}"
        print(f"{name:24s} {sigma:7.4f} {sigma / plain:6.3f}  {source:18s} {times}")
    print("noise bars                         sigma     bar   share")
    for epsilon, bar in ((8.0, 1.692), (2.0, 3.23), (0.5, 6.30)):
        sigma, _, _ = timed(BandedSquareRoot(4), SCHEME, epsilon, 1e-5)
        print(f"BSR p=4 k=10 epsilon {epsilon:4.1f}      {sigma:9.4f}  {bar:6.3f}  {sigma / bar:6.4f}")
    for epsilon, bar in ((0.5, 0.7192), (2.0, 0.5569), (8.0, 0.3636)):
        sigma, _, _ = timed(Identity(), BallsInBins(1000, 1), epsilon, 1e-5)
        print(f"identity k=1 epsilon {epsilon:4.1f}      {sigma:9.4f}  {bar:6.4f}  {sigma / bar:6.4f} (1 %)")


if __name__ == "__main__":
    main()
