"""Which undeclared keys may be shown: a thresholded continual count with a charge of its own.

Every candidate has a running noisy count of its events that nobody sees. A key is shown once that count
reaches the threshold, and then for ever. Event level only: an event has one key.

Reference: docs/proofs/key-selection.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NoReturn

from evertally.accountants.budget.amounts import ATTO, NANO, units_up
from evertally.accountants.budget.charges import ChargeRequest
from evertally.accountants.budget.counter_loss import CounterParameters, counter_grid, fit_counter
from evertally.accountants.budget.lines import KeySelectionLine
from evertally.counters.bank import CounterBank
from evertally.counters.keys import KeyedNoise
from evertally.counters.mechanisms import parse_mechanism
from evertally.errors import InvalidParameter, StorageFull
from evertally.pipelines.keyfile import KeyFile
from evertally.pipelines.releases import SelectionLoss
from evertally.pipelines.stream_spec import StreamSpec, retry_key
from evertally.validation import positive_integer, positive_real

__all__ = ["EVENTS_ONLY", "Candidate", "KeySelector", "SelectionSpec", "slot_names"]

EVENTS_ONLY: Final = "privacy.unit = event: keys are selected by events, each of which has one key"
_CANDIDATES_MAX: Final = 1_000_000
_TICKS_A_STRETCH: Final = 4096


@dataclass(frozen=True, slots=True)
class SelectionSpec:
    """The public parameters of a selection.

    Attributes:
        slots: counters that wait for keys to be shown; further keys are not shown.
        threshold: smallest noisy count at which a key is shown.
        mu: GDP parameter of the selection, charged besides the stream's own.
        horizon: last tick at which keys are shown.
    """

    slots: int
    threshold: int
    mu: float
    horizon: int = 2**20

    def __post_init__(self) -> None:
        positive_integer("select.slots", self.slots, high=100_000)
        positive_integer("select.threshold", self.threshold, high=2**62)
        positive_real("select.mu", self.mu, high=1000.0)
        positive_integer("select.horizon", self.horizon, high=2**40)

    def parameters(self, spec: StreamSpec) -> CounterParameters:
        """The counter behind the selection: one event, one key, one count; two keys where it is replaced."""
        keys = 2 if spec.scope.adjacency == "replace" else 1
        bare = CounterParameters(mechanism=spec.mechanism, q=1, keys=keys, slack_horizon=self.horizon)
        return fit_counter(bare, spec.scope, int(self.mu * self.mu * NANO))

    def charge(self, spec: StreamSpec, incarnation: int) -> ChargeRequest:
        """The one charge of the selection; a later start repeats the request and pays nothing.

        Raises InvalidParameter for a threshold that noise alone could reach too easily.
        """
        if not spec.scope.event_level:
            raise InvalidParameter("select", f"privacy.unit = {spec.scope.unit}", EVENTS_ONLY)
        line = KeySelectionLine(self.parameters(spec), self.threshold, self.horizon)
        return ChargeRequest(
            scope=spec.scope.name,
            unit=spec.scope.unit,
            adjacency=spec.scope.adjacency,
            line=line,
            idempotency_key=retry_key("select", spec.name, str(incarnation)),
        )

    def require_room(self, spec: StreamSpec) -> None:
        """Refuse a selection that the scope would not admit beside its stream, before anything is paid.

        Raises InvalidParameter by name: more than mu, or more delta, than the scope has.
        """
        caps = spec.scope.caps()
        losses = [request.line.loss(spec.scope) for request in (self.charge(spec, 1), spec.charge())]
        main = sum(units_up("mu", loss.mu2) for loss in losses if loss.mu2 is not None)
        if main > caps.main:
            raise InvalidParameter("mu", self.mu, "what the scope's cap leaves beside the stream's own loss")
        if sum(units_up("delta", loss.delta, ATTO) for loss in losses) > caps.delta:
            raise InvalidParameter(
                "threshold", self.threshold, "one that noise alone reaches less often than the scope's delta"
            )

    def loss(self, spec: StreamSpec) -> SelectionLoss:
        """What the selection loses, alone and together with its stream, as the public header states it.

        Rounded up; the delta of showing a key that one event holds lies in the part of the scope's delta
        that its lines share, and is admitted there or not at all.
        """
        mu = counter_grid(self.parameters(spec), spec.scope).mu
        together = math.hypot(mu, spec.grid.mu) * (1.0 + 2.0**-50)
        return SelectionLoss(mu, spec.epsilon(mu), together, spec.epsilon(together))


@dataclass(slots=True, repr=False)
class Candidate:
    """One key's state. Sensitive until it is shown.

    Attributes:
        total: exact count of its events up to the selector's tick.
        slot: its slot once it is shown, else -1.
    """

    total: int
    slot: int = -1

    def __repr__(self) -> str:
        return "Candidate(<redacted>)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("an exact count is not pickled")


class KeySelector:
    """Runs a selection tick by tick. The same counts give the same keys, whatever restarts.

    Guarantees:
        - a key that one event alone holds is shown with probability at most the delta that was charged
          (tests/kafka/test_key_selection.py::test_a_lone_event_is_not_shown).
        - restoring the candidates and going on shows the same keys (test_restore_anywhere).
    """

    def __init__(
        self,
        selection: SelectionSpec,
        spec: StreamSpec,
        key_file: KeyFile,
        stream_id: bytes,
        incarnation: int,
        *,
        t: int = 0,
        candidates: Mapping[str, Candidate] | None = None,
    ) -> None:
        """Begin at tick t + 1 with what was known after tick t."""
        self._selection: Final = selection
        self._mechanism: Final = parse_mechanism(spec.mechanism)
        self._grid: Final = counter_grid(selection.parameters(spec), spec.scope)
        self._key_file: Final = key_file
        self._place: Final = (spec.name, stream_id, incarnation)
        self.t = t
        self._candidates: Final = dict(candidates or {})
        self._banks: dict[str, CounterBank] = {}
        self._used = sum(1 for candidate in self._candidates.values() if candidate.slot >= 0)

    def close_tick(self, counts: Mapping[str, int]) -> tuple[dict[str, Candidate], list[str]]:
        """Count a tick; returns the candidates that changed, and the keys that are shown from now on."""
        changed = {}
        for key, count in counts.items():
            if not _is_text(key):
                continue
            candidate = self._candidates.get(key)
            if candidate is None:
                if len(self._candidates) >= _CANDIDATES_MAX:
                    raise StorageFull(f"more than {_CANDIDATES_MAX} candidate keys")
                candidate = self._candidates[key] = Candidate(0)
            if candidate.slot < 0:
                candidate.total += count
                changed[key] = candidate
        self.t += 1
        shown = sorted(self._reached())
        for key in shown:
            self._candidates[key].slot = self._used
            self._used += 1
            changed[key] = self._candidates[key]
            del self._banks[key]
        return changed, shown

    def slot(self, key: str) -> int:
        """The slot of a key that is shown."""
        return self._candidates[key].slot

    def _reached(self) -> Iterable[str]:
        """Keys whose noisy count has reached the threshold, while slots are free."""
        free = self._selection.slots - self._used
        if self.t > self._selection.horizon or free <= 0:
            return []
        waiting = sorted(key for key, candidate in self._candidates.items() if candidate.slot < 0)
        reached = [key for key in waiting if self._noisy(key) >= self._selection.threshold]
        return reached[:free]

    def _noisy(self, key: str) -> int:
        """Exact count plus this tick's noise; the noise of each key has a secret of its own."""
        bank = self._banks.get(key)
        if bank is None:
            name, stream_id, incarnation = self._place
            secret = self._key_file.noise_key(f"{name}\x00select\x00{key}", stream_id, incarnation)
            bank = self._banks[key] = CounterBank(self._mechanism, self._grid, KeyedNoise(secret, (0,)))
        while bank.t < self.t - 1:  # noise never depends on data: what came before is drawn in one stretch
            bank.close_ticks([[0]] * min(_TICKS_A_STRETCH, self.t - 1 - bank.t))
        (release,) = bank.close_ticks([[0]])
        return release.values[0] + self._candidates[key].total

    def __repr__(self) -> str:
        return f"KeySelector(t={self.t}, <redacted>)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a selector holds exact counts and is not pickled")


def _is_text(key: str) -> bool:
    """Whether a public record can say the key: JSON allows half a surrogate pair, UTF-8 does not."""
    try:
        key.encode()
    except UnicodeEncodeError:
        return False
    return True


def slot_names(slots: int) -> tuple[str, ...]:
    """The declared keys under which slots are released; the keys topic says which key each one is.

    >>> slot_names(2)
    ('slot-00000', 'slot-00001')
    """
    return tuple(f"slot-{number:05d}" for number in range(slots))
