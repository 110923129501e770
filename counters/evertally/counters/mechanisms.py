"""From a mechanism's canonical id back to its factorization."""

from __future__ import annotations

from evertally.counters.factorization import Factorization
from evertally.counters.rational import Rational
from evertally.errors import InvalidParameter

__all__ = ["parse_mechanism"]

_EXPECTED = 'such as "rational:W32" or "log-perturbed:alpha=1.0,loglog_ratio=1.2"'


def parse_mechanism(text: str) -> Factorization:
    """The factorization that a mechanism id names.

    >>> parse_mechanism("rational:W32").mechanism_id
    'rational:W32'
    """
    family, separator, rest = text.partition(":")
    if not separator or not rest:
        raise InvalidParameter("mechanism", text, _EXPECTED)
    if family == "rational":
        return Rational.from_label(rest)
    if family == "log-perturbed":
        from evertally.counters.log_perturbed import LogPerturbed  # noqa: PLC0415 - brings FFT libraries with it

        return LogPerturbed.from_id(text)
    raise InvalidParameter("mechanism", text, _EXPECTED)
