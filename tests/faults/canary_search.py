"""Secrets that may stand nowhere, in each form in which they could stand somewhere, and places to look."""

from __future__ import annotations

import base64
import contextlib
import struct
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

__all__ = ["files", "forms", "leaks", "processes"]

_GAP = bytes(4096)
Secret = int | bytes | str


def forms(secret: Secret) -> set[bytes]:
    """Every spelling of a secret: an exact number, the bytes of a key, the name of a unit."""
    if isinstance(secret, int):
        return _of_number(secret)
    raw = secret.encode() if isinstance(secret, str) else secret
    found = {raw, raw[::-1], raw.hex().encode(), raw.hex().upper().encode(), *_in_base64(raw)}
    if isinstance(secret, str):
        return found | {secret.encode("utf-16-le")}
    numbers = str(list(raw))[1:-1].encode()
    written = repr(raw)[2:-1].encode()
    decimal = {str(int.from_bytes(raw, order)).encode() for order in ("big", "little")}
    return found | decimal | {numbers, numbers.replace(b" ", b""), written}


def _of_number(number: int) -> set[bytes]:
    texts = {
        str(number),
        f"{number:,}",
        f"{number:_}",
        f"{number}.0",
        repr(float(number)),
        f"{number:e}",
        f"{float(number):.11e}",
    }
    if number >= 2**36:  # shorter ones are part of many an id
        texts |= {f"{number:x}", f"{number:X}"}
    least = max(6, (number.bit_length() + 7) // 8)  # fewer bytes stand somewhere by chance
    widths = sorted({least, 8, 16})
    packed = {number.to_bytes(width, order) for width in widths for order in ("big", "little")}
    packed |= {struct.pack(order + "d", float(number)) for order in "<>"}
    found = {text.encode() for text in texts} | packed
    return found | set(_in_base64(str(number).encode()))


def _in_base64(raw: bytes) -> Iterator[bytes]:
    """As it stands inside of a longer text in base64, at each of the three alignments."""
    for before in range(3):
        whole = bytes(before) + raw
        text = base64.b64encode(whole[: len(whole) // 3 * 3])
        inside = text[4:] if before else text
        if len(inside) >= 8:  # shorter ones stand everywhere
            yield inside
            yield inside.translate(bytes.maketrans(b"+/", b"-_"))


def leaks(secrets: Mapping[str, Secret], places: Iterable[tuple[str, bytes]]) -> list[str]:
    """Every place that holds a secret in some form."""
    wanted = {name: forms(secret) for name, secret in secrets.items()}
    return [
        f"{name} in {place}"
        for place, data in places
        for name, spellings in wanted.items()
        if any(spelling in data for spelling in spellings)
    ]


def files(folder: Path, besides: Iterable[str] = ()) -> Iterator[tuple[str, bytes]]:
    """All files below a folder, but those that a user has put the secret into; long gaps left out."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name not in besides:
            with contextlib.suppress(FileNotFoundError):  # a running program removes its own
                data = path.read_bytes()
                yield str(path.relative_to(folder)), b"\0".join(filter(None, data.split(_GAP)))


def processes(*pids: int) -> Iterator[tuple[str, bytes]]:
    """Arguments and environment of running programs, as every user, or the same user, may read them."""
    for pid in pids:
        for name in ("cmdline", "environ"):
            yield f"/proc/{pid}/{name}", Path(f"/proc/{pid}/{name}").read_bytes()
