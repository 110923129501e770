"""Ticks in order: parts that came early wait in the runner's state, sealed, until their turn.

The state is a bag, so that several ticks that wait at once never melt into one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from apache_beam.coders import BytesCoder, VarIntCoder
from apache_beam.transforms.userstate import BagStateSpec, ReadModifyWriteStateSpec

from evertally.pipelines.beam.parts import Part, PartSealer, merge

__all__ = ["NEXT", "WAITING", "take_turn"]

WAITING: Final = BagStateSpec("waiting", BytesCoder())
NEXT: Final = ReadModifyWriteStateSpec("next", VarIntCoder())


def take_turn(sealed: bytes, sealer: PartSealer, waiting: Any, following: int, sources: int) -> list[Part]:
    """Parts whose turn has come, in order of ticks, each whole; the others wait.

    Args:
        sealed: the part that came. A late one (no source ends with it) goes to the tick whose turn is next.
        sealer: opens and seals.
        waiting: the bag of `WAITING`.
        following: the tick whose turn is next.
        sources: a tick's turn comes only when so many sources have ended it.
    """
    part = sealer.open(sealed)
    if part.t < following and not part.ends:
        part = replace(part, t=following)
    if part.t != following:
        waiting.add(sealer.seal(part))
        return []
    held = [sealer.open(one) for one in waiting.read()]
    waiting.clear()
    came: dict[int, list[Part]] = {}
    for one in [part, *held]:
        # what waited as late for a tick that has had its turn meanwhile goes to the first open one as well
        t = one.t if one.ends else max(one.t, following)
        came.setdefault(t, []).append(replace(one, t=t))
    turn = []
    while len({source for one in came.get(following, ()) for source in one.ends}) == sources:
        turn.append(merge(came.pop(following)))
        following += 1
    for parts in came.values():
        for one in parts:
            waiting.add(sealer.seal(one))
    return turn
