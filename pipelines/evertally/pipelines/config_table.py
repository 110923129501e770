"""Reading a TOML table so that every mistake is found at once, each as (field, got, expected)."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Final, TypeVar

from evertally.errors import EvertallyError, InvalidParameter
from evertally.validation import integer, one_of, positive_real

__all__ = ["ConfigTable", "InvalidConfig", "Mistakes"]

T = TypeVar("T")
_ABSENT: Final = object()


class InvalidConfig(EvertallyError, ValueError):
    """A configuration with one or more mistakes.

    Attributes:
        mistakes: what is wrong, field by field, in the order of the file's tables.
    """

    exit_code = 2

    def __init__(self, path: str, mistakes: tuple[InvalidParameter, ...]) -> None:
        super().__init__(path, mistakes)
        self.path: Final = path
        self.mistakes: Final = mistakes

    def __str__(self) -> str:
        count = "1 mistake" if len(self.mistakes) == 1 else f"{len(self.mistakes)} mistakes"
        return f"{self.path}: {count}\n" + "\n".join(f"  {mistake}" for mistake in self.mistakes)


class Mistakes:
    """Collects what is wrong instead of stopping at the first."""

    def __init__(self) -> None:
        self.found: list[InvalidParameter] = []

    def add(self, field: str, got: object, expected: str) -> None:
        """Note one mistake."""
        self.found.append(InvalidParameter(field, got, expected))

    def attempt(self, work: Callable[[], T], prefix: str = "") -> T | None:
        """The result of `work`, or None after noting the InvalidParameter it raised."""
        try:
            return work()
        except InvalidParameter as error:
            self.add(prefix + error.field, error.got, error.expected)
            return None


class ConfigTable:
    """One table of a configuration. Each getter notes a mistake and returns None where it has no value.

    Args:
        name: the table's name, for messages.
        data: the parsed TOML value.
        mistakes: where mistakes go.
    """

    def __init__(self, name: str, data: object, mistakes: Mistakes) -> None:
        self._name = name
        self._mistakes = mistakes
        self._asked: list[str] = []
        if data is not None and not isinstance(data, dict):
            mistakes.add(name, data, f"a table, [{name}]")
        self._data: dict[str, object] = data if isinstance(data, dict) else {}

    def has(self, key: str) -> bool:
        """Whether the key is written."""
        return key in self._data

    def raw(self, key: str, expected: str, *, required: bool = True) -> object | None:
        """The value as TOML has it."""
        self._asked.append(key)
        value = self._data.get(key, _ABSENT)
        if value is _ABSENT:
            if required:
                self._mistakes.add(f"{self._name}.{key}", "nothing", expected)
            return None
        return value

    def text(self, key: str, expected: str, *, required: bool = True, secret: bool = False) -> str | None:
        """A non-empty string without control characters; a mistake does not say a secret one."""
        value = self.raw(key, expected, required=required)
        if value is None:
            return None
        if not isinstance(value, str) or not value or any(ord(character) < 32 for character in value):
            got = _unsaid(value) if secret else value
            self._mistakes.add(f"{self._name}.{key}", got, expected)
            return None
        return value

    def choice(self, key: str, choices: tuple[str, ...], default: str) -> str:
        """One of a few words."""
        value = self.raw(key, "", required=False)
        if value is None:
            return default
        return self._mistakes.attempt(lambda: one_of(f"{self._name}.{key}", value, choices)) or default

    def integer(
        self,
        key: str,
        *,
        low: int,
        high: int | None = None,
        required: bool = False,
        expected: str = "an integer",
    ) -> int | None:
        """An integer in [low, high]."""
        value = self.raw(key, expected, required=required)
        if value is None:
            return None
        return self._mistakes.attempt(lambda: integer(f"{self._name}.{key}", value, low=low, high=high))

    def positive(
        self, key: str, expected: str, *, low: float = 0.0, high: float = 1e300, required: bool = False
    ) -> float | None:
        """A finite number > 0 in [low, high]; TOML's inf and nan are refused by name."""
        value = self.raw(key, expected, required=required)
        if value is None:
            return None
        number = self._mistakes.attempt(lambda: positive_real(f"{self._name}.{key}", value, high=high))
        if number is not None and number < low:
            self._mistakes.add(f"{self._name}.{key}", value, f"a number in [{low:.10g}, {high:g}]")
            return None
        return number

    def finish(self) -> None:
        """Note every key nobody asked for, with the nearest known name."""
        for key in self._data:
            if key not in self._asked:
                near = difflib.get_close_matches(key, self._asked, 1)
                known = (
                    f"no such key; did you mean {near[0]}?" if near else "one of " + ", ".join(self._asked)
                )
                # a misspelt password would stand in the logs
                self._mistakes.add(f"{self._name}.{key}", _unsaid(self._data[key]), known)


def _unsaid(value: object) -> str:
    """A value by its kind alone."""
    return "a text" if isinstance(value, str) else f"a value of type {type(value).__name__}"
