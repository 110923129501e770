"""Neighbouring inputs give records of equal lengths on every topic of the stream: sealing hides the rest.

The whole way without a broker: events through the aggregating stage, what it writes through the bounding or
the selecting stage. Neighbours differ in one event; in the places where it matters most: the only event of
its tick and partition, of its key, of its unit.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from played_stage import CONFIG, Played, PlayedMember, RecordingProducer, records

from evertally.pipelines.kafka import bound_stage, select_stage
from evertally.pipelines.kafka.aggregation import OpenTick
from evertally.pipelines.kafka.member import Polled
from evertally.pipelines.kafka.transactions import Outgoing

UNITS = (
    CONFIG.replace('key = "k"', 'key = "k"\nunit = "u"')
    .replace("[privacy]", '[privacy]\nunit = "person"\nparticipations = 2')
    .replace("[state]", '[state]\nfolder = "."')
)
SELECT = CONFIG.replace("epsilon = 1.0", "epsilon = 0.5").replace(
    "[state]",
    '[budget]\nscope = "all"\nepsilon_cap = 4.0\n[select]\nslots = 2\nthreshold = 900\nmu = 0.4\n[state]',
)
CROWD = [{"k": key, "u": f"person-{number}"} for number in range(40) for key in ("a", "b")]


def run(
    folder: Path, monkeypatch: pytest.MonkeyPatch, text: str, *ticks: list[dict[str, str]]
) -> list[Outgoing]:
    """Everything the stages write about these ticks of events on partition 0; partition 1 stays empty."""
    folder.mkdir()
    played = Played(folder, monkeypatch, text)
    played.turns(Polled((), (0, 1), {}))
    offset = 0
    for events in ticks:
        values = [json.dumps(event).encode() for event in events]
        played.turns(Polled((), (), {0: records(offset, *values)} if values else {}))
        offset += len(values)
        played.clock.ms += 10_000
        played.turns(Polled((), (), {}))
    written = list(played.producer.records)
    written += downstream(played, monkeypatch, written)
    played.context.store.close()
    return written


def downstream(played: Played, monkeypatch: pytest.MonkeyPatch, written: list[Outgoing]) -> list[Outgoing]:
    """What the stage behind the aggregating one writes."""
    context, config = played.context, played.context.config
    member = PlayedMember()
    producer = RecordingProducer(member)
    first = OpenTick(context.life, 1, 1).encode()
    member.offsets = {0: (0, first), 1: (0, first)}
    owned: list[tuple[str, int, Any]] = []
    if config.bound is not None:
        monkeypatch.setattr(bound_stage, "Transactions", lambda *_, **__: producer)
        monkeypatch.setattr(bound_stage, "replay", lambda *_: None)
        for number in range(context.partitions.units):
            owned.append((config.topics.units, number, bound_stage._Partition(context, number, member)))  # type: ignore[arg-type]  # a player
    if config.select is not None:
        monkeypatch.setattr(select_stage, "Transactions", lambda *_, **__: producer)
        monkeypatch.setattr(select_stage, "read_changelog", lambda *_: ())
        selector = select_stage._Selector(context, config.select, member)  # type: ignore[arg-type]  # a player
        owned.append((config.topics.candidates, 0, selector))
    for topic, partition, work in owned:
        here = [r for r in written if r.topic == topic and r.partition == partition]
        work.read([SimpleNamespace(offset=at, key=r.key, value=r.value) for at, r in enumerate(here)])
        work.commit()
        work.close()
    return producer.records


def lengths(written: list[Outgoing]) -> dict[str, list[tuple[int, int, int]]]:
    """For each topic: partition, length of key and of value of each record, in order."""
    found = defaultdict(list)
    for record in written:
        found[record.topic].append((record.partition, len(record.key or b""), len(record.value or b"")))
    return dict(found)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "one"),
    [
        (CONFIG, {"k": "a"}),
        (UNITS, {"k": "a", "u": "person-3"}),
        (SELECT, {"k": "somebody\u2019s own " + "\U0001f600" * 200}),
        (SELECT, {"k": "a"}),
    ],
    ids=["event level", "unit level", "selection, a key of its own", "selection, a declared key"],
)
@pytest.mark.parametrize("crowd", [[], CROWD], ids=["alone", "in a crowd"])
def test_neighbours_write_records_of_equal_lengths(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    text: str,
    one: dict[str, str],
    crowd: list[dict[str, str]],
) -> None:
    without = lengths(run(tmp_path / "without", monkeypatch, text, crowd, [], crowd))
    with_it = lengths(run(tmp_path / "with", monkeypatch, text, crowd, [one], crowd))
    expected = {"closed"}
    if text == UNITS:
        expected |= {"units", "unit-state"}
    if text == SELECT:
        expected |= {"candidates", *(["candidate-state"] if one["k"] != "a" else [])}
    assert with_it.keys() == {f"s.{name}" for name in expected}
    for topic in without.keys() & with_it.keys():
        sizes = {size for _, _, size in without[topic] + with_it[topic]}
        assert len(sizes) == 1, f"{topic}: records of {sizes} bytes"
        if not topic.endswith("-state"):  # a changelog has one record for each unit or key that changed
            assert without[topic] == with_it[topic]


@pytest.mark.slow
def test_lengths_would_tell_if_sums_were_sparse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: with only the keys that were touched, the lengths differ."""
    from evertally.pipelines.kafka import aggregation
    from evertally.pipelines.kafka.sums import encode_sums

    monkeypatch.setattr(aggregation, "encode_sums", lambda sums, _: encode_sums(sums, sorted(sums)))
    many = CONFIG.replace('["a", "b"]', json.dumps([f"k{n}" for n in range(40)]))
    few = [{"k": "k1"}]
    lot = [{"k": f"k{n}"} for n in range(40)]
    assert lengths(run(tmp_path / "few", monkeypatch, many, few)) != lengths(
        run(tmp_path / "lot", monkeypatch, many, lot)
    )
