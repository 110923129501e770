"""Unbounded private counters: factorizations, exact noise, running totals.

>>> from evertally.counters import NoiseKey, Rational, RunningCounter
"""

from typing import TYPE_CHECKING, Any

from evertally.counters.bank import CounterBank, TickRelease
from evertally.counters.contribution import ADJACENCIES, Contribution
from evertally.counters.counter import Release, RunningCounter
from evertally.counters.factorization import Factorization, NoiseEngine, NoiseSource
from evertally.counters.grid import SLACK_HORIZON, Grid
from evertally.counters.keys import KeyedNoise, NoiseKey
from evertally.counters.mechanisms import parse_mechanism
from evertally.counters.rational import Rational
from evertally.counters.vector import VectorCounter, clip_l2
from evertally.counters.windows import window_power

if TYPE_CHECKING:
    from evertally.counters.log_perturbed import LogPerturbed

__all__ = [
    "ADJACENCIES",
    "SLACK_HORIZON",
    "Contribution",
    "CounterBank",
    "Factorization",
    "Grid",
    "KeyedNoise",
    "LogPerturbed",
    "NoiseEngine",
    "NoiseKey",
    "NoiseSource",
    "Rational",
    "Release",
    "RunningCounter",
    "TickRelease",
    "VectorCounter",
    "clip_l2",
    "parse_mechanism",
    "window_power",
]


def __getattr__(name: str) -> Any:
    """Import the FFT-based family on first use: it brings FFT libraries that many users never need."""
    if name == "LogPerturbed":
        from evertally.counters.log_perturbed import LogPerturbed  # noqa: PLC0415

        return LogPerturbed
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
