"""Inputs that are nearly right: a seeded walk from a corpus of good ones.

A reader that survives noise from the first byte on has been asked little; what breaks readers is a good
input with one place wrong. So each input is a corpus entry after one to four edits of bytes, numbers,
lines or words.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence

_WORDS = (
    b"NaN", b"-NaN", b"Infinity", b"-inf", b"nan", b"null", b"true", b"{}", b"[]", b'""', b"''", b"0", b"-0",
    b"-1", b"1e999", b"-1e999", b"1e-999", b"1e400", b"0.1", b"9" * 25, b"9" * 400, b"9" * 5000,
    b"1" + b"0" * 309,
    b"18446744073709551615", b"9223372036854775807", b"-9223372036854775808", b"2147483648", b"4294967295",
    b"1.7976931348623157e308", b"5e-324", b"\x00", b"\x00" * 16, b"\xff" * 8, b"\xff\xfe", b"\xef\xbb\xbf",
    b"\xed\xa0\x80", b"\\ud800", b"\\u0000", b"\\", b'"', b"'", b'"""', b"[" * 400, b"{" * 400,
    b'{"a":' * 200,
    b"\n", b"\r\n", b"\r", b"\t", b",", b"=", b":", b"#", b"[[a]]", b"0001-01-01T00:00:00Z",
    b"9999-12-31T23:59:60Z", b"0001-01-01T00:00:00+14:00", b"9999-12-31T23:59:59-14:00",
    b"2024-02-30T00:00:00Z",
    b"1970-01-01", b"../../../etc/passwd", b"/dev/zero", b"~", b"a" * 300, b"\xf0\x9f\x92\xa3" * 40,
    b"rational:H40", b"rational:", b"log-perturbed:alpha=1.0,loglog_ratio=1.2", b"postgresql://", b"inf",
)  # fmt: skip
_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
_TEXT = re.compile(rb"\"[^\"\n]*\"|\w+")
_LONGEST = 20_000  # or twice the longest entry of the corpus


class Mutator:
    """Endless inputs from a corpus; the same seed gives the same inputs."""

    def __init__(self, corpus: Sequence[bytes], seed: int, *, text: bool) -> None:
        self._corpus = list(corpus)
        self._random = random.Random(seed)
        self._longest = max(_LONGEST, *(2 * len(good) for good in corpus))
        edits: list[Callable[[bytes], bytes]] = [
            self._flip, self._set, self._cut, self._drop, self._insert, self._repeat, self._splice,
        ]  # fmt: skip
        if text:
            edits += [self._number, self._number, self._word, self._word, self._line, self._line]
        self._edits = edits

    def __next__(self) -> bytes:
        data = self._random.choice(self._corpus)
        for _ in range(self._random.choice((1, 1, 1, 2, 2, 3, 4))):
            data = self._random.choice(self._edits)(data)
        return data[: self._longest]

    def _at(self, data: bytes) -> int:
        return self._random.randrange(len(data) + 1)

    def _flip(self, data: bytes) -> bytes:
        if not data:
            return b"\x01"
        at = self._random.randrange(len(data))
        return data[:at] + bytes([data[at] ^ (1 << self._random.randrange(8))]) + data[at + 1 :]

    def _set(self, data: bytes) -> bytes:
        """Overwrite a few bytes, as where a length or a count stands."""
        at, width = self._at(data), self._random.choice((1, 2, 4, 8))
        return (
            data[:at] + self._random.choice((b"\0", b"\xff", b"\x7f", b"\x80")) * width + data[at + width :]
        )

    def _cut(self, data: bytes) -> bytes:
        return data[: self._at(data)]

    def _drop(self, data: bytes) -> bytes:
        a, b = sorted((self._at(data), self._at(data)))
        return data[:a] + data[min(b, a + 64) :]

    def _insert(self, data: bytes) -> bytes:
        at = self._at(data)
        return data[:at] + self._random.choice(_WORDS) + data[at:]

    def _repeat(self, data: bytes) -> bytes:
        a = self._at(data)
        part = data[a : a + self._random.randrange(1, 200)]
        return data[:a] + part * self._random.choice((2, 2, 3, 20)) + data[a:]

    def _splice(self, data: bytes) -> bytes:
        other = self._random.choice(self._corpus)
        return data[: self._at(data)] + other[self._at(other) :]

    def _replace_one(self, pattern: re.Pattern[bytes], data: bytes) -> bytes:
        place = pattern.search(data, self._at(data)) or pattern.search(data)
        if place is None:
            return data
        return data[: place.start()] + self._random.choice(_WORDS) + data[place.end() :]

    def _number(self, data: bytes) -> bytes:
        return self._replace_one(_NUMBER, data)

    def _word(self, data: bytes) -> bytes:
        return self._replace_one(_TEXT, data)

    def _line(self, data: bytes) -> bytes:
        """Leave a line out, or write it twice."""
        start = data.rfind(b"\n", 0, self._at(data)) + 1
        end = data.find(b"\n", start) + 1 or len(data)
        return data[:start] + data[start:end] * self._random.choice((0, 2)) + data[end:]
