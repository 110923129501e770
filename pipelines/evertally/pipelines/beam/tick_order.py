"""Ticks in order: parts that came early wait in the runner's state, sealed, until their turn.

The state is a bag, so that several ticks that wait at once never melt into one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from apache_beam.coders import BytesCoder, VarIntCoder
from apache_beam.transforms.userstate import BagStateSpec, ReadModifyWriteStateSpec

from evertally.errors import IntegrityError
from evertally.pipelines.beam.parts import UNKNOWN, Part, PartSealer, merge

__all__ = ["NEXT", "WAITING", "take_turn", "take_turn_behind"]

WAITING: Final = BagStateSpec("waiting", BytesCoder())
NEXT: Final = ReadModifyWriteStateSpec("next", VarIntCoder())


def take_turn(
    part: Part, sealer: PartSealer, waiting: Any, following: int, sources: int, *, counted: bool
) -> list[Part]:
    """Ticks whose turn has come, in order, each whole; all else waits.

    A tick is whole when every source has ended it and all that they sent is there. No watermark decides that:
    a runner's may pass a source that is behind the others (Prism's does), and what it then calls late waits
    here like the rest.

    Args:
        part: the part that came.
        sealer: opens and seals.
        waiting: the bag of `WAITING`.
        following: the tick whose turn is next; earlier ones that come again are given back when whole.
        sources: how many sources end a tick.
        counted: whether sources know how much they sent. Where not, what comes for an earlier tick, and with
            no source's end, goes to the tick whose turn is next.
    """
    part = _placed(part, following, counted=counted)
    if part.t > following:
        waiting.add(sealer.seal(part))
        return []
    came: dict[int, list[Part]] = {part.t: [part]}
    for one in map(sealer.open, waiting.read()):
        placed = _placed(one, following, counted=counted)
        came.setdefault(placed.t, []).append(placed)
    merged = {t: merge(parts) for t, parts in came.items()}  # what waits is one part for each tick
    turn = [merged.pop(t) for t in sorted(merged) if t < following and _is_whole(merged[t], sources)]
    while following in merged and _is_whole(merged[following], sources):
        turn.append(merged.pop(following))
        following += 1
    waiting.clear()
    for one in merged.values():
        waiting.add(sealer.seal(one))
    return turn


def take_turn_behind(
    part: Part,
    sealer: PartSealer,
    waiting: Any,
    following: Any,
    durable_next: int,
    sources: int,
    *,
    counted: bool,
) -> list[Part]:
    """`take_turn` of a step whose ticks become durable.

    Sources that know what they sent begin behind the last durable tick. Without counts the runner's state
    (`NEXT`) says whose turn it is, from a job's first part on: where a bundle comes again, what was late then
    goes to the same tick as before, and not once more to a later one, however far durable ticks have gone.
    """
    if counted:
        return take_turn(part, sealer, waiting, durable_next, sources, counted=True)
    held: int | None = following.read()
    first = durable_next if held is None else held
    turn = take_turn(part, sealer, waiting, first, sources, counted=False)
    after = max(first, turn[-1].t + 1) if turn else first
    if after != held:
        following.write(after)
    return turn


def _placed(part: Part, following: int, *, counted: bool) -> Part:
    late = not counted and not part.ends and part.t < following
    return replace(part, t=following) if late else part


def _is_whole(part: Part, sources: int) -> bool:
    """Raises IntegrityError where more came than was sent."""
    if len(part.ends) < sources:
        return False
    sent = sum(part.ends.values())
    if UNKNOWN in part.ends.values() or part.events == sent:
        return True
    if part.events > sent:
        raise IntegrityError(f"the runner repeated contributions of tick {part.t}; nothing is released")
    return False
