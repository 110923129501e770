"""Key selection: who is shown, when, at what charge; and a worker that selects."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from decimal import Decimal
from importlib import resources
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jsonschema_rs
import pytest
from kafka_harness import InThread, KafkaStream, wait_until

from evertally.accountants.budget.lines import KeySelectionLine
from evertally.accountants.budget.opening import open_ledger
from evertally.accountants.budget.scopes import Scope
from evertally.accountants.gaussian import gaussian_delta
from evertally.errors import BudgetExceeded, InvalidParameter
from evertally.pipelines.events import ValueRule
from evertally.pipelines.guarantee import guarantee_sentence, rounded_up
from evertally.pipelines.kafka.aggregation import TickRule
from evertally.pipelines.kafka.broker import TopicPartition
from evertally.pipelines.kafka.candidates import Bindings, key_record
from evertally.pipelines.kafka.config import load_worker_config
from evertally.pipelines.kafka.event_batches import EventReader
from evertally.pipelines.kafka.key_selection import Candidate, KeySelector, SelectionSpec, slot_names
from evertally.pipelines.kafka.source_config import EventFormat
from evertally.pipelines.kafka.worker import Worker
from evertally.pipelines.keyfile import KeyFile
from evertally.pipelines.releases import StreamHeader
from evertally.pipelines.stream_spec import StreamSpec

SELECTION = SelectionSpec(slots=3, threshold=200, mu=0.5, horizon=1000)


def make_spec(unit: str = "event", mu: float | None = 0.2) -> StreamSpec:
    return StreamSpec(
        name="s",
        keys=("other", *slot_names(3)),
        start_ms=0,
        tick_ms=1000,
        scope=Scope("s", unit, "add-remove", 4.0, 1e-6),
        mu=mu,
    )


@pytest.fixture
def key_file(tmp_path: Path) -> KeyFile:
    return KeyFile.create(tmp_path / "key")


def selector(key_file: KeyFile, **more: object) -> KeySelector:
    return KeySelector(SELECTION, make_spec(), key_file, bytes(16), 1, **more)  # type: ignore[arg-type]


def test_a_busy_key_is_shown_and_stays(key_file: KeyFile) -> None:
    running = selector(key_file)
    shown_at: dict[str, int] = {}
    for t in range(1, 60):
        _, shown = running.close_tick({"busy": 20, "quiet": t % 2})
        shown_at |= dict.fromkeys(shown, t)
    assert shown_at.keys() == {"busy"}
    assert 5 <= shown_at["busy"] <= 20
    assert running.slot("busy") == 0


@pytest.mark.slow
def test_a_lone_event_is_not_shown(key_file: KeyFile) -> None:
    running = selector(key_file)
    _, shown = running.close_tick({f"person-{number}": 1 for number in range(200)})
    assert shown == []
    for _ in range(20):
        assert running.close_tick({})[1] == []


@pytest.mark.slow
def test_slots_run_out(key_file: KeyFile) -> None:
    running = selector(key_file)
    _, shown = running.close_tick({f"k{number}": 10_000 for number in range(5)})
    assert shown == ["k0", "k1", "k2"]
    assert running.close_tick({"k3": 10_000})[1] == []


def test_half_a_surrogate_pair_is_no_key(key_file: KeyFile) -> None:
    """JSON can say it, a public record in UTF-8 cannot: one such event would end the selection for ever."""
    running = selector(key_file)
    changed, shown = running.close_tick({"\ud800": 10_000, "busy": 10_000})
    assert shown == ["busy"]
    assert changed.keys() == {"busy"}
    assert running.close_tick({"\udfff": 10_000}) == ({}, [])


class OneKeyShown:
    """A broker whose keys topic holds one record; only what `Bindings` calls."""

    def __init__(self) -> None:
        self.at = 0

    def reader(self) -> OneKeyShown:
        return self

    def assign(self, places: list[TopicPartition]) -> None:
        (self.place,) = places

    def seek(self, place: TopicPartition, offset: int) -> None:  # noqa: ARG002 - as the reader's
        self.at = offset

    def beginning_offsets(self, places: list[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(places, 0)

    def end_offsets(self, places: list[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(places, 1)

    def position(self, place: TopicPartition) -> int:  # noqa: ARG002 - as the reader's
        return self.at

    def poll(self, **wait: int) -> dict[TopicPartition, list[SimpleNamespace]]:  # noqa: ARG002 - as the reader's
        self.at = 1
        return {self.place: [SimpleNamespace(offset=0, value=key_record("s", 1, "busy", "slot-00001", 7))]}


def test_only_a_slot_that_is_bound_can_be_named_and_a_declared_key_always() -> None:
    keys = ("slot-machine", *slot_names(2))
    found = Bindings(OneKeyShown(), "keys", "s", 1, slots=slot_names(2))  # type: ignore[arg-type]
    names = found.names(keys)
    assert names == ("slot-machine", None, "busy")
    assert not found.refresh(), "the same record again is nothing new"
    spec = replace(make_spec(), keys=keys)
    rule = TickRule(0, 1000)
    source = EventFormat("json", "k", None, None, None, None, ValueRule(Decimal(1), 0, 1))
    reader = EventReader(spec, source, rule, None, len, names)
    given = ("slot-machine", "busy", "slot-00000", "\0slot-00000", "slot-00001")
    records = [
        SimpleNamespace(value=json.dumps({"k": key}).encode(), offset=n) for n, key in enumerate(given)
    ]
    events, refusals = reader.read(0, records, 500)
    assert events.keys.tolist() == [0, 2]
    assert {offset for _, offset, _ in refusals} == {2, 3, 4}
    assert set(reader.candidates(records, refusals)) == set(given[2:])


@pytest.mark.slow
@pytest.mark.parametrize("stop", [1, 4, 9, 10, 17])
def test_restore_anywhere(key_file: KeyFile, stop: int) -> None:
    """From the changelog alone: totals and slots; the noise is drawn again."""
    ticks = [{"a": 9 + t % 3, "b": 15, "c": 1} if t != 5 else {"d": 400} for t in range(30)]
    whole = selector(key_file)
    expected = [whole.close_tick(counts)[1] for counts in ticks]
    first = selector(key_file)
    log: dict[str, Candidate] = {}
    seen = []
    for counts in ticks[:stop]:
        changed, shown = first.close_tick(counts)
        log |= {key: Candidate(found.total, found.slot) for key, found in changed.items()}
        seen.append(shown)
    second = selector(key_file, t=stop, candidates=log)
    seen += [second.close_tick(counts)[1] for counts in ticks[stop:]]
    assert seen == expected
    assert any(expected)


@pytest.mark.slow
def test_the_selection_is_charged_once(tmp_path: Path) -> None:
    store = open_ledger(tmp_path / "ledger")
    spec = make_spec()
    store.create_scope(spec.scope)
    first = store.charge(SELECTION.charge(spec, 1))
    again = store.charge(SELECTION.charge(spec, 1))
    assert first.body == again.body
    assert abs(first.main - 0.25e9) < 1e6
    assert first.delta > 0
    spent = store.scope_status("s")
    with pytest.raises(BudgetExceeded):
        store.charge(SelectionSpec(3, 200, 5.0, 1000).charge(spec, 2))
    assert store.scope_status("s") == spent
    store.close()


@pytest.mark.slow
def test_a_threshold_that_noise_reaches_is_refused() -> None:
    with pytest.raises(InvalidParameter, match="threshold"):
        SelectionSpec(3, 2, 0.5, 1000).charge(make_spec(), 1).line.loss(make_spec().scope)
    with pytest.raises(InvalidParameter, match="event"):
        SELECTION.charge(make_spec("person"), 1)
    with pytest.raises(InvalidParameter):
        SelectionSpec(0, 200, 0.5)
    with pytest.raises(InvalidParameter):
        SelectionSpec(1, 200, float("nan"))


def test_a_replaced_event_may_touch_two_keys() -> None:
    """Either of them may show because of it: twice the chance, and the slack of two counters."""
    selection = SelectionSpec(slots=3, threshold=40, mu=0.5, horizon=1000)
    lines = []
    for adjacency in ("add-remove", "replace"):
        spec = replace(make_spec(), scope=Scope("s", "event", adjacency, 4.0, 1e-6))
        line = selection.charge(spec, 1).line
        assert isinstance(line, KeySelectionLine)
        lines.append(line)
    assert [line.parameters.keys for line in lines] == [1, 2]
    both = lines[1].loss(spec.scope).delta
    one = replace(lines[1], parameters=replace(lines[1].parameters, keys=1)).loss(spec.scope).delta
    assert both > 1.99 * one


@pytest.mark.slow
def test_selection_and_totals_are_stated_alone_and_together() -> None:
    spec = make_spec(mu=0.3)
    stated = replace(spec.header(1), selection=SelectionSpec(3, 200, 0.4, 1000).loss(spec))
    selection = stated.selection
    assert selection is not None
    assert 0.399 < selection.mu <= 0.4
    assert selection.together_mu == pytest.approx((selection.mu**2 + stated.mu**2) ** 0.5, rel=1e-12)
    own_delta = float(spec.scope.delta_cap) - float(spec.scope.delta_lines or 0)
    for mu, epsilon in (
        (selection.mu, selection.epsilon),
        (selection.together_mu, selection.together_epsilon),
        (stated.mu, stated.epsilon),
    ):
        assert gaussian_delta(epsilon, mu) <= own_delta * (1 + 1e-9)
        assert gaussian_delta(epsilon * 0.999, mu) > own_delta
    assert selection.together_epsilon > max(selection.epsilon, stated.epsilon)
    assert StreamHeader.decode(stated.encode()) == stated
    text = guarantee_sentence(stated)
    for figure in (stated.epsilon, selection.epsilon, selection.together_epsilon):
        assert rounded_up(figure) in text
    schema = json.loads((resources.files("evertally.pipelines") / "schemas/release.schema.json").read_text())
    jsonschema_rs.validator_for(schema).validate(json.loads(stated.encode()))
    assert b"selection" not in spec.header(1).encode()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("selection", "field"),
    [(SelectionSpec(3, 200, 1.2, 1000), "mu"), (SelectionSpec(3, 28, 0.5, 1000), "threshold")],
    ids=["more mu than the scope has", "more delta than the scope has"],
)
def test_what_the_scope_would_refuse_is_refused_before_anything_is_paid(
    selection: SelectionSpec, field: str
) -> None:
    with pytest.raises(InvalidParameter) as caught:
        selection.require_room(make_spec())
    assert caught.value.field == field
    SELECTION.require_room(make_spec())


def test_nothing_of_it_is_pickled(key_file: KeyFile) -> None:
    for secret in (selector(key_file), Candidate(12345)):
        with pytest.raises(TypeError):
            pickle.dumps(secret)
        assert "12345" not in repr(secret)


def _is_bound(worker: Worker) -> bool:
    """Whether the first slot has a key, as the stage that reads the events knows it."""
    stage: Any = worker._stages[0]._stage
    return stage._bindings.slots["slot-00000"] is not None


@pytest.mark.kafka
@pytest.mark.slow
def test_a_worker_shows_busy_keys_and_no_others(servers: str, tmp_path: Path) -> None:
    stream = KafkaStream(
        servers,
        tmp_path,
        keys=("alpha", "other"),
        slots=2,
        stream_extra='other = "other"',
        epsilon=0.5,
        extra=(
            '[budget]\nscope = "all"\nepsilon_cap = 4.0\ndelta_cap = 1e-6\n'
            "[select]\nslots = 2\nthreshold = 300\nmu = 0.4\nhorizon = 10000"
        ),
    )
    stream.make_topics()
    first = [{"k": "alpha"}] * 10 + [{"k": "busy"}] * 2000 + [{"k": f"person-{n}"} for n in range(50)]
    with InThread(Worker(load_worker_config(stream.config()), start_from="earliest")) as running:
        running.wait_ready()
        stream.send(first)
        wait_until("a key is shown", lambda: running.error or stream.raw("keys"))
        wait_until("its aggregator has read it", lambda: running.error or _is_bound(running.worker))
        stream.send([{"k": "busy"}] * 30)
        wait_until("its events are counted", lambda: running.error or stream.totals()["slot-00000"] >= 30)
    assert running.error is None
    with InThread(Worker(load_worker_config(stream.config()))) as again:  # recovers from the changelog
        again.wait_ready()
        stream.send([{"k": "busy"}] * 12)
        wait_until("these too", lambda: again.error or stream.totals()["slot-00000"] >= 42)
    assert again.error is None
    (header,) = [json.loads(r.value) for r in stream.raw("releases") if r.key is None]
    assert header["selection"]["together_epsilon"] > max(header["epsilon"], header["selection"]["epsilon"])
    shown = [json.loads(record.value) for record in stream.raw("keys")]
    assert [(record["key"], record["slot"]) for record in shown] == [("busy", "slot-00000")]
    totals = stream.totals()
    assert totals["slot-00000"] == 42, "a slot counts from when its key is known, from 0"
    assert totals["slot-00001"] == 0
    assert totals["alpha"] == 10
    assert totals["other"] == 2050
    raw = b"".join(
        (record.key or b"") + (record.value or b"")
        for suffix in ("keys", "candidates", "candidate-state", "closed", "releases", "dead-letters")
        for record in stream.raw(suffix, "read_uncommitted")
    )
    assert b"person-" not in raw
    stream.judge()
