"""A recorded history of a run under faults, and what may not stand in one: operations in, anomalies out.

Whoever records is another process than those that are killed: it reads the ledger's tables and the releases
raw, keeps what clients asked and were told, and what was sent. The check is a pure function, linear in the
number of operations.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from evertally.pipelines.releases import Release
from evertally.testing import HistoryChecker

__all__ = [
    "LEDGER",
    "Answered",
    "Asked",
    "Broken",
    "Charged",
    "Counted",
    "Declared",
    "Instant",
    "Operation",
    "Pending",
    "Reread",
    "Saw",
    "Sent",
    "Spent",
    "anomalies",
]

LEDGER = "ledger"
"""The place in which a release has to stand before any other place shows it."""


_FOR_EVER = 2**63


class Declared(NamedTuple):
    """A stream's keys."""

    stream: str
    keys: tuple[str, ...]


class Saw(NamedTuple):
    """A release was read in a place; `holder`, where its value tells, is who computed it."""

    place: str
    release: Release
    holder: int | None = None


class Broken(NamedTuple):
    """A whole line that is no release."""

    place: str
    line: int


class Reread(NamedTuple):
    """What follows is the whole of what a place has of a stream, from its start."""

    place: str
    stream: str


class Pending(NamedTuple):
    """The run was ended by force: rows after this tick stood in the ledger and were not published yet."""

    stream: str
    after: int


class Instant(NamedTuple):
    """Everything was read once, readers' places first and the ledger behind them."""


class Asked(NamedTuple):
    """A client sent a request to charge; without an answer nobody knows what came of it."""

    request: str


class Answered(NamedTuple):
    """It was told which charge of what amount; an empty charge is a refusal."""

    request: str
    charge: str
    amount: int


class Charged(NamedTuple):
    """A row of a scope's history, in order; `amount` is negative where a reservation ran out undrawn."""

    scope: str
    seq: int
    charge: str
    amount: int


class Spent(NamedTuple):
    """What a scope said of itself at that instant."""

    scope: str
    spent: int
    cap: int


class Sent(NamedTuple):
    """Input that was acknowledged."""

    stream: str
    key: str
    amount: int


class Counted(NamedTuple):
    """The exact total behind the last release of a key."""

    stream: str
    key: str
    total: int


_OfReleases = Declared | Saw | Broken | Reread | Pending | Instant
_OfCharges = Asked | Answered | Charged | Spent
_OfAmounts = Sent | Counted
Operation = _OfReleases | _OfCharges | _OfAmounts


def anomalies(history: Iterable[Operation]) -> list[str]:
    """Every contradiction: one value a tick, ticks 1, 2, ..., spend <= cap after every row, exact totals."""
    releases, charges, amounts = _Releases(), _Charges(), _Amounts()
    for operation in history:
        if isinstance(operation, _OfReleases):
            releases.take(operation)
        elif isinstance(operation, _OfAmounts):
            amounts.take(operation)
        else:
            charges.take(operation)
    return [*releases.found(), *charges.found(), *amounts.found()]


class _Place(NamedTuple):
    stream: str
    key: str
    incarnation: int
    t: int

    def __str__(self) -> str:
        return f"{self.stream}/{self.key}/{self.incarnation}: tick {self.t}"


class _Releases:
    """One value for a tick, whoever reads it where; nothing before it is durable, nothing out of order."""

    def __init__(self) -> None:
        self._values = HistoryChecker()
        self._declared: dict[str, frozenset[str]] = {}
        self._last: dict[tuple[str, str], dict[tuple[int, str], int]] = {}
        self._shown: dict[tuple[str, str], set[_Place]] = defaultdict(set)
        self._durable: set[_Place] = set()
        self._ahead: set[_Place] = set()
        self._holders: dict[tuple[str, int, str], dict[int, int]] = defaultdict(dict)
        self._pending: dict[str, int] = {}
        self._found: list[str] = []

    def take(self, operation: _OfReleases) -> None:
        if isinstance(operation, Saw):
            self._saw(operation)
        elif isinstance(operation, Declared):
            self._declared[operation.stream] = frozenset(operation.keys)
        elif isinstance(operation, Broken):
            self._found.append(f"line {operation.line} in the {operation.place} is no release")
        elif isinstance(operation, Reread):
            self._shown[operation.place, operation.stream] = set()
            self._last.pop((operation.place, operation.stream), None)
        elif isinstance(operation, Pending):
            self._pending[operation.stream] = operation.after
        else:
            self._found += [f"{at} was shown and is not in the ledger" for at in self._ahead]
            self._ahead.clear()

    def _saw(self, operation: Saw) -> None:
        place, release, holder = operation
        at = _Place(release.stream, release.key, release.incarnation, release.t)
        self._values.see([release])
        if release.key not in self._declared.get(release.stream, {release.key}):
            self._found.append(f"{release.stream}: key {release.key} is not declared")
        last = self._last.setdefault((place, release.stream), defaultdict(int))
        before = last[release.incarnation, release.key]
        if release.t > before + 1:
            self._found.append(f"{at} follows tick {before} in the {place}")
        last[release.incarnation, release.key] = max(before, release.t)
        self._shown[place, release.stream].add(at)
        if place == LEDGER:
            self._durable.add(at)
            self._ahead.discard(at)
        elif at not in self._durable:
            self._ahead.add(at)
        if holder is not None:
            self._holders[release.stream, release.incarnation, release.key][release.t] = holder

    def found(self) -> list[str]:
        found = [f"{at} was shown and is not in the ledger" for at in sorted(self._ahead)]
        whole: dict[str, set[_Place]] = defaultdict(set)
        for (_, stream), shown in self._shown.items():
            whole[stream] |= shown
        for at in self._durable:
            whole[at.stream].add(at)
        for (place, stream), shown in sorted(self._shown.items()):
            last = self._pending.get(stream, _FOR_EVER) if place != LEDGER else _FOR_EVER
            missing = sorted(at for at in whole[stream] - shown if at.t <= last)
            found += [f"{at} is missing in the {place} at the end" for at in missing]
        for stream, declared in sorted(self._declared.items()):
            if stream in whole and declared - {at.key for at in whole[stream]}:
                found.append(f"{stream}: declared keys are never released")
        return [*self._values.anomalies(), *self._found, *found, *self._former_holders()]

    def _former_holders(self) -> list[str]:
        """Who was followed by another holder may not write again: that is what an epoch is for."""
        found = []
        for (stream, incarnation, key), holders in sorted(self._holders.items()):
            former: set[int] = set()
            current: int | None = None
            for t, holder in sorted(holders.items()):
                if holder != current and current is not None:
                    former.add(current)
                if holder in former:
                    found.append(f"{_Place(stream, key, incarnation, t)} is by a former holder")
                current = holder
        return found


class _Charges:
    """The spend is the sum of the distinct grants at every instant, and within the cap after every row."""

    def __init__(self) -> None:
        self._asked: set[str] = set()
        self._answers: dict[str, tuple[str, int]] = {}
        self._granted = 0
        self._charges: dict[str, int] = defaultdict(int)
        self._seq: dict[str, int] = defaultdict(int)
        self._sum: dict[str, int] = defaultdict(int)
        self._range: dict[str, tuple[int, int]] = defaultdict(lambda: (0, 0))
        self._said: dict[str, tuple[int, int]] = {}
        self._found: list[str] = []

    def take(self, operation: _OfCharges) -> None:
        if isinstance(operation, Asked):
            self._asked.add(operation.request)
        elif isinstance(operation, Answered):
            self._answered(operation)
        elif isinstance(operation, Charged):
            self._charged(operation)
        else:
            self._spent(operation)

    def _answered(self, answer: Answered) -> None:
        told = (answer.charge, answer.amount)
        if answer.request not in self._asked:
            self._found.append(f"request {answer.request} was answered and never asked")
        before = self._answers.get(answer.request)
        if before is not None and before[0] and before != told:
            self._found.append(f"request {answer.request} has two answers")
        if answer.charge and (before is None or not before[0]):
            self._granted += answer.amount
        self._answers[answer.request] = told

    def _charged(self, row: Charged) -> None:
        if row.seq != self._seq[row.scope] + 1:
            self._found.append(f"{row.scope}: row {row.seq} follows row {self._seq[row.scope]}")
        self._seq[row.scope] = row.seq
        self._charges[row.charge] += row.amount
        self._sum[row.scope] += row.amount
        low, high = self._range[row.scope]
        self._range[row.scope] = min(low, self._sum[row.scope]), max(high, self._sum[row.scope])

    def _spent(self, said: Spent) -> None:
        cap = self._said.get(said.scope, (0, said.cap))[1]
        if said.cap != cap:
            self._found.append(f"{said.scope}: its cap changed")
        if not 0 <= said.spent <= said.cap:
            self._found.append(f"{said.scope}: {said.spent} of {said.cap} was spent")
        self._said[said.scope] = said.spent, said.cap
        if sum(spent for spent, _ in self._said.values()) < self._granted:
            self._found.append(f"{said.scope}: less is spent than was granted")

    def found(self) -> list[str]:
        found = list(self._found)
        for scope, (spent, cap) in sorted(self._said.items()):
            low, high = self._range[scope]
            if low < 0 or high > cap:
                found.append(f"{scope}: its history leaves 0..{cap}")
            if scope in self._sum and spent != self._sum[scope]:
                found.append(f"{scope}: {spent} is spent, its rows add up to {self._sum[scope]}")
        grants = [(request, *told) for request, told in sorted(self._answers.items()) if told[0]]
        owners = Counter(charge for _, charge, _ in grants)
        found += [f"charge {charge} answers {n} requests" for charge, n in sorted(owners.items()) if n > 1]
        if not self._seq:
            return found
        for request, charge, amount in grants:
            if charge not in self._charges:
                found.append(f"request {request} was granted and is not in the ledger")
            elif self._charges[charge] != amount:
                found.append(f"request {request} was granted {amount}, the ledger has another amount")
        unknown = self._asked - self._answers.keys()
        nobodys = self._charges.keys() - owners.keys()
        if len(nobodys) > len(unknown):
            found.append(f"{len(nobodys)} charges are nobody's, {len(unknown)} requests have no answer")
        return found


class _Amounts:
    """Every event is counted, once."""

    def __init__(self) -> None:
        self._sent: dict[tuple[str, str], int] = defaultdict(int)
        self._counted: dict[tuple[str, str], int] = {}

    def take(self, operation: _OfAmounts) -> None:
        place = (operation.stream, operation.key)
        if isinstance(operation, Sent):
            self._sent[place] += operation.amount
        else:
            self._counted[place] = operation.total

    def found(self) -> list[str]:
        if not self._counted:
            return []
        return [
            f"{stream}/{key}: {self._sent.get((stream, key), 0)} were sent,"
            f" {self._counted.get((stream, key), 0)} are counted"
            for stream, key in sorted(self._sent.keys() | self._counted.keys())
            if self._sent.get((stream, key), 0) != self._counted.get((stream, key), 0)
        ]
