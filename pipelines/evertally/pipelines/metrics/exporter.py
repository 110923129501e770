"""The exporter: looks at the ledger on a thread, and answers scrapes from what it saw last.

A scrape never reads the ledger and never waits for one who writes it; a look never writes. The process
has no key file, no chain key and no way to change a ledger.
"""

from __future__ import annotations

import gzip
import logging
import re
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from evertally.errors import EvertallyError, InvalidParameter
from evertally.pipelines.metrics.exposition import PublicView, public_text
from evertally.pipelines.metrics.ledger_reader import LedgerReader
from evertally.pipelines.metrics.ledger_view import open_view
from evertally.pipelines.metrics.listen import Listen
from evertally.pipelines.metrics.operators import OperatorMetrics
from evertally.pipelines.metrics.page import STATIC_FILES, page_html, static_answer
from evertally.pipelines.metrics.plane import (
    METRICS_TYPE,
    Answer,
    PlaneServer,
    Route,
    internal_plane,
    text_answer,
)
from evertally.pipelines.metrics.standing import ScopeStanding, Standing, StreamStanding
from evertally.validation import positive_integer, positive_real

__all__ = ["WINDOWS", "Exporter", "ExporterSettings", "parse_windows"]

_LOG: Final = logging.getLogger(__name__)
_SERIES_A_STREAM: Final = 5
_SERIES_A_SCOPE: Final = 3
_HUNG_LOOKS: Final = 30
_UNITS_MS: Final = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
WINDOWS: Final = ("1h", "1d")
"""Window counts that are shown by default."""


def parse_windows(names: tuple[str, ...]) -> dict[str, int]:
    """Lengths in milliseconds of windows such as 90s, 5m, 1h, 1d.

    >>> parse_windows(("1h", "1d"))
    {'1h': 3600000, '1d': 86400000}
    """
    windows = {}
    for name in names:
        found = re.fullmatch(r"([1-9][0-9]{0,5})([smhd])", name, re.ASCII)
        if found is None:
            raise InvalidParameter("window", name, "a whole number with s, m, h or d, for example 1h")
        windows[name] = int(found[1]) * _UNITS_MS[found[2]]
    return windows


@dataclass(frozen=True, slots=True)
class ExporterSettings:
    """How an exporter is run.

    Attributes:
        public: where /metrics and the page stand.
        internal: where /internal/metrics stands; another port.
        refresh_s: seconds between two looks at the ledger.
        windows: name to length in milliseconds of each window count.
        series_max: most series of streams and scopes on the public plane.
    """

    public: Listen
    internal: Listen
    refresh_s: float = 1.0
    windows: Mapping[str, int] = field(default_factory=lambda: MappingProxyType(parse_windows(WINDOWS)))
    series_max: int = 1000

    def __post_init__(self) -> None:
        positive_real("refresh_s", self.refresh_s, high=3600.0)
        positive_integer("series_max", self.series_max, high=10_000_000)
        self.internal.require_private()
        if self.public.port and (self.public.host, self.public.port) == (
            self.internal.host,
            self.internal.port,
        ):
            raise InvalidParameter("internal_listen", self.internal.port, "a port of its own")


class Exporter:
    """One exporter of one ledger.

    Guarantees:
        - public bytes are a function of published rows, spends of scopes and whether the ledger answers
          (test_neighbouring_streams_differ_in_released_values_alone).
        - no scrape and no look changes a byte of the ledger (test_scrapes_change_nothing).
    """

    def __init__(self, ledger: str, settings: ExporterSettings) -> None:
        """Bind both planes; the ledger is first looked at by `start` or `look`."""
        self._settings: Final = settings
        self._reader: Final = LedgerReader(open_view(ledger), settings.windows)
        self._view = PublicView((), (), False, 0, settings.series_max, 0, 0)
        self._stop: Final = threading.Event()
        self._looking: Final = threading.Lock()
        self._looked_at, self._looks = time.monotonic(), 0
        self._metrics: Final = OperatorMetrics("exporter")
        self._look_seconds: Final = self._metrics.histogram("look_seconds", "Time of a look at the ledger.")
        self._failures: Final = self._metrics.counter("look_failures", "Looks at the ledger that failed.")
        self._committed: Final = self._metrics.gauge(
            "committed_tick", "Last tick in the ledger.", ("stream", "shard")
        )
        self._unpublished: Final = self._metrics.gauge(
            "unpublished_ticks", "Ticks in the ledger that are not published yet.", ("stream", "shard")
        )
        self._watched: set[tuple[str, str]] = set()
        self._answers: dict[str, Answer] = {f"/static/{name}": static_answer(name) for name in STATIC_FILES}
        self._show()
        routes: dict[str, Route] = {path: self._route(path) for path in self._answers}
        routes["/healthz"], routes["/readyz"] = self._healthz, self._readyz
        self._public: Final = PlaneServer(settings.public, routes)
        self._internal: Final = internal_plane(settings.internal, self._metrics)
        self._thread: Final = threading.Thread(target=self._run, name="look", daemon=True)

    @property
    def addresses(self) -> tuple[str, str]:
        """Addresses of the public and the operators' plane."""
        return self._public.address, self._internal.address

    def start(self) -> None:
        """Look once, then serve and go on looking."""
        self.look()
        self._thread.start()
        self._public.start()
        self._internal.start()

    def close(self) -> None:
        """Stop serving and looking; once it is started."""
        self._stop.set()
        self._public.close()
        self._internal.close()
        self._thread.join(30)
        self._reader.close()

    def look(self) -> None:
        """Look at the ledger once; where it fails, what was seen last stays, and `ledger_up` is 0."""
        with self._looking, self._look_seconds.time():
            view = self._view
            try:
                standing = self._reader.read()
            except EvertallyError as error:
                self._failures.inc()
                if view.ledger_up or not self._looks:
                    _LOG.error("a look failed: %s", error)
                view = replace(view, ledger_up=False)
            else:
                if not view.ledger_up:
                    _LOG.info("the ledger is read")
                self._watch(standing)
                view = self._admit(standing)
            if view != self._view:
                self._view = view
                self._show()
        self._looked_at, self._looks = time.monotonic(), self._looks + 1

    def _admit(self, standing: Standing) -> PublicView:
        """Whole streams, in the order they were opened, then scopes, while they fit the limit."""
        room = self._settings.series_max
        streams: list[StreamStanding] = []
        scopes: list[ScopeStanding] = []
        for stream in standing.streams:
            needed = _SERIES_A_STREAM + self._reader.series(stream)
            if needed <= room:
                streams.append(stream)
                room -= needed
        for scope in standing.scopes:
            if room >= _SERIES_A_SCOPE:
                scopes.append(scope)
                room -= _SERIES_A_SCOPE
        refused = len(standing.streams) - len(streams), len(standing.scopes) - len(scopes)
        if refused != (self._view.refused_streams, self._view.refused_scopes) and any(refused):
            shown = {stream.name for stream in streams}
            left_out = [stream.name for stream in standing.streams if stream.name not in shown]
            _LOG.error(
                "the limit of %d series is reached: %d streams and %d scopes are not shown (%s)",
                *(self._settings.series_max, *refused, ", ".join(left_out[:10]) or "no stream"),
            )
        return PublicView(
            tuple(streams),
            tuple(scopes),
            ledger_up=True,
            series=self._settings.series_max - room,
            series_limit=self._settings.series_max,
            refused_streams=refused[0],
            refused_scopes=refused[1],
        )

    def _watch(self, standing: Standing) -> None:
        seen = {
            (stream.name, str(shard)): head
            for stream in standing.streams
            for shard, head in enumerate(stream.heads)
        }
        for place, head in seen.items():
            self._committed.labels(*place).set(head.committed_t)
            self._unpublished.labels(*place).set(head.committed_t - head.published_t)
        for place in self._watched - seen.keys():  # another ledger stands there now, or fewer shards
            self._committed.remove(*place)
            self._unpublished.remove(*place)
        self._watched = set(seen)

    def _show(self) -> None:
        self._answers |= {
            "/metrics": _packed(METRICS_TYPE, public_text(self._view)),
            "/": _packed("text/html; charset=utf-8", page_html(self._view)),
        }

    def _route(self, path: str) -> Route:
        return lambda: self._answers[path]

    def _healthz(self) -> Answer:
        hung_s = _HUNG_LOOKS * max(1.0, self._settings.refresh_s)
        turning = time.monotonic() - self._looked_at < hung_s
        return text_answer(200, "ok\n") if turning else text_answer(503, "the exporter hangs\n")

    def _readyz(self) -> Answer:
        if self._view.ledger_up:
            return text_answer(200, "ok\n")
        return text_answer(503, "the ledger cannot be read\n")

    def _run(self) -> None:
        while not self._stop.wait(self._settings.refresh_s):
            self.look()


def _packed(content_type: str, body: bytes) -> Answer:
    return Answer(200, content_type, body, gzip.compress(body, 1, mtime=0))
