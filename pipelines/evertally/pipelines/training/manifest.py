"""The frozen manifest: which records a run trains on, fixed before its lease and never read otherwise.

Ranges and counts are exact numbers about the data, so the manifest is sealed; outside stands a keyed digest
of it. Everything drawn for a run is bound to that digest: another set of records is another run.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from dataclasses import dataclass
from typing import Final

from evertally.accountants.budget.canonical import plain_json
from evertally.errors import IntegrityError
from evertally.pipelines.training.examples import ExampleForm, ExampleSource, Range

__all__ = ["Manifest", "freeze"]

_VERSION: Final = "evertally.manifest/1"


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a run trains on.

    Attributes:
        source: public description of where it stands.
        form: public form of an example, as canonical JSON.
        ranges: what was read; private.
    """

    source: str
    form: str
    ranges: tuple[Range, ...]

    def encode(self) -> bytes:
        """Canonical bytes, to be sealed."""
        return plain_json(
            {
                "version": _VERSION,
                "source": json.loads(self.source),
                "form": json.loads(self.form),
                "ranges": [[r.part, r.start, r.end, r.records, r.digest] for r in self.ranges],
            }
        ).encode()

    @classmethod
    def decode(cls, data: bytes) -> Manifest:
        """The manifest of `encode`. Raises IntegrityError for other bytes."""
        try:
            said = json.loads(data)
            if said["version"] != _VERSION:
                raise IntegrityError("a manifest of another version")
            ranges = tuple(Range(str(p), int(s), int(e), int(n), str(d)) for p, s, e, n, d in said["ranges"])
            return cls(plain_json(said["source"]), plain_json(said["form"]), ranges)
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            raise IntegrityError("a manifest is damaged") from None

    def digest(self, key: bytes) -> str:
        """Keyed digest, in hexadecimal: it names the set of records and tells nothing about it."""
        return hmac.digest(key, self.encode(), hashlib.sha256).hex()

    def __repr__(self) -> str:
        return f"Manifest({self.source}, <redacted>)"


def freeze(source: ExampleSource, form: ExampleForm) -> Manifest:
    """Read the source once and write down what there is."""
    return Manifest(plain_json(source.describe()), plain_json(form.to_json()), source.freeze())
