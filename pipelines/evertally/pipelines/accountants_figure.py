"""The figure of `evertally account` and `calibrate`: epsilon against noise, a line for each bound."""

from __future__ import annotations

import math
from collections.abc import Collection
from pathlib import Path
from typing import Final

from evertally.accountants import account
from evertally.accountants.bound import Source
from evertally.accountants.participation import Participation
from evertally.accountants.strategies import Strategy
from evertally.errors import InvalidParameter, StorageFull

__all__ = ["draw_epsilon"]

_POINTS: Final = 13
_FACTOR: Final = 2.0
_COLOURS: Final[dict[Source, str]] = {
    "gaussian": "#999999",
    "renyi": "#1f5fa8",
    "colour": "#d95f02",
    "random-allocation": "#0b8a6f",
    "poisson-renyi": "#7570b3",
    "cc": "#a6761d",
}


def draw_epsilon(
    strategy: Strategy,
    participation: Participation,
    delta: float,
    noise_multiplier: float,
    file: Path,
    bounds: Collection[Source] | None = None,
) -> None:
    """Draw epsilon at `delta` from half to twice `noise_multiplier`, every bound and the lower bound, as PNG.

    Conditional composition has its line where `bounds` names it: it takes long, at every one of the points.
    A bound's line ends where it has no finite value.

    Raises:
        InvalidParameter: matplotlib is not installed.
        StorageFull: the file could not be written.
    """
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415  an extra, and slow to import
    except ImportError:
        raise InvalidParameter(
            "plot", str(file), "matplotlib here: the extra `plots` of the wheel, or `make venv`"
        ) from None
    steps = [2.0 * i / (_POINTS - 1) - 1.0 for i in range(_POINTS)]
    sigmas = [noise_multiplier * _FACTOR**step for step in steps]
    accounts = [account(strategy, participation, sigma, bounds) for sigma in sigmas]
    lines = [found.each_epsilon(delta=delta) for found in accounts]
    figure = Figure(figsize=(8.0, 5.0), dpi=120, layout="constrained")
    axes = figure.subplots()
    for name in lines[0]:
        values = [line[name] if math.isfinite(line[name]) else math.nan for line in lines]
        axes.plot(sigmas, values, label=name, color=_COLOURS[name])
    lower = [found.epsilon(delta=delta).lower for found in accounts]
    if any(value > 0.0 for value in lower):
        axes.plot(sigmas, lower, label="certified lower bound", color="#222222", linestyle="--")
    axes.set_xscale("log")
    if all(value > 0.0 for line in lines for value in line.values()):
        axes.set_yscale("log")
    axes.set_xlabel("noise multiplier (sigma over clip norm)")
    axes.set_ylabel(f"epsilon (nats) at delta = {delta:.3g}")
    axes.grid(visible=True, which="both", alpha=0.25)
    axes.legend()
    try:
        figure.savefig(file, format="png")
    except OSError as error:
        raise StorageFull(f"the figure could not be written: {error.strerror}") from None
