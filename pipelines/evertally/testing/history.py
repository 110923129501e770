"""Checks what readers saw of a stream, over every reading of it together."""

from __future__ import annotations

from collections.abc import Iterable

from evertally.pipelines.releases import Release, StreamHeader

__all__ = ["HistoryChecker"]


class HistoryChecker:
    """Collects releases as they were seen, before and after any crash, and finds what may not be.

    >>> checker = HistoryChecker()
    >>> seen = Release("s", "a", 1, 1, 3_600_000, 7, 20.5, "rational:W32")
    >>> checker.see([seen, seen._replace(value=8)])
    >>> checker.anomalies()
    ['s/a/1: tick 1 has 2 values']
    """

    def __init__(self) -> None:
        self._values: dict[tuple[str, str, int], dict[int, set[Release]]] = {}
        self._undeclared: set[str] = set()

    def see(self, releases: Iterable[Release]) -> None:
        """Take in releases; seeing the same one again is no anomaly."""
        for release in releases:
            ticks = self._values.setdefault((release.stream, release.key, release.incarnation), {})
            ticks.setdefault(release.t, set()).add(release)

    def see_file(self, header: StreamHeader, releases: Iterable[Release]) -> None:
        """Take in a releases file: its releases, and that each one's key is declared."""
        listed = list(releases)
        self._undeclared |= {release.key for release in listed} - set(header.keys)
        self.see(listed)

    def anomalies(self) -> list[str]:
        """Every contradiction: two values for a tick, gaps, undeclared keys, keys at different ticks."""
        found = [f"key {key} is not declared" for key in sorted(self._undeclared)]
        lasts: dict[tuple[str, int], set[int]] = {}
        for (stream, key, incarnation), ticks in sorted(self._values.items()):
            place = f"{stream}/{key}/{incarnation}"
            found += [
                f"{place}: tick {t} has {len(seen)} values"
                for t, seen in sorted(ticks.items())
                if len(seen) > 1
            ]
            if set(ticks) != set(range(1, len(ticks) + 1)):
                found.append(f"{place}: ticks are not 1, 2, ... without a gap")
            lasts.setdefault((stream, incarnation), set()).add(max(ticks))
        found += [
            f"{stream}/{n}: keys end at different ticks"
            for (stream, n), last in lasts.items()
            if len(last) > 1
        ]
        return found
