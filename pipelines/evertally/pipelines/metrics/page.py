"""The public page: the released totals of the public plane for people, without JavaScript."""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path
from typing import Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from evertally.pipelines.metrics.exposition import PublicView
from evertally.pipelines.metrics.plane import Answer
from evertally.pipelines.metrics.standing import KeyWindow, StreamStanding
from evertally.pipelines.ticks import format_ms

__all__ = ["STATIC_FILES", "page_html", "static_answer"]

STATIC_FILES: Final = {"style.css": "text/css", "public.css": "text/css", "icon.svg": "image/svg+xml"}
_OWN: Final = Path(__file__).parent
_NORMAL_95: Final = 1.959963984540054


def page_html(view: PublicView) -> bytes:
    """The whole page; the same view gives the same bytes."""
    return _template().render(view=view).encode()


def static_answer(name: str) -> Answer:
    """A file of this page, or of the house's look, which the budget page ships."""
    own = _OWN / "static" / name
    if own.exists():
        return Answer(200, STATIC_FILES[name], own.read_bytes())
    # found, not imported: the budget page would bring the service and a ledger that can be written
    spec = importlib.util.find_spec("evertally.accountants")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    folder = Path(next(iter(spec.submodule_search_locations))) / "budget" / "service" / "page" / "static"
    return Answer(200, STATIC_FILES[name], (folder / name).read_bytes())


@functools.cache
def _template() -> Template:
    environment = Environment(
        loader=FileSystemLoader(_OWN / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(
        band=_band, count=_count, time=format_ms, window_names=_window_names, window_of=_window_of
    )
    return environment.get_template("public.html")


def _band(stderr: str | float) -> str:
    """Half the width of a 95 % band.

    >>> _band("20.5"), _band(0.25)
    ('40.2', '0.49')
    """
    width = _NORMAL_95 * float(stderr)
    return f"{width:,.1f}" if width >= 10 else f"{width:.2g}"


def _count(value: int) -> str:
    """An integer with separated thousands.

    >>> _count(-1234567)
    '−1,234,567'
    """
    return f"{value:,}".replace("-", "−")


def _window_names(stream: StreamStanding) -> list[str]:
    return list(dict.fromkeys(window.window for window in stream.windows))


def _window_of(stream: StreamStanding, key: str, name: str) -> KeyWindow | None:
    return _index(stream).get((key, name))


@functools.lru_cache(maxsize=1)
def _index(stream: StreamStanding) -> dict[tuple[str, str], KeyWindow]:
    return {(window.key, window.window): window for window in stream.windows}
