"""Many running totals under one mechanism: the core of the product.

At tick t every key publishes S_t plus correlated noise. The exact sum is an integer of any size and
meets the noise in one integer addition: with a = q S + z + h in grid units (q grid units a count),
the published count (2a + q) // (2q) equals S + (2(z + h) + q) // (2q), since q S / q is whole. The
rounding therefore never depends on S, and nothing here branches on data.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NoReturn, Self

import numpy as np
from numpy.typing import NDArray

from evertally.counters.contribution import Contribution
from evertally.counters.encoding import SECRET_BYTES, pack_integers, unpack_integers
from evertally.counters.factorization import Factorization, NoiseSource
from evertally.counters.grid import SLACK_HORIZON, Grid
from evertally.counters.noise_power import noise_power_track, standard_error_text
from evertally.counters.snapshot import frame, unframe
from evertally.errors import IntegrityError, InvalidParameter, UnsupportedMechanism
from evertally.validation import integer

__all__ = ["CounterBank", "TickRelease", "noise_in_counts"]

SNAPSHOT_VERSION: Final = 1
_DIGEST_BYTES: Final = 16
_OTHER_DIGITS: Final = 256
"""Doubles to either side of a sensitivity that another machine may have computed: a relative 6e-14."""
_BODY: Final = struct.Struct(f">{_DIGEST_BYTES}sQIII")


@dataclass(frozen=True, slots=True)
class TickRelease:
    """What one tick publishes: safe to store, log and show.

    Attributes:
        t: the tick, counted from 1.
        values: noisy running totals, one a key.
        standard_error: of every value, six significant digits as text.
    """

    t: int
    values: tuple[int, ...]
    standard_error: str


def noise_in_counts(z: NDArray[np.int64], h: NDArray[np.int64], q: int) -> NDArray[np.int64]:
    """(2 (z + h) + q) // (2 q): the noise of a release in whole counts, half up by floor division.

    Args:
        z: fresh draws in grid units, integer dtype.
        h: rounded history terms in grid units, integer dtype, same shape.
        q: grid units a count.
    """
    if z.dtype != np.int64 or h.dtype != np.int64:
        raise TypeError("noise arrives as int64 grid units")
    return (2 * (z + h) + q) // (2 * q)


def _exact(tick: Sequence[int]) -> bool:
    kinds = set(map(type, tick))
    return kinds <= {int} or all(issubclass(kind, int) and kind is not bool for kind in kinds)


class CounterBank:
    """Running totals of a fixed list of keys.

    Guarantees:
        - the whole infinite output is `grid.mu`-GDP for the privacy unit its sensitivity was
          made for, up to the slack horizon, for adaptively chosen inputs too
          (docs/proofs/snapped-mechanism.md).
        - restoring a snapshot and going on gives the same releases as never stopping
          (test_bank_restore_anywhere).
    """

    def __init__(self, factorization: Factorization, grid: Grid, source: NoiseSource) -> None:
        """Prepare a bank before its first tick.

        Args:
            factorization: the mechanism, for example Rational.preset("W32").
            grid: its snapping grid, which fixes sigma and the price.
            source: draws for every key, for example KeyedNoise(key, indices).
        """
        self.factorization: Final = factorization
        self._grid = grid
        self._keys: Final = source.keys
        self._engine: Final = factorization.engine(source)
        self._power: Final = noise_power_track(factorization)
        self._totals = [0] * self._keys
        self._open = [0] * self._keys

    @classmethod
    def for_mu(
        cls,
        factorization: Factorization,
        *,
        mu: float,
        source: NoiseSource,
        contribution: Contribution | None = None,
        slack_horizon: int = SLACK_HORIZON,
    ) -> Self:
        """A bank that spends at most `mu`.

        Args:
            factorization: the mechanism.
            mu: GDP parameter of the whole stream, > 0.
            source: draws for every key.
            contribution: what one privacy unit may do; one event of at most 1 by default.
            slack_horizon: ticks whose rounding is paid for in advance; the bank refuses later ones.
        """
        bounds = contribution or Contribution()
        grid = Grid.for_mu(
            factorization,
            mu,
            bounds.sensitivity(factorization),
            touched_counters=bounds.touched_counters(source.keys),
            slack_horizon=slack_horizon,
        )
        return cls(factorization, grid, source)

    @property
    def grid(self) -> Grid:
        """The snapping grid: sigma, the price and the last tick it covers."""
        return self._grid

    @property
    def keys(self) -> int:
        """Number of keys."""
        return self._keys

    @property
    def t(self) -> int:
        """Last closed tick; 0 before the first."""
        return self._engine.t

    def add(self, position: int, amount: int) -> None:
        """Add to the open tick of the key at `position` (its place in the source's order).

        `amount` may join many units; each unit's own part must be within the contribution bound.
        """
        if isinstance(amount, bool) or not isinstance(amount, int):
            raise InvalidParameter("amount", type(amount).__name__, "an exact int")
        self._open[integer("position", position, low=0, high=self._keys - 1)] += amount

    def close_tick(self) -> TickRelease:
        """Close the open tick, empty or not, and release every key's noisy total."""
        (release,) = self.close_ticks([self._open])
        self._open = [0] * self._keys
        return release

    def close_ticks(self, amounts: Sequence[Sequence[int]]) -> list[TickRelease]:
        """Close several ticks at once, given each tick's exact integers, one a key.

        Raises:
            InvalidParameter: ticks of another width, or amounts that are no exact ints (a numpy integer
                would wrap around); nothing is drawn.
            UnsupportedMechanism: a tick lies past the mechanism's or the slack horizon; nothing is drawn.
        """
        if any(len(tick) != self._keys for tick in amounts):
            raise InvalidParameter("amounts", "ticks of differing width", f"{self._keys} integers a tick")
        if not all(_exact(tick) for tick in amounts):
            raise InvalidParameter("amounts", "amounts of another type", "exact ints")
        self._refuse_past_horizon(self.t + len(amounts))
        first = self.t + 1
        noise = noise_in_counts(*self._engine.run(len(amounts)), self._grid.q)
        releases = []
        for offset, (tick, drawn) in enumerate(zip(amounts, noise.tolist(), strict=True)):
            self._totals = [total + amount for total, amount in zip(self._totals, tick, strict=True)]
            # The one addition in which data and noise meet: two integers.
            values = tuple(total + n for total, n in zip(self._totals, drawn, strict=True))
            error = standard_error_text(self._grid.sigma, self._power.step())
            releases.append(TickRelease(first + offset, values, error))
        return releases

    def extend(self, grid: Grid) -> None:
        """Go on under the same noise to a later slack horizon, once its price is paid.

        Raises InvalidParameter for a grid with other noise, or an earlier horizon.
        """
        mine = self._grid
        if (grid.q, grid.sensitivity) != (
            mine.q,
            mine.sensitivity,
        ) or grid.slack_horizon < mine.slack_horizon:
            raise InvalidParameter("grid", "another grid", "the same noise and a later slack horizon")
        self._grid = grid

    def snapshot(self) -> bytes:
        """State after the last closed tick, sensitive; amounts of the open tick travel along.

        Its length depends on t and public parameters alone while every sum is below 2^127.
        """
        sums = pack_integers([*self._totals, *self._open], SECRET_BYTES)
        parts = (sums, self._power.state(), self._engine.state())
        body = _BODY.pack(self._digest(self._grid.sensitivity), self.t, *map(len, parts)) + b"".join(parts)
        return frame(SNAPSHOT_VERSION, body)

    def load(self, snapshot: bytes) -> None:
        """Continue from a snapshot of a bank with the same public parameters.

        Raises:
            IntegrityError: damaged bytes, or a snapshot of another mechanism, grid or number of keys.
        """
        _, body = unframe(snapshot, (SNAPSHOT_VERSION,))
        if len(body) < _BODY.size:
            raise IntegrityError("a snapshot is cut short")
        digest, t, sums, power, engine = _BODY.unpack_from(body)
        if not self._is_ours(digest):
            raise IntegrityError("the snapshot belongs to a stream with other parameters")
        if len(body) != _BODY.size + sums + power + engine:
            raise IntegrityError("the snapshot's parts do not fill it")
        at = _BODY.size
        totals = unpack_integers(body[at : at + sums], 2 * self._keys)
        self._power.load(body[at + sums : at + sums + power], t)
        self._engine.load(body[at + sums + power :], t)
        self._totals, self._open = totals[: self._keys], totals[self._keys :]

    def _is_ours(self, digest: bytes) -> bool:
        """Whether a snapshot's digest is of these parameters, the last digits of the sensitivity apart.

        The state does not depend on those, and sums of doubles end in others on another processor.
        """
        below = above = self._grid.sensitivity
        if digest == self._digest(below):
            return True
        for _ in range(_OTHER_DIGITS):
            below, above = math.nextafter(below, 0.0), math.nextafter(above, math.inf)
            if digest in (self._digest(below), self._digest(above)):
                return True
        return False

    def _digest(self, sensitivity: float) -> bytes:
        """Of what the state depends on. The slack horizon is no part: it may be extended."""
        noise = f"q={self._grid.q}, sensitivity={sensitivity!r}"
        text = "\x00".join((self.factorization.mechanism_id, noise, str(self._keys)))
        return hashlib.sha256(text.encode()).digest()[:_DIGEST_BYTES]

    def _refuse_past_horizon(self, last: int) -> None:
        if last > self._grid.slack_horizon:
            raise UnsupportedMechanism(
                f"tick {last} lies past the horizon {self._grid.slack_horizon} that this stream paid for"
            )

    def __repr__(self) -> str:
        public = f"{self.factorization.mechanism_id}, keys={self._keys}, t={self.t}"
        return f"CounterBank({public}, <totals redacted>)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a counter bank does not pickle; use snapshot() and seal the bytes")
