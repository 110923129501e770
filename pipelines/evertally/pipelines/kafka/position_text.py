"""The text that travels with the offset which a middle stage commits: all that its next owner needs."""

from __future__ import annotations

import base64

from evertally.errors import IntegrityError
from evertally.pipelines.kafka.aggregation import OpenTick
from evertally.pipelines.kafka.collector import LogPosition

__all__ = ["decode_position_text", "encode_position_text"]


def encode_position_text(life: str, incarnation: int, position: LogPosition, state_stop: int) -> str:
    """Open tick, end of the changelog, log position."""
    packed = base64.urlsafe_b64encode(position.encode()).decode()
    return f"{OpenTick(life, incarnation, position.through + 1).encode()} {state_stop} {packed}"


def decode_position_text(text: str, life: str, incarnation: int, offset: int) -> tuple[LogPosition, int]:
    """Position and end of the changelog; from the committed offset where the incarnation is new."""
    words = text.split(" ")
    open_tick = OpenTick.decode(" ".join(words[:4])).within(life, incarnation)
    if open_tick == 1 or len(words) == 4:
        return LogPosition(0, offset, offset, ()), 0
    try:
        position = LogPosition.decode(base64.urlsafe_b64decode(words[5]))
        return position, int(words[4])
    except (ValueError, IndexError):
        raise IntegrityError("the group's committed offsets were written by another program") from None
