"""The figure of `evertally compare`: variance over V_t^2 at equal privacy."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from evertally.counters.rivals.comparison import Contender
from evertally.counters.yardstick import yardstick_variance
from evertally.errors import InvalidParameter, StorageFull

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw_comparison"]

_INK: Final = "#222222"
_FIRST_TICK: Final = 2
_PER_OCTAVE: Final = 4
_LABEL_GAP: Final = 0.031
_MARKS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)


@dataclass(frozen=True, slots=True)
class _Line:
    key: str
    text: str
    colour: str
    width: float = 1.6
    dashed: bool = False


_MECHANISMS: Final = (
    _Line("sqrt", "square root, T = t known", "#555555", 1.8),
    _Line("W32", "rational W32, the default", "#1f5fa8", 2.8),
    _Line("H40", "rational H40", "#4a90d9"),
    _Line("log-1.2-constant", "log-pert. α=.01 δ=-6γ/5, const. memory", "#0b8a6f"),
    _Line("log-default", "log-perturbed α=1 δ=-6γ/5", "#63b598"),
    _Line("power", "power perturbation a=.05", "#8c6d31"),
    _Line("paper-hybrid", "paper's hybrid (worst of segment)", "#d95f02"),
    _Line("smooth-binary", "smooth binary, n = t known", "#7570b3"),
    _Line("tree", "binary tree, n = t known (mean)", "#a6761d"),
    _Line("doubling", "doubling trick", "#e7298a"),
    _Line("hybrid", "hybrid of Chan et al. (mean)", "#b2182b"),
    _Line("independent", "independent noise", "#999999"),
    _Line("fixed-budget", "fixed budget", "#bbbbbb"),
)
_PUBLISHED: Final = (
    _Line("W32", "rational W32, the default", "#1f5fa8", 2.8),
    _Line("log-0", "δ=0, true", "#0b8a6f", 2.0),
    _Line("log-0-published", "δ=0, as published", "#0b8a6f", 2.0, True),
    _Line("log-1", "δ=-γ, true", "#d95f02", 2.0),
    _Line("log-1-published", "δ=-γ, as published", "#d95f02", 2.0, True),
    _Line("log-1.2", "δ=-6γ/5, true", "#b2182b", 2.0),
    _Line("log-1.2-published", "δ=-6γ/5, as published", "#b2182b", 2.0, True),
)


def draw_comparison(contenders: Sequence[Contender], last: int, path: Path) -> None:
    """Draw all mechanisms up to tick `last` as a PNG of 1,800 x 900 pixels.

    Raises:
        InvalidParameter: the path cannot be written, or matplotlib (extra `plots`) is not installed.
        StorageFull: the picture could not be written.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415 - an extra, and slow to import
        from matplotlib.figure import Figure  # noqa: PLC0415 - as above
    except ImportError:
        raise InvalidParameter(
            "plot", "no matplotlib", "matplotlib here: the extra `plots` of the wheel, or `make venv`"
        ) from None
    if not os.path.isdir(path.parent):
        raise InvalidParameter("plot", str(path), "a path in an existing folder")
    by_key = {contender.key: contender for contender in contenders}
    figure = Figure(figsize=(18, 9), dpi=100, layout="constrained")
    FigureCanvasAgg(figure)
    everyone, published = figure.subplots(1, 2, width_ratios=(1.25, 1.0))
    _draw(everyone, by_key, _MECHANISMS, last, (0.85, 40.0))
    everyone.set_title("every mechanism with its true sensitivity", fontsize=13, color=_INK)
    _draw(published, by_key, _PUBLISHED, last, (0.85, 6000.0))
    published.set_title("log-perturbed family at α = .01: published and true", fontsize=13, color=_INK)
    figure.suptitle(
        "Variance of the running total at tick t over $V_t^2$, that of the square root made for "
        "exactly t ticks; all at mu = 1",
        fontsize=14,
        color=_INK,
    )
    try:
        figure.savefig(path, format="png", metadata={"Software": "evertally"})
    except OSError as error:
        raise StorageFull(f"{path}: the picture could not be written ({error.strerror})") from None


def _draw(
    axes: Axes, by_key: dict[str, Contender], lines: Sequence[_Line], last: int, limits: tuple[float, float]
) -> None:
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlim(_FIRST_TICK, last)
    ends: list[tuple[float, _Line]] = []
    for line in lines:
        contender = by_key[line.key]
        if line.key == "paper-hybrid":
            _draw_saw(axes, contender, last, line)
        ticks = _octaves(last) if contender.jumps else _ticks(last)
        ratios = [contender.curve(t) / yardstick_variance(t) for t in ticks]
        style = (0, (5, 2)) if line.dashed else "-"
        axes.plot(ticks, ratios, color=line.colour, linewidth=line.width, linestyle=style, label=line.text)
        if ratios[-1] <= limits[1]:
            ends.append((ratios[-1], line))
        else:
            _name_where_it_leaves(axes, ticks, ratios, line, limits[1])
    axes.set_xlabel("tick t")
    axes.set_ylabel("variance / $V_t^2$ (logarithmic)")
    axes.set_yticks([y for y in _MARKS if limits[0] <= y < limits[1]])
    axes.yaxis.set_major_formatter("{x:g}")
    axes.minorticks_off()
    axes.set_ylim(*limits)
    _label_ends(axes, ends)
    axes.grid(visible=True, color="#e2e2e2", linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _octaves(last: int) -> list[int]:
    """Powers of two from the first tick on, and the last tick."""
    return sorted({2**m for m in range(1, last.bit_length())} | {last})


def _ticks(last: int) -> list[int]:
    """Whole ticks, four an octave."""
    steps = math.ceil(math.log2(last / _FIRST_TICK) * _PER_OCTAVE)
    ratio = last / _FIRST_TICK
    return sorted({round(_FIRST_TICK * ratio ** (i / steps)) for i in range(steps + 1)})


def _draw_saw(axes: Axes, contender: Contender, last: int, line: _Line) -> None:
    """The variance tick by tick, faintly: it drops where a segment's total is published and jumps back."""
    near = {t + d for t in _octaves(last) for d in (-1, 0, 1)} | set(_ticks(last))
    ticks = sorted(t for t in near if _FIRST_TICK <= t <= last)
    ratios = [contender.rival(t).variance(t) / yardstick_variance(t) for t in ticks]
    axes.plot(ticks, ratios, color=line.colour, linewidth=0.8, alpha=0.4)


def _name_where_it_leaves(axes: Axes, ticks: list[int], ratios: list[float], line: _Line, top: float) -> None:
    """Name a line that leaves the picture at its top edge."""
    above = next(i for i, ratio in enumerate(ratios) if ratio > top)
    axes.annotate(
        line.text,
        xy=(ticks[max(above - 1, 0)], top),
        xytext=(8, -10),
        textcoords="offset points",
        rotation=90,
        va="top",
        fontsize=9,
        color="#777777",
    )


def _label_ends(axes: Axes, ends: list[tuple[float, _Line]]) -> None:
    """Name each line and its last value right of the axes, pushed apart where lines end close together."""
    low, high = (math.log(limit) for limit in axes.get_ylim())
    ends = sorted(ends, key=lambda end: -end[0])
    places = [(math.log(value) - low) / (high - low) for value, _ in ends]
    for index in range(1, len(places)):
        places[index] = min(places[index], places[index - 1] - _LABEL_GAP)
    lowest = 0.01
    for index in range(len(places) - 1, -1, -1):
        places[index] = max(places[index], lowest)
        lowest = places[index] + _LABEL_GAP
    for place, (value, line) in zip(places, ends, strict=True):
        exact = (math.log(value) - low) / (high - low)
        axes.annotate(
            f"{line.text}  {value:.3g}",
            xy=(1.0, exact),
            xytext=(1.03, place),
            xycoords="axes fraction",
            textcoords="axes fraction",
            va="center",
            fontsize=10,
            color=line.colour,
            annotation_clip=False,
            arrowprops={
                "arrowstyle": "-",
                "color": line.colour,
                "linewidth": 0.7,
                "relpos": (0.0, 0.5),
            },
        )
