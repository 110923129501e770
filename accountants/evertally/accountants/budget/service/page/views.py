"""What the templates show, read from the ledger: released rows and public parameters only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from markupsafe import Markup

from evertally.accountants.budget.ledger import LedgerStore, OpenedStream, ReleaseRow
from evertally.accountants.budget.scopes import Scope, ScopeStatus
from evertally.accountants.budget.service.page import wording
from evertally.accountants.budget.service.page.sparkline import band_half_width, sparkline

__all__ = [
    "Bar",
    "ChargeView",
    "KeyView",
    "ScopeView",
    "StreamView",
    "charge_views",
    "scope_view",
    "stream_view",
]

_TICKS: Final = 48
_ROWS_MAX: Final = 5000
_NEAR: Final = 0.80
_CLOSE: Final = 0.95


@dataclass(frozen=True, slots=True)
class Bar:
    """Spend against a cap.

    Attributes:
        percent: 0 to 100, for the drawing.
        level: "ok", "near" or "close", said in words as well as in colour.
    """

    title: str
    spent: str
    cap: str
    percent: float
    level: str

    @property
    def percent_text(self) -> str:
        """Never "100" below the cap, never "0" above nothing."""
        if 0.0 < self.percent < 0.1:
            return "< 0.1"
        return f"{min(self.percent, 99.9) if self.percent < 100.0 else 100.0:.3g}"


@dataclass(frozen=True, slots=True)
class ScopeView:
    """A scope's card."""

    scope: Scope
    guarantee: str
    bars: tuple[Bar, ...]
    comparison: str
    rows: int


@dataclass(frozen=True, slots=True)
class ChargeView:
    """A row of a scope's history."""

    seq: int
    at: str
    event: str
    words: str
    change: str
    principal: str


@dataclass(frozen=True, slots=True)
class KeyView:
    """The latest total of one key with its 95 % band."""

    key: str
    total: str
    half_width: str
    drawing: Markup


@dataclass(frozen=True, slots=True)
class StreamView:
    """A stream's card; `keys` is one page of its keys."""

    name: str
    scope: str
    mechanism: str
    keys_count: int
    tick: str
    unit_words: str
    t: int
    tick_end: str
    keys: tuple[KeyView, ...]


def scope_view(status: ScopeStatus) -> ScopeView:
    """The card of a scope."""
    scope, caps, spent = status.scope, status.caps, status.spent
    gaussian = scope.filter == "gaussian"
    main = "Gaussian budget μ²" if gaussian else f"Rényi budget at order {scope.order}"
    bars = [_bar(main, spent.main, caps.main, 10**9)]
    if caps.epsilon:
        bars.append(_bar("ε set aside for single lines", spent.epsilon, caps.epsilon, 10**9))
    bars.append(_bar("δ set aside for single lines", spent.delta, caps.delta, 10**18))
    comparison = ""
    if gaussian:
        share = 100.0 * scope.zcdp_main() / caps.main
        comparison = (
            f"Exact Gaussian filter; the usual zCDP conversion would allow {share:.3g} % of this cap."
        )
    return ScopeView(scope, wording.guarantee(scope), tuple(bars), comparison, status.rows)


def charge_views(ledger: LedgerStore, status: ScopeStatus, before_seq: int, count: int) -> list[ChargeView]:
    """The last `count` rows before `before_seq`, newest first."""
    last = min(status.rows, before_seq - 1)
    first = max(0, last - count)
    rows = ledger.charges(status.scope.name, first, max(1, last - first)) if last else []
    unit = "μ²" if status.scope.filter == "gaussian" else "Rényi"
    return [
        ChargeView(
            row.seq,
            wording.instant(row.at_ms),
            wording.event_word(row.event),
            wording.charge_words(row),
            f"{wording.amount(row.main)} {unit}" if row.main else "—",
            row.principal,
        )
        for row in reversed(rows)
    ]


def stream_view(
    ledger: LedgerStore, opened: OpenedStream, first_key: int, keys_max: int, *, scope_visible: bool
) -> StreamView:
    """The card of a stream with the keys first_key .. first_key + keys_max - 1, in declared order."""
    wanted = opened.key_indices[first_key : first_key + keys_max]
    by_key: dict[int, list[ReleaseRow]] = {index: [] for index in wanted}
    t = None
    for shard in sorted({index % opened.shards for index in wanted}):
        published_t, rows = _published(ledger, opened, shard)
        t = published_t if t is None else min(t, published_t)
        for row in rows:
            if row.key_index in by_key:
                by_key[row.key_index].append(row)
    keys = tuple(
        _key_view(key, by_key[index])
        for key, index in zip(opened.keys[first_key : first_key + keys_max], wanted, strict=True)
        if by_key[index]
    )
    ends = [rows[-1].tick_end_ms for rows in by_key.values() if rows]
    said = opened.descriptor
    tick_ms = said.get("tick_ms")
    return StreamView(
        name=opened.name,
        scope=opened.scope if scope_visible else "",
        mechanism=str(said.get("mechanism", "")),
        keys_count=len(opened.keys),
        tick=wording.duration(tick_ms) if isinstance(tick_ms, int) else "",
        unit_words=str(said.get("value_unit", "")),
        t=t or 0,
        tick_end=wording.instant(min(ends)) if ends else "",
        keys=keys,
    )


def _published(ledger: LedgerStore, opened: OpenedStream, shard: int) -> tuple[int, list[ReleaseRow]]:
    """The last published ticks of a shard: rows that are only committed are not shown yet."""
    ref = opened.shard(shard)
    head = ledger.head(ref)
    per_tick = max(1, len(opened.shard_keys(shard)))
    ticks = max(1, min(_TICKS, _ROWS_MAX // per_tick))
    after = max(head.published_t - ticks, head.folded_t)
    if after >= head.published_t:
        return head.published_t, []
    rows = ledger.releases(ref, after, (head.published_t - after) * per_tick)
    return head.published_t, [row for row in rows if row.t <= head.published_t]


def _key_view(key: str, rows: list[ReleaseRow]) -> KeyView:
    last = rows[-1]
    half = band_half_width(last.stderr)
    label = f"{key}: {wording.total(last.value)}, plus or minus {wording.total(half)}"
    drawing = sparkline([(row.value, row.stderr) for row in rows], label)
    return KeyView(key, wording.total(last.value), wording.total(half), drawing)


def _bar(title: str, spent: int, cap: int, scale: int) -> Bar:
    share = spent / cap if cap else 0.0
    level = "close" if share >= _CLOSE else "near" if share >= _NEAR else "ok"
    return Bar(
        title, wording.amount(spent, scale), wording.amount(cap, scale), min(100.0, 100.0 * share), level
    )
