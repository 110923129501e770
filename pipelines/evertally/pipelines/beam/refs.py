"""What a job carries in place of secrets: names of places. A worker looks there when it starts.

A Beam graph, its arguments and its checkpoints are stored and shown by runners. So they hold a path or the
name of a mounted secret, and never a key or a password.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final
from urllib.parse import parse_qs

from evertally.accountants.budget.ledger import LedgerStore
from evertally.accountants.budget.opening import open_ledger
from evertally.errors import InvalidParameter
from evertally.pipelines.kafka.broker import Broker
from evertally.pipelines.keyfile import KeyFile

__all__ = ["KAFKA_PASSWORD", "KeyRef", "LedgerRef", "with_password", "without_password"]

KAFKA_PASSWORD: Final = "EVERTALLY_KAFKA_PASSWORD"  # noqa: S105 - the name of a variable
_SECRETS_FOLDER: Final = "EVERTALLY_SECRETS"
_SECRET: Final = "secret:"  # noqa: S105 - a prefix
_SECRET_PARAMETERS: Final = re.compile("password|secret|scram_.*_key")


@dataclass(frozen=True, slots=True)
class KeyRef:
    """Where a worker finds the key file.

    Attributes:
        place: a path, or "secret:NAME" for the file NAME in the folder that EVERTALLY_SECRETS names on the
            worker (/run/secrets where it names none).

    >>> KeyRef("secret:visits").path()
    PosixPath('/run/secrets/visits')
    """

    place: str

    def __post_init__(self) -> None:
        name = self.place.removeprefix(_SECRET)
        if not name or (name != self.place and "/" in name):
            raise InvalidParameter("key", self.place, "the path of a key file, or secret:NAME")

    def path(self) -> Path:
        """The file on this worker."""
        if self.place.startswith(_SECRET):
            return Path(os.environ.get(_SECRETS_FOLDER, "/run/secrets")) / self.place.removeprefix(_SECRET)
        return Path(self.place)

    def load(self) -> KeyFile:
        """The key file. Raises InvalidParameter where it is not there, IntegrityError where it is none."""
        return KeyFile.open(self.path())


@dataclass(frozen=True, slots=True)
class LedgerRef:
    """Where a worker finds the ledger.

    Attributes:
        location: path of a SQLite file, or a postgresql:// address without a password (workers take it from
            PGPASSFILE or PGPASSWORD).
        chain_key_file: the ledger's chain key, where it does not lie beside the ledger.
    """

    location: str
    chain_key_file: str | None = None

    def __post_init__(self) -> None:
        if _holds_password(self.location):
            raise InvalidParameter(
                "ledger", "an address with a password", "one without: workers read PGPASSFILE or PGPASSWORD"
            )

    def open(self) -> LedgerStore:
        """Open the ledger; see `open_ledger`."""
        return open_ledger(self.location, key_file=self.chain_key_file)


def _holds_password(location: str) -> bool:
    """As libpq reads an address: what stands before an "@" ahead of the first "/" is user and password, with
    "?" and "#" in it or not; a parameter behind "?" may be any of its secrets.
    """
    _, scheme, rest = location.partition("://")
    if not scheme:
        return False
    user, at, _ = rest.partition("/")[0].partition("@")
    given = parse_qs(rest.partition("?")[2], keep_blank_values=True)
    return (at != "" and ":" in user) or any(_SECRET_PARAMETERS.search(name) for name in given)


def without_password(broker: Broker) -> Broker:
    """The broker's address as it may travel in a graph."""
    return replace(broker, password=None)


def with_password(broker: Broker) -> Broker:
    """The same with the password of this worker's environment, where the mechanism needs one."""
    if broker.sasl_mechanism is None or broker.password is not None:
        return broker
    password = os.environ.get(KAFKA_PASSWORD)
    if password is None:
        raise InvalidParameter(KAFKA_PASSWORD, "not set", "the SASL password, in every worker's environment")
    return replace(broker, password=password)
