"""One running total: a `CounterBank` of one key, with the plainest interface."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NoReturn

from evertally.counters.bank import CounterBank
from evertally.counters.contribution import Contribution
from evertally.counters.factorization import Factorization
from evertally.counters.grid import SLACK_HORIZON, Grid
from evertally.counters.keys import KeyedNoise, NoiseKey

__all__ = ["Release", "RunningCounter"]


@dataclass(frozen=True, slots=True)
class Release:
    """One published total: tick (from 1), noisy value, standard error as six-digit text."""

    t: int
    value: int
    standard_error: str


class RunningCounter:
    """A private running total that never ends: one charge of `mu` covers every release, for ever.

    >>> from evertally.counters import Rational
    >>> key = NoiseKey(bytes(32), stream="visits", stream_id=bytes(16))  # a real key is secret and random
    >>> counter = RunningCounter(Rational.preset("W32"), mu=1.0, clip=1, key=key)
    >>> counter.add(3)
    >>> counter.close_tick()
    Release(t=1, value=6, standard_error='2.10632')
    """

    def __init__(
        self,
        factorization: Factorization,
        *,
        mu: float,
        clip: int = 1,
        key: NoiseKey,
        participations: int = 1,
        min_separation: int = 1,
        slack_horizon: int = SLACK_HORIZON,
    ) -> None:
        """Prepare a counter before its first tick.

        Args:
            factorization: the mechanism.
            mu: GDP parameter of the whole stream, > 0.
            clip: largest absolute value of one unit's contribution, in counts.
            key: the secret noise key of this stream incarnation.
            participations: most ticks one privacy unit contributes in.
            min_separation: least distance between two of them, in ticks.
            slack_horizon: ticks paid for in advance; later ones are refused.
        """
        self.contribution: Final = Contribution(
            clip, lower=-clip, participations=participations, min_separation=min_separation
        )
        self._bank = CounterBank.for_mu(
            factorization,
            mu=mu,
            source=KeyedNoise(key),
            contribution=self.contribution,
            slack_horizon=slack_horizon,
        )

    @property
    def t(self) -> int:
        """Last closed tick; 0 before the first."""
        return self._bank.t

    @property
    def grid(self) -> Grid:
        """The public grid: sigma, mu and what they rest on."""
        return self._bank.grid

    def add(self, amount: int = 1) -> None:
        """Add an exact integer to the open tick; each unit's own part must be within the clip."""
        self._bank.add(0, amount)

    def contribute(self, value: int) -> None:
        """Add one unit's value, clipped into [-clip, clip]."""
        self._bank.add(0, self.contribution.clip_value(value))

    def close_tick(self) -> Release:
        """Close the open tick and release the noisy running total."""
        tick = self._bank.close_tick()
        return Release(tick.t, tick.values[0], tick.standard_error)

    def snapshot(self) -> bytes:
        """The state as bytes: exact sum and noise state, so seal it before storing it."""
        return self._bank.snapshot()

    @classmethod
    def restore(
        cls,
        snapshot: bytes,
        factorization: Factorization,
        *,
        mu: float,
        clip: int = 1,
        key: NoiseKey,
        participations: int = 1,
        min_separation: int = 1,
        slack_horizon: int = SLACK_HORIZON,
    ) -> RunningCounter:
        """A counter that goes on where the snapshot stopped; parameters as given to the constructor."""
        counter = cls(
            factorization,
            mu=mu,
            clip=clip,
            key=key,
            participations=participations,
            min_separation=min_separation,
            slack_horizon=slack_horizon,
        )
        counter._bank.load(snapshot)
        return counter

    def __repr__(self) -> str:
        return f"RunningCounter({self._bank.factorization.mechanism_id}, t={self.t}, <total redacted>)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a counter does not pickle; use snapshot() and seal the bytes")
