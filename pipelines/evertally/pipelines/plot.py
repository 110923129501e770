"""A picture of a releases file: noisy totals with error bands, and what never knowing the end costs.

Everything drawn comes from public releases; drawing is post-processing and costs no privacy.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from evertally.errors import InvalidParameter, StorageFull
from evertally.pipelines.guarantee import rounded_up
from evertally.pipelines.known_end import known_end_stderr
from evertally.pipelines.releases import Release, StreamHeader

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["ReleaseTable", "draw_releases"]

_POINTS_MAX: Final = 1200
_KEYS_MAX: Final = 20
_BAND: Final = 2.0
_INK: Final = "#222222"
# dark enough to read as text on white; neighbours are far apart in hue
_COLOURS: Final = (
    "#1f5fa8", "#c2540a", "#1b7f3b", "#b2182b", "#6a3d9a",
    "#7a4b2a", "#c2378e", "#00798c", "#8a7a00", "#3d3d3d",
)  # fmt: skip
_OURS: Final = "#1f5fa8"
_THEIRS: Final = "#b2182b"


@dataclass(frozen=True, slots=True, eq=False)
class ReleaseTable:
    """Releases as arrays, at most about 1,200 ticks of them, the first and the last included.

    Attributes:
        header: the stream.
        ticks: drawn ticks, int64, shape (n,).
        values: noisy totals, float64, shape (n, keys), in the order of the header's keys.
        stderr: standard error at each tick, float64, shape (n,).
    """

    header: StreamHeader
    ticks: NDArray[np.int64]
    values: NDArray[np.float64]
    stderr: NDArray[np.float64]

    @classmethod
    def collect(cls, header: StreamHeader, releases: Iterable[Release]) -> ReleaseTable:
        """Sort releases into a table. Raises InvalidParameter where there are none, or one is missing."""
        column = {key: index for index, key in enumerate(header.keys)}
        rows: dict[int, list[int]] = {}
        errors: dict[int, float] = {}
        for release in releases:
            index = column.get(release.key)
            if index is None or release.stream != header.stream:
                raise InvalidParameter("releases", "a release of another stream", f"stream {header.stream}")
            row = rows.setdefault(release.t, [])
            if len(row) != index:
                raise InvalidParameter(
                    "releases", "keys out of order", "the keys of the header, at every tick"
                )
            row.append(release.value)
            errors[release.t] = release.stderr
        last = len(rows)
        if not last or max(rows) != last or any(len(row) != len(column) for row in rows.values()):
            raise InvalidParameter("releases", "missing ticks or keys", "every key at every tick from 1 on")
        ticks = np.unique(np.linspace(1, last, min(last, _POINTS_MAX)).round().astype(np.int64))
        early = np.unique(
            np.geomspace(1, last, 200).round().astype(np.int64)
        )  # the second axis is logarithmic
        ticks = np.union1d(ticks, early)
        try:
            totals = np.array([rows[int(t)] for t in ticks], np.float64)
        except OverflowError:
            raise InvalidParameter("releases", "a larger total", "totals that a double holds") from None
        return cls(header, ticks, totals, np.array([errors[int(t)] for t in ticks]))

    def known_end(self) -> NDArray[np.float64]:
        """Standard error, at the same ticks and privacy, of the mechanism that knew the last one."""
        return known_end_stderr(self.header, int(self.ticks[-1]), [int(t) for t in self.ticks])


def draw_releases(table: ReleaseTable, path: Path) -> None:
    """Draw a table as a PNG of 1,600 x 1,000 pixels.

    Raises:
        InvalidParameter: the path cannot be written, or matplotlib (extra `plots`) is not installed.
        StorageFull: the picture could not be written.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415 - an extra
        from matplotlib.figure import Figure  # noqa: PLC0415 - as above
    except ImportError:
        raise InvalidParameter(
            "plot", "no matplotlib", "matplotlib here: the extra `plots` of the wheel, or `make venv`"
        ) from None
    figure = Figure(figsize=(16, 10), dpi=100, layout="constrained")
    FigureCanvasAgg(figure)
    totals, errors = figure.subplots(1, 2, width_ratios=(1.75, 1.0))
    _draw_totals(totals, table)
    _draw_errors(errors, table)
    header = table.header
    figure.suptitle(
        f"{_plain(header.stream)}: epsilon = {rounded_up(header.epsilon, 3)} at "
        f"delta = {rounded_up(header.delta, 3)}, once and for ever "
        f"(mu = {rounded_up(header.mu, 3)}, {header.mechanism}, unit: {header.unit})",
        fontsize=14,
        color=_INK,
    )
    if not os.path.isdir(path.parent):
        raise InvalidParameter("out", str(path), "a path in an existing folder")
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Glyph")  # keys in a script the font has not
            figure.savefig(path, format="png", metadata={"Software": "evertally"})
    except OSError as error:
        raise StorageFull(f"{path}: the picture could not be written ({error.strerror})") from None


def _draw_totals(axes: Axes, table: ReleaseTable) -> None:
    times = (table.header.start_ms + table.ticks * table.header.tick_ms).astype("datetime64[ms]")
    order = np.argsort(-table.values[-1])
    shown = order[:_KEYS_MAX]
    half = _BAND * table.stderr
    for place, key in enumerate(shown):
        total, colour = table.values[:, key], _COLOURS[place % len(_COLOURS)]
        axes.fill_between(times, total - half, total + half, color=colour, alpha=0.25, linewidth=0)
        axes.plot(times, total, color=colour, linewidth=1.3)
    linear = max(1.0, 4.0 * float(table.stderr[-1]))
    axes.set_yscale("symlog", linthresh=linear, linscale=0.6)
    top = max(float(table.values.max()), linear)
    bottom = min(0.0, float((table.values[:, shown] - half[:, None]).min()))
    axes.set_ylim(1.1 * bottom, 1.3 * top)
    start = np.datetime64(table.header.start_ms, "ms")
    axes.set_xlim(start, times[-1])  # type: ignore[arg-type]  # stubs know floats only
    _label_ends(axes, [(float(table.values[-1, key]), table.header.keys[key]) for key in shown])
    hidden = len(order) - len(shown)
    note = f"; {hidden} smaller keys not drawn" if hidden else ""
    axes.set_title(
        f"noisy running totals with bands of {_BAND:g} standard errors{note}", fontsize=12, color=_INK
    )
    axes.set_ylabel(f"total (linear below {linear:.0f}, logarithmic above)")
    axes.set_xlabel("end of tick, UTC")
    axes.tick_params(axis="x", rotation=30)
    _tidy(axes)


def _label_ends(axes: Axes, ends: list[tuple[float, str]]) -> None:
    """Name each line at its right end, pushed apart where lines end close together."""
    transform = axes.transData.transform
    inverse = axes.transAxes.inverted().transform
    places = [float(inverse(transform((axes.get_xlim()[1], value)))[1]) for value, _ in ends]
    gap = 0.024
    for index in range(1, len(places)):  # ends come from the top down
        places[index] = min(places[index], places[index - 1] - gap)
    lift = max(0.0, 0.005 - places[-1])
    for index in range(len(places) - 1, -1, -1):
        floor = places[index + 1] + gap if index + 1 < len(places) else places[index] + lift
        places[index] = max(places[index], floor)
    for index, (place, (value, key)) in enumerate(zip(places, ends, strict=True)):
        axes.annotate(
            f"{_plain(key)} {value:,.0f}",
            xy=(1.0, place),
            xytext=(6, 0),
            xycoords="axes fraction",
            textcoords="offset points",
            va="center",
            fontsize=9.5,
            color=_COLOURS[index % len(_COLOURS)],
            annotation_clip=False,
        )


def _draw_errors(axes: Axes, table: ReleaseTable) -> None:
    known = table.known_end()
    last = int(table.ticks[-1])
    for values, label, colour, style, shift in (
        (table.stderr, "this stream, which never ends", _OURS, "-", 10),
        (known, "square root that knows the end", _THEIRS, "--", -20),
    ):
        axes.plot(table.ticks, values, style, color=colour, linewidth=2.2, label=label)
        axes.plot([last], [values[-1]], "o", color=colour, markersize=6)
        axes.annotate(
            f"{values[-1]:.1f}",
            xy=(last, float(values[-1])),
            xytext=(-4, shift),
            textcoords="offset points",
            ha="right",
            fontsize=12,
            color=colour,
        )
    axes.legend(loc="lower right", frameon=False, fontsize=11.5)
    axes.set_xscale("log")
    axes.set_xlim(1, max(2.0, last * 1.08))
    axes.set_ylim(0, 1.25 * float(max(table.stderr.max(), known.max())))
    axes.set_title("standard error of each total, at equal privacy", fontsize=12, color=_INK)
    axes.set_xlabel(f"tick of {table.header.tick_ms / 1000:g} s (logarithmic)")
    axes.set_ylabel("standard error, value units")
    _tidy(axes)


def _plain(text: str) -> str:
    """A name as it is, not as mathematics."""
    return text.replace("$", r"\$")


def _tidy(axes: Axes) -> None:
    axes.grid(visible=True, color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
