"""The topics of a stream: names, creation, and the checks without which no worker starts."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kafka import errors as kafka_errors
from kafka.admin import ConfigResource, ConfigResourceType

from evertally.errors import InvalidParameter
from evertally.pipelines.kafka.broker import Broker, translated

__all__ = ["Partitions", "TopicNames", "TopicPlan", "check_topics", "create_topics", "plan_topics"]

_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,200}", re.ASCII)
_SHORT_MS: Final = 3 * 86_400_000
_FOR_EVER: Final = "-1"


@dataclass(frozen=True, slots=True)
class TopicNames:
    """Names of the input and of the stream's own topics.

    Attributes:
        events: the input; it is not ours, we only read it.
        prefix: what the names of the stream's own topics and groups begin with.
    """

    events: str
    prefix: str

    def __post_init__(self) -> None:
        for field, name in (("kafka.topic", self.events), ("kafka.prefix", self.prefix)):
            if _NAME.fullmatch(name) is None:
                raise InvalidParameter(field, name, "letters, digits, dot, underscore, hyphen; at most 200")

    @property
    def units(self) -> str:
        """Sealed events, by privacy unit."""
        return f"{self.prefix}.units"

    @property
    def unit_state(self) -> str:
        """Sealed changelog of what each unit has contributed."""
        return f"{self.prefix}.unit-state"

    @property
    def closed(self) -> str:
        """Sealed partial sums, by shard."""
        return f"{self.prefix}.closed"

    @property
    def releases(self) -> str:
        """Public: released totals, by shard."""
        return f"{self.prefix}.releases"

    @property
    def candidates(self) -> str:
        """Sealed counts of undeclared keys, where keys are selected."""
        return f"{self.prefix}.candidates"

    @property
    def candidate_state(self) -> str:
        """Sealed changelog of the candidates."""
        return f"{self.prefix}.candidate-state"

    @property
    def keys(self) -> str:
        """Public: which selected key each slot stands for."""
        return f"{self.prefix}.keys"

    @property
    def dead_letters(self) -> str:
        """Operators' plane: where events that cannot be counted stood."""
        return f"{self.prefix}.dead-letters"


@dataclass(frozen=True, slots=True)
class Partitions:
    """Numbers of partitions of the input topic, and of the units topic (0 at event level)."""

    events: int
    units: int


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """One of the stream's own topics: partitions and settings that differ from the broker's defaults."""

    name: str
    partitions: int
    configs: Mapping[str, str]


def plan_topics(
    names: TopicNames, *, shards: int, units: int | None, max_request_bytes: int, select: bool = False
) -> tuple[TopicPlan, ...]:
    """The topics a stream needs; `units` is the number of unit partitions, None at event level."""
    size = {"max.message.bytes": str(max_request_bytes)}
    short = {**size, "cleanup.policy": "delete", "retention.ms": str(_SHORT_MS)}
    plans = [
        TopicPlan(names.closed, shards, short),
        TopicPlan(names.releases, shards, {**size, "cleanup.policy": "delete", "retention.ms": _FOR_EVER}),
        TopicPlan(names.dead_letters, 1, short),
    ]
    if select:
        plans += [
            TopicPlan(names.candidates, 1, short),
            TopicPlan(names.candidate_state, 1, {**size, "cleanup.policy": "compact"}),
            TopicPlan(names.keys, 1, {**size, "cleanup.policy": "delete", "retention.ms": _FOR_EVER}),
        ]
    if units is not None:
        state = {**size, "cleanup.policy": "compact"}
        plans += [TopicPlan(names.units, units, short), TopicPlan(names.unit_state, units, state)]
    return tuple(plans)


def create_topics(
    broker: Broker,
    names: TopicNames,
    *,
    shards: int,
    by_unit: bool,
    max_request_bytes: int,
    replication: int | None = None,
    select: bool = False,
) -> list[str]:
    """Create what is missing of the stream's own topics; returns the names created. Idempotent.

    Raises InvalidParameter where the input topic does not exist, ServiceUnavailable without a cluster.
    """
    admin = broker.admin()
    try:
        with translated():
            found = _partitions(admin, [names.events])
            if names.events not in found:
                raise InvalidParameter("kafka.topic", names.events, "an existing topic")
            units = found[names.events] if by_unit else None
            plans = plan_topics(
                names, shards=shards, units=units, max_request_bytes=max_request_bytes, select=select
            )
            existing = _partitions(admin, [plan.name for plan in plans])
            created = []
            for plan in plans:
                if plan.name in existing:
                    continue
                request = {
                    "num_partitions": plan.partitions,
                    "replication_factor": -1 if replication is None else replication,
                    "configs": dict(plan.configs),
                }
                try:
                    admin.create_topics({plan.name: request}, wait_for_metadata=True)
                except kafka_errors.TopicAlreadyExistsError:
                    continue
                created.append(plan.name)
        return created
    finally:
        admin.close()


def check_topics(
    broker: Broker,
    names: TopicNames,
    *,
    shards: int,
    by_unit: bool,
    max_request_bytes: int,
    select: bool = False,
) -> Partitions:
    """Check every topic of a stream; returns the numbers of partitions.

    Raises InvalidParameter for the first topic that is missing or has settings under which events or
    releases could be lost.
    """
    admin = broker.admin()
    try:
        with translated():
            names_all = [names.events, names.closed, names.releases, names.dead_letters]
            if by_unit:
                names_all += [names.units, names.unit_state]
            if select:
                names_all += [names.candidates, names.candidate_state, names.keys]
            found = _partitions(admin, names_all)
            for name in names_all:
                if name not in found:
                    hint = "" if name == names.events else "; `evertally topics create` makes it"
                    raise InvalidParameter("kafka", f"no topic {name}", f"an existing topic{hint}")
            units = found[names.units] if by_unit else None
            plans = plan_topics(
                names, shards=shards, units=units, max_request_bytes=max_request_bytes, select=select
            )
            for plan in plans:
                if found[plan.name] != plan.partitions:
                    raise InvalidParameter(
                        f"topic {plan.name}",
                        f"{found[plan.name]} partitions",
                        f"{plan.partitions} partitions",
                    )
                _check_settings(plan, _settings(admin, plan.name), max_request_bytes)
            if by_unit and found[names.unit_state] != found[names.units]:
                raise InvalidParameter(
                    f"topic {names.unit_state}", found[names.unit_state], f"partitions as {names.units}"
                )
            return Partitions(found[names.events], units or 0)
    finally:
        admin.close()


def _check_settings(plan: TopicPlan, settings: Mapping[str, str], max_request_bytes: int) -> None:
    def expect(setting: str, good: Callable[[str], bool], expected: str) -> None:
        if not good(settings.get(setting, "")):
            raise InvalidParameter(f"topic {plan.name} {setting}", settings.get(setting), expected)

    expect("max.message.bytes", lambda text: int(text) >= max_request_bytes, f">= {max_request_bytes}")
    policy = plan.configs["cleanup.policy"]
    expect("cleanup.policy", lambda text: text == policy, policy)
    wanted = plan.configs.get("retention.ms")
    if wanted == _FOR_EVER:
        expect("retention.bytes", lambda text: text == "-1", "-1: releases are the public record")
        expect("retention.ms", lambda text: text == "-1", "-1: releases are the public record")
    elif wanted is not None:
        expect("retention.ms", lambda text: text == "-1" or int(text) >= 3_600_000, "-1, or at least an hour")


def _partitions(admin: Any, names: list[str]) -> dict[str, int]:
    described = admin.describe_topics(names)
    return {
        topic["name"]: len(topic["partitions"])
        for topic in described
        if topic["error_code"] == 0 and topic["name"]
    }


def _settings(admin: Any, name: str) -> dict[str, str]:
    found = admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, name)], config_filter="all")
    return {setting: entry["value"] for setting, entry in found["topic"][name].items()}
