"""Figures of rival accountants, as JSON: run by make_accountants_comparison.py under a Python that has them.

Needs `jax-privacy` (its Monte Carlo verification) and `random-allocation` (its exact Renyi route); a package
that is missing is reported as such.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any


def monte_carlo() -> dict[str, Any]:
    """Seconds a sample for the banded square root, N = 1000, b = 100, and samples needed for each delta."""
    import numpy as np
    from jax_privacy import batch_selection
    from jax_privacy.experimental.monte_carlo import delta_calculation, sample_generation

    strategy = batch_selection.BallsInBinsSampling(cycle_length=100, iterations=1000)
    taps = np.array([1.0, 0.5, 0.375, 0.3125])
    samples = 2000
    start = time.perf_counter()
    loss, _ = sample_generation.get_privacy_loss_sample(strategy, 1.7, taps, seed=0, num_samples=samples)
    seconds = (time.perf_counter() - start) / samples
    needed = {}
    for exponent in range(3, 9):
        target = 10.0**-exponent
        needed[f"1e-{exponent}"] = delta_calculation.minimum_samples_to_calibrate(0.5 * target, target)
    return {"seconds_a_sample": seconds, "needed": needed, "mean_loss": float(np.mean(loss))}


def direct() -> dict[str, Any]:
    """Epsilon of random-allocation's `direct` route, C = I, N = 1000, delta 1e-5, at given noise."""
    from random_allocation.comparisons.definitions import PrivacyParams, SchemeConfig
    from random_allocation.random_allocation_scheme.direct import allocation_epsilon_direct

    out = {}
    for sigma in (1.119, 0.6525, 0.3854):
        start = time.perf_counter()
        params = PrivacyParams(num_steps=1000, num_selected=1, num_epochs=1, sigma=sigma, delta=1e-5)
        epsilon = float(
            allocation_epsilon_direct(params, SchemeConfig(allocation_direct_alpha_orders=list(range(2, 65))))
        )
        out[str(sigma)] = {"epsilon": epsilon, "seconds": time.perf_counter() - start}
    return out


def main() -> None:
    """Print one JSON object."""
    found: dict[str, Any] = {}
    for name, work in (("monte_carlo", monte_carlo), ("direct", direct)):
        try:
            found[name] = work()
        except Exception as error:
            found[name] = {"missing": f"{type(error).__name__}: {error}"[:120]}
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
