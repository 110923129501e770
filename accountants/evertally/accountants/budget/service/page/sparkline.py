"""A small line with its error band, drawn as SVG on the server from released values only."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from markupsafe import Markup

__all__ = ["BAND_SDS", "band_half_width", "sparkline"]

BAND_SDS: Final = 1.959964
"""Half-width of the 95 % band in standard errors."""

_WIDTH: Final = 420
_HEIGHT: Final = 56
_MARGIN: Final = 5


def band_half_width(stderr: str) -> int:
    """Half the 95 % band around a released total, in counts, rounded up.

    >>> band_half_width("20.5")
    41
    """
    return math.ceil(BAND_SDS * float(stderr))


def sparkline(points: Sequence[tuple[int, str]], label: str) -> Markup:
    """An inline SVG of (value, standard error) pairs in order of time.

    Values are integers of any size: they are scaled by exact integer differences.

    Args:
        points: released values with their standard errors; at least one.
        label: what a screen reader says.
    """
    halves = [band_half_width(stderr) for _, stderr in points]
    low = min(value - half for (value, _), half in zip(points, halves, strict=True))
    high = max(value + half for (value, _), half in zip(points, halves, strict=True))
    span = max(1, high - low)
    step = (_WIDTH - 2 * _MARGIN) / max(1, len(points) - 1)

    def x(index: int) -> float:
        return _MARGIN + step * index

    def y(value: int) -> float:
        return _HEIGHT - _MARGIN - (value - low) / span * (_HEIGHT - 2 * _MARGIN)

    line = [(x(i), y(value)) for i, (value, _) in enumerate(points)]
    upper = [(x(i), y(value + halves[i])) for i, (value, _) in enumerate(points)]
    lower = [(x(i), y(value - halves[i])) for i, (value, _) in enumerate(points)]
    end_x, end_y = line[-1]
    return Markup(
        '<svg class="spark" viewBox="0 0 {w} {h}" role="img" aria-label="{label}">'
        '<polygon class="band" points="{band}"/><polyline class="line" points="{line}"/>'
        '<line class="bar" x1="{x:.1f}" x2="{x:.1f}" y1="{top:.1f}" y2="{bottom:.1f}"/>'
        '<circle class="dot" cx="{x:.1f}" cy="{y:.1f}" r="3"/></svg>'
    ).format(
        w=_WIDTH,
        h=_HEIGHT,
        label=label,
        band=_path([*upper, *reversed(lower)]),
        line=_path(line),
        x=end_x,
        y=end_y,
        top=upper[-1][1],
        bottom=lower[-1][1],
    )


def _path(corners: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in corners)
