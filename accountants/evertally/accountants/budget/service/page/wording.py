"""What the page says: guarantees, charges and amounts in plain sentences."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime
from decimal import ROUND_UP, Context, Decimal
from fractions import Fraction
from typing import Any, Final

from evertally.accountants.budget.ledger import ChargeRow
from evertally.accountants.budget.scopes import Scope

__all__ = ["amount", "charge_words", "duration", "event_word", "guarantee", "instant", "neighbours", "total"]

_EVENT_WORDS: Final = {
    "reserved": "reserved",
    "committed": "spent",
    "expired": "returned",
    "extended": "extended",
}
_RAISED: Final = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")
_MS: Final = ((86_400_000, "day"), (3_600_000, "hour"), (60_000, "minute"), (1000, "second"))


def neighbours(scope: Scope) -> str:
    """The change in the data that the guarantee hides, as the subject of a sentence."""
    unit = "event" if scope.event_level else scope.unit
    return {
        "add-remove": f"Whether or not one {unit} is in the data",
        "replace-value": f"Whether one {unit} had this value or that",
        "replace": f"Whether it was one {unit} or another",
    }[scope.adjacency]


def guarantee(scope: Scope) -> str:
    """What the cap means, in a sentence."""
    epsilon = float(Fraction(str(scope.epsilon_cap)))
    factor = f"e^{_up(scope.epsilon_cap, 4):f}" if epsilon > 20.0 else _round_up(math.exp(epsilon))
    bound = "" if scope.event_level else " (within its declared contribution bounds)"
    return (
        f"{neighbours(scope)}{bound} changes the probability of any conclusion from all releases of this "
        f"scope together, for ever, by at most a factor of {factor}, plus {_plain(scope.delta_cap)}."
    )


def charge_words(row: ChargeRow) -> str:
    """The mechanism a history row speaks of, in words; "" for later events of a charge."""
    if not row.line:
        return ""
    request: dict[str, Any] = json.loads(row.line)
    line: dict[str, Any] = request["line"]
    words = _line_words(line)
    return words + (f", group {request['group']}" if request.get("group") else "")


def event_word(event: str) -> str:
    """What happened to a charge."""
    return _EVENT_WORDS.get(event, event)


def amount(units: int, scale: int = 10**9) -> str:
    """Integer units as a decimal number of at most six digits.

    >>> amount(1_234_567_891), amount(0), amount(-6_250)
    ('1.23457', '0', '−6.25 × 10⁻⁶')
    """
    digits, _, power = f"{units / scale:.6g}".replace("-", "−").partition("e")
    return digits + (f" × 10{str(int(power.replace('−', '-'))).translate(_RAISED)}" if power else "")


def total(value: int) -> str:
    """An integer with separated thousands.

    >>> total(-1234567)
    '−1,234,567'
    """
    return f"{value:,}".replace("-", "−")


def instant(ms: int) -> str:
    """Epoch milliseconds as UTC, to the second.

    >>> instant(0)
    '1970-01-01 00:00:00'
    """
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, ValueError, OSError):
        return f"{ms} ms"


def duration(ms: int) -> str:
    """A tick's length in words.

    >>> duration(3_600_000), duration(90_000)
    ('1 hour', '90 seconds')
    """
    for unit_ms, word in _MS:
        if ms % unit_ms == 0:
            count = ms // unit_ms
            return f"{count} {word}" + ("" if count == 1 else "s")
    return f"{ms} ms"


def _line_words(line: dict[str, Any]) -> str:
    match line["kind"]:
        case "counter":
            sigma = 2**30 / line["q"]
            return f"Running counter {line['mechanism']}, {line['keys']:,} keys, σ {_short(sigma)}, for ever"
        case "key_selection":
            return f"Key selection above {line['threshold']:,}, up to tick {line['horizon']:,}"
        case "gaussian":
            noun = "release" if line["releases"] == 1 else "releases"
            sizes = f"sensitivity {line['sensitivity']}, σ {line['sigma']}"
            return f"{line['releases']:,} Gaussian {noun}, {sizes}"
        case "windows":
            return (
                f"{line['window'].capitalize()} windows of {duration(line['length_ms'])}, σ {line['sigma']}"
            )
        case "training":
            strategy, scheme = line["strategy"]["kind"], line["participation"]["kind"]
            return f"Training run: {strategy} with {scheme}, noise multiplier {line['noise_multiplier']}"
        case kind:
            return str(kind)


def _short(value: float) -> str:
    return f"{value:.4g}"


def _round_up(value: float) -> str:
    step = 10.0 ** (math.floor(math.log10(value)) - 2)
    return f"{math.ceil(value / step) * step:.3g}"


def _up(value: object, digits: int) -> Decimal:
    """A number with some digits, never below what it is."""
    return Context(prec=digits, rounding=ROUND_UP).create_decimal(str(value)).normalize()


def _plain(value: object) -> str:
    number = Decimal(str(value))
    if not Decimal("1e-9") <= number < 1:
        return f"{_up(value, 3):g}"
    text = f"{number.quantize(Decimal('1e-12'), ROUND_UP):f}"
    return text.rstrip("0")
