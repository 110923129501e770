"""What a hostile input, a careless operator or a runner that repeats itself can do to a Beam job."""

# Beam has no types
# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from apache_beam.internal.cloudpickle import cloudpickle
from apache_beam.utils.timestamp import MAX_TIMESTAMP, MIN_TIMESTAMP, Timestamp
from tests.beam.direct import START_MS, TICK_MS, DirectStream
from tests.beam.runner_state import Bag, Value
from tests.contracts.engine_conformance import Case, exact_steps

from evertally.accountants.budget.ledger import OpenedStream
from evertally.accountants.budget.scopes import Scope
from evertally.errors import Fenced, IntegrityError, InvalidParameter
from evertally.pipelines.beam import ContinualCount, ContinualSum, KeyRef, LedgerRef, yaml_provider
from evertally.pipelines.beam.bound_units import BoundLive, _Bucket
from evertally.pipelines.beam.closings_topic import ClosingsLog, ClosingsTopic
from evertally.pipelines.beam.elements import CheckElements, Counting
from evertally.pipelines.beam.job import counting_of
from evertally.pipelines.beam.job_end import _reason
from evertally.pipelines.beam.options import CountOptions
from evertally.pipelines.beam.parts import UNKNOWN, Part, PartSealer
from evertally.pipelines.beam.per_process import close_all
from evertally.pipelines.beam.positions import Cuts
from evertally.pipelines.beam.release_ticks import ReleaseLive, Releasing
from evertally.pipelines.beam.stream_ref import opened
from evertally.pipelines.bounding import UnitBound
from evertally.pipelines.events import ValueRule
from evertally.pipelines.kafka.aggregation import TickRule
from evertally.pipelines.kafka.broker import Broker, TopicPartition
from evertally.pipelines.kafka.config import load_worker_config
from evertally.pipelines.keyfile import KeyFile
from evertally.pipelines.releases import Release
from evertally.pipelines.stream_spec import StreamSpec

RULE = TickRule(START_MS, TICK_MS, 0, None)


@pytest.fixture(autouse=True)
def _fresh_process() -> Iterator[None]:
    yield
    close_all()


def by_person(**limits: Any) -> StreamSpec:
    scope = Scope("s", "person", "add-remove", "1", "1e-6")
    given = {"closing": "event-time", "participations": 1, **limits}
    return StreamSpec("s", ("a", "b"), START_MS, TICK_MS, scope, **given)


# what may only be charged for what is bounded


@pytest.mark.parametrize("buckets", [0, -1, True, 1.5, 2**20])
def test_no_number_of_buckets_turns_bounding_off(buckets: Any) -> None:
    with pytest.raises(InvalidParameter, match="buckets"):
        ContinualCount(
            by_person(), LedgerRef("l"), KeyRef("k"), unit_field="who", folder=".", buckets=buckets
        )


def test_a_contribution_beyond_the_clip_that_was_paid_for_is_refused() -> None:
    event = replace(by_person(), scope=Scope("s", "event", "add-remove", "1", "1e-6"), clip=5)
    for rule in (ValueRule(Decimal(1), 0, 6), ValueRule(Decimal(1), -5, 5), ValueRule(Decimal("0.1"), 0, 50)):
        with pytest.raises(InvalidParameter, match="value_rule"):
            ContinualSum(event, LedgerRef("l"), KeyRef("k"), value_rule=rule)
    ContinualSum(event, LedgerRef("l"), KeyRef("k"), value_rule=ValueRule(Decimal("0.1"), 0, 5))


def test_the_field_of_the_unit_belongs_to_the_stream() -> None:
    """Counted by person under one field and then by another, each person would get the bound twice."""
    made = ContinualCount(by_person(), LedgerRef("l"), KeyRef("k"), unit_field="who", folder=".", other="b")
    assert (made._stream.spec.unit_field, made._stream.spec.other) == ("who", "b")
    with pytest.raises(InvalidParameter, match="unit_field"):
        ContinualCount(
            by_person(unit_field="device"), LedgerRef("l"), KeyRef("k"), unit_field="who", folder="."
        )
    with pytest.raises(InvalidParameter, match="other"):
        ContinualCount(
            by_person(other="a"), LedgerRef("l"), KeyRef("k"), unit_field="who", folder=".", other="b"
        )


@pytest.mark.parametrize("name", ["lateness_s", "skew_s"])
@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), -1.0, 1e300, "1", True])
def test_seconds_are_seconds(name: str, seconds: Any) -> None:
    event = replace(by_person(), scope=Scope("s", "event", "add-remove", "1", "1e-6"))
    with pytest.raises(InvalidParameter, match=name):
        ContinualCount(event, LedgerRef("l"), KeyRef("k"), **{name: seconds})


@pytest.mark.parametrize("ticks", [0, -1, True])
def test_a_declared_number_of_ticks_is_one(ticks: Any) -> None:
    spec = StreamSpec("s", ("a",), START_MS, TICK_MS, Scope("s", "event", "add-remove", "1", "1e-6"))
    with pytest.raises(InvalidParameter, match="ticks"):
        ContinualCount(spec, LedgerRef("l"), KeyRef("k"), ticks=ticks)


@pytest.mark.parametrize(
    ("field", "value"), [("tick_s", float("nan")), ("tick_s", float("inf")), ("tick_s", 0), ("start", "now")]
)
def test_what_a_yaml_pipeline_says_wrongly_is_named(field: str, value: Any) -> None:
    given = {"stream": "s", "keys": ["a"], "start": "2026-01-01T00:00:00Z", "tick_s": 60, "epsilon": 1}
    with pytest.raises(InvalidParameter, match=field):
        yaml_provider.count(**{**given, "delta": "1e-6", "ledger": "l", "key": "k", field: value})


def bucket(stream: DirectStream, number: int, buckets: int) -> _Bucket:
    counting = Counting(stream.ref, RULE, SimpleNamespace(), None, None, buckets)  # type: ignore[arg-type]  # no events
    return _Bucket(counting, UnitBound(1, 1, 1), str(stream.folder), number)


def counted(where: _Bucket, t: int, unit: int) -> int:
    rows = np.array([[unit], [0], [1]])
    part = Part(t, rows=rows, events=1, ends={0: UNKNOWN})
    outputs = list(where.parts(part, 1))
    sealer = opened(where._counting.stream).sealer
    return sum(sum(sealer.open(out.value[1]).sums.values()) for out in outputs)


def person_stream(folder: Path) -> DirectStream:
    return DirectStream(folder, Case("units", (), bound=UnitBound(1, 1, 1)), "event-time")


def test_fewer_buckets_do_not_make_a_unit_new(tmp_path: Path) -> None:
    """Unit 2 of four buckets has a file of its own; of two buckets its file is another one."""
    stream = person_stream(tmp_path)
    for number, unit in ((0, 0), (2, 2)):
        where = bucket(stream, number, 4)
        assert counted(where, 1, unit) == 1
        where.close()
    close_all()
    with pytest.raises(InvalidParameter, match="buckets"):
        counted(bucket(stream, 0, 2), 2, 2)


def test_a_part_led_to_another_bucket_is_refused(tmp_path: Path) -> None:
    """There its units would be new, and count again."""
    stream = person_stream(tmp_path)
    assert counted(bucket(stream, 1, 4), 1, 5) == 1
    with pytest.raises(IntegrityError, match="another bucket"):
        counted(bucket(stream, 2, 4), 1, 5)


def test_a_replay_from_the_start_that_is_killed_can_be_begun_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What comes again for durable ticks is bounded as before, and takes nothing away from the file."""
    monkeypatch.setattr(_Bucket, "durable", lambda _: 3)
    stream = person_stream(tmp_path)
    where = bucket(stream, 0, 1)
    for t in (1, 2, 3):
        assert counted(where, t, t) == 1
    assert counted(where, 1, 1) == 1  # again, with the same outcome
    with pytest.raises(IntegrityError, match="other data"):
        counted(where, 2, 9)
    where.close()
    anew = bucket(stream, 0, 1)
    assert anew.begin() == 4
    assert [counted(anew, 4, unit) for unit in (3,)] == [0], "unit 3 has had its tick"


def test_a_missing_folder_is_named_with_what_to_do(tmp_path: Path) -> None:
    stream = person_stream(tmp_path)
    stream.folder.joinpath("a file").write_bytes(b"")
    for place in ("nowhere/deeper", "a file"):
        counting = Counting(stream.ref, RULE, SimpleNamespace(), None, None, 2)  # type: ignore[arg-type]  # no events
        with pytest.raises(InvalidParameter) as caught:
            _Bucket(counting, UnitBound(1, 1, 1), str(tmp_path / place), 0)
        assert caught.value.field == "state.folder"
        assert str(tmp_path / place) in str(caught.value)
        assert "worker" in str(caught.value)


# a runner that computes a bundle again after its tick is durable


def release_step(stream: DirectStream) -> ReleaseLive:
    return ReleaseLive(Releasing(stream.ref, RULE, 1))


def test_a_late_event_counts_once_however_a_failed_bundle_comes_again(tmp_path: Path) -> None:
    stream = DirectStream(tmp_path, Case("late", ()), "event-time")
    sealer = opened(stream.ref).sealer
    step, waiting, following = release_step(stream), Bag(), Value()

    def give(part: Part) -> list[bytes]:
        element = (0, sealer.seal(part))
        return [out.value for out in step.process(element, waiting, following)]

    def end_of(t: int) -> Part:
        return Part(t, ends={0: UNKNOWN})

    first = give(end_of(1))
    assert len(first) == 4
    assert give(Part(1, {0: 1}, events=1)) == []  # late: it waits for tick 2
    kept = (list(waiting.held), following.held)
    once = give(end_of(2))  # durable, and then the runner loses the bundle
    waiting.held, following.held = kept
    assert give(end_of(3)) == []  # tick 3 is there before tick 2 comes again
    again = give(end_of(2))
    assert again[:4] == once
    assert len(again) == 8
    steps = exact_steps([Release.decode(line) for line in (*first, *again)], stream.spec, *secrets_of(stream))
    assert {key: list(found) for key, found in steps.items()}["alpha"] == [0, 1, 0]


def secrets_of(stream: DirectStream) -> tuple[OpenedStream, KeyFile]:
    handle = opened(stream.ref)
    return handle.opened, handle.key_file


def test_a_bounding_step_goes_on_behind_what_is_durable(tmp_path: Path) -> None:
    """The runner's state is older than the ledger; its source begins behind the ledger's head."""
    stream = person_stream(tmp_path)
    counting = Counting(stream.ref, RULE, SimpleNamespace(), None, None, 1)  # type: ignore[arg-type]  # no events
    bounding = BoundLive(counting, UnitBound(1, 1, 1), str(tmp_path), 1, counted=True)
    sealer = opened(stream.ref).sealer
    waiting, following, release = (Bag(), Bag()), (Value(), Value()), release_step(stream)
    old: int | None = None
    for t in (1, 2, 3, 4):
        if t == 4:
            following[0].held = old
        given = (0, sealer.seal(Part(t, ends={0: 0})))
        (out,) = bounding.process(given, waiting[0], following[0])
        if t == 1:
            old = following[0].held
        released = list(release.process((0, out.value[1]), waiting[1], following[1]))
        assert len(released) == 4


def test_a_release_step_stops_where_another_incarnation_was_paid_for(tmp_path: Path) -> None:
    stream = DirectStream(tmp_path, Case("inc", ()), "event-time")
    handle = opened(stream.ref)
    wider = replace(stream.spec.scope, name="wider")
    handle.store.create_scope(wider)
    handle.store.open_stream(stream.spec.record(), replace(stream.spec.charge(), scope="wider"))
    sealed = handle.sealer.seal(Part(1, ends={0: UNKNOWN}))
    with pytest.raises(Fenced, match="incarnation"):
        list(release_step(stream).process((0, sealed), Bag(), Value()))


# sealed positions


def log_of(
    monkeypatch: pytest.MonkeyPatch, held: Mapping[TopicPartition, Any], sealer: PartSealer
) -> ClosingsLog:
    def committed(place: TopicPartition, **_: Any) -> Any:
        return held.get(place)

    reader = SimpleNamespace(committed=committed, close=lambda **_: None)
    monkeypatch.setattr(Broker, "group_reader", lambda *_: reader)
    topic = ClosingsTopic(Broker("h:1"), "s", ("t", 2))
    return ClosingsLog(topic, "ab" * 8, 1, sealer)


def test_positions_open_only_with_their_partition_and_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    sealer = PartSealer(b"k" * 32, "s")
    held: dict[TopicPartition, Any] = {}
    log = log_of(monkeypatch, held, sealer)
    zero, one = TopicPartition("t", 0), TopicPartition("t", 1)

    def commit(through: int, cuts: Cuts) -> dict[TopicPartition, Any]:
        texts = log.offsets(through, cuts.encode())
        return {place: SimpleNamespace(metadata=text.text) for place, text in texts.items()}

    old = commit(6, Cuts(6, ((80,), (90,))))
    new = commit(7, Cuts(7, ((100,), (120,))))
    held |= new
    assert log.positions() == (7, Cuts(7, ((100,), (120,))).encode())
    swapped = {zero: new[one], one: new[zero]}
    words = new[zero].metadata.split(" ")
    rolled = " ".join([*words[:4], old[zero].metadata.split(" ")[4]])  # the old offsets under the new tick
    for tampered in (swapped, {zero: SimpleNamespace(metadata=rolled), one: new[one]}):
        held |= tampered
        with pytest.raises(IntegrityError):
            log.positions()


@pytest.mark.parametrize("last", ["", "é", "=", "A", "!" * 40, "\x00", "QUJD" * 40])
def test_damaged_positions_are_refused_by_name(monkeypatch: pytest.MonkeyPatch, last: str) -> None:
    sealer = PartSealer(b"k" * 32, "s")
    metadata = f"evertally/1 {'ab' * 8} 1 8 {last}"
    text = SimpleNamespace(metadata=metadata)
    log = log_of(monkeypatch, {TopicPartition("t", n): text for n in range(2)}, sealer)
    with pytest.raises(IntegrityError):
        log.positions()


# addresses with a password


@pytest.mark.parametrize(
    "location",
    [
        "postgresql://u:se?cret@h/db",
        "postgresql://u:se#cret@h/db",
        "postgres://u:se%3Fcret@h/db",
        "postgresql://h/db?sslpassword=secret",
        "postgresql://h/db?sslmode=require&pass%77ord=secret",
        "postgresql://h/db?oauth_client_secret=secret",
        "postgresql://h/db?scram_client_key=secret",
    ],
)
def test_an_address_with_any_kind_of_password_does_not_travel(location: str) -> None:
    with pytest.raises(InvalidParameter) as caught:
        LedgerRef(location)
    assert "cret" not in str(caught.value)


def test_addresses_without_a_password_do() -> None:
    for location in ("postgresql://u@h:5432/db?sslmode=require", "postgres://h1:1,h2:2/db", "a:b@c.sqlite"):
        assert LedgerRef(location).location == location


# elements


class Odd(dict[str, Any]):
    """A mapping of its own kind."""


ODD: list[Any] = [
    None,
    5,
    10**5000,
    "",
    b"",
    "\ud800",
    "{",
    b"\xff" * 9,
    b"[" * 100_000,
    b'{"k":"alpha","at":' + b"9" * 5000 + b"}",
    object(),
    [],
    {1: 2},
    {"k": 10**5000, "at": START_MS},
    {"k": "alpha", "at": 10**5000},
    {"k": "alpha", "at": -(10**5000)},
    {"k": "alpha", "at": float("nan")},
    {"k": "alpha", "at": 10**15 - 1},
    {"k": "alpha", "at": "9999-12-31T23:59:60Z"},
    {"k": "alpha", "at": MAX_TIMESTAMP},
    {"k": "alpha", "at": MIN_TIMESTAMP},
    {"k": "al\x00pha", "at": START_MS},
    {"k": "\ud800", "at": "\udfff"},
    {"k": b"alpha", "at": START_MS},
    {"k": True, "at": True},
    {"k": "alpha" * 10**6, "at": START_MS},
    {"k": Decimal("NaN"), "at": Decimal("sNaN")},
    {"k": "alpha", "at": Decimal("1E+999999")},
    {"k": np.int64(5), "at": np.float64(5)},
    {"k": ["alpha"], "at": {"a": 1}},
    Odd(k="alpha", at=Odd()),
]
VALUES: list[Any] = [
    float("nan"),
    float("inf"),
    float("-inf"),
    -0.0,
    5e-324,
    1e308,
    10**5000,
    -(10**5000),
    True,
    Decimal("NaN"),
    Decimal("sNaN"),
    Decimal("Infinity"),
    Decimal("1E+999999999"),
    Decimal("1E-999999999"),
    "1",
    "\ud800",
    np.float32(1),
    np.int8(1),
    1j,
    b"1",
    [1],
]


def check(folder: Path, elements: list[Any], **options: Any) -> tuple[int, list[bytes], CheckElements]:
    stream = DirectStream(folder, Case("odd", ()), "event-time")
    made = ContinualSum(
        stream.spec, stream.ref.ledger, stream.ref.key, key_field="k", time_field="at", skew_s=None, **options
    )
    step = CheckElements(made._counting)
    step.setup()
    step.start_bundle()
    outputs: list[Any] = []
    for one in elements:
        outputs += step.process(one, Timestamp(START_MS / 1000))
    outputs += step.finish_bundle()
    sealer = opened(made._stream).sealer
    letters = [out.value.value for out in outputs if hasattr(out, "tag")]
    parts = [sealer.open(out.value[1]) for out in outputs if not hasattr(out, "tag")]
    return sum(part.events for part in parts), letters, step


@pytest.mark.parametrize("hmac", [False, True])
def test_no_element_stops_a_job(tmp_path: Path, hmac: bool) -> None:
    good = {"k": "alpha", "at": START_MS, "value": 1}
    odd = ODD + [{**good, "value": value} for value in VALUES]
    events, letters, _ = check(tmp_path, [good, *odd, good], dead_letter_hmac=hmac)
    # -0.0, 5e-324, 1E-999999999 are numbers; 1e308 and larger ones are refused
    assert events + len(letters) == 2 + len(odd)
    assert events >= 2
    assert all((b"hmac" in letter) == hmac for letter in letters)


def test_a_step_that_holds_secrets_or_events_is_not_pickled(tmp_path: Path) -> None:
    _, _, step = check(tmp_path, [], dead_letter_hmac=True)
    step._items.append(({"k": "canary-918273645546"}, Timestamp(0)))
    with pytest.raises(TypeError) as caught:
        cloudpickle.dumps(step)
    assert "918273645546" not in str(caught.value)


def test_a_stamp_of_the_far_future_stops_no_job(tmp_path: Path) -> None:
    """Ticks of a year: the last one that is paid for lies beyond every time that Beam can write."""
    scope = Scope("s", "event", "add-remove", "1", "1e-6")
    stream = DirectStream(tmp_path, Case("far", ()), "event-time")
    spec = StreamSpec("far", ("alpha",), 0, 365 * 86_400_000, scope, closing="event-time")
    made = ContinualSum(spec, stream.ref.ledger, stream.ref.key, key_field="k", time_field="at", skew_s=None)
    step = CheckElements(made._counting)
    step.setup()
    for at in (10**15 - 1, "9999-12-31T23:59:59Z", 253_402_300_799_999):
        step.start_bundle()
        list(step.process({"k": "alpha", "at": at, "value": 1}, Timestamp(0)))
        for out in step.finish_bundle():
            assert out.timestamp <= MAX_TIMESTAMP


def test_events_beyond_an_extended_horizon_are_counted(tmp_path: Path) -> None:
    """Tick 6 is beyond the four that were paid for first, and within what was paid for later."""
    stream = DirectStream(tmp_path, Case("paid", ()), "event-time")
    spec = replace(stream.spec, slack_horizon=4, mu=0.1)
    made = ContinualSum(spec, stream.ref.ledger, stream.ref.key, key_field="k", time_field="at", skew_s=None)
    for extended, found in ((False, 0), (True, 1)):
        if extended:
            opened(made._stream).store.extend_horizon(spec.name, 1, 8)
            close_all()
        step = CheckElements(made._counting)
        step.setup()
        step.start_bundle()
        list(step.process({"k": "alpha", "at": START_MS + 5 * TICK_MS, "value": 1}, Timestamp(0)))
        sent = [out for out in step.finish_bundle() if not hasattr(out, "tag")]
        assert len(sent) == found


# options


CONFIG = """
[stream]
name = "visits"
keys = ["a", "b"]
start = "2026-01-01T00:00:00Z"
tick_s = 1
{stream}
[source]
key = "k"
unit = "who"
{source}
[privacy]
epsilon = 1.0
delta = 1e-6
unit = "person"
participations = 2
[state]
path = "ledger"
key_file = "key"
folder = "."
[kafka]
bootstrap_servers = "127.0.0.1:1"
topic = "t"
closing_sources = 1
"""


@pytest.mark.parametrize("buckets", [0, -4, 100_000])
def test_no_option_of_a_job_turns_bounding_off(tmp_path: Path, buckets: int) -> None:
    (tmp_path / "worker.toml").write_text(CONFIG.format(stream="", source=""))
    config = load_worker_config(tmp_path / "worker.toml")
    stream = DirectStream(tmp_path, Case("job", ())).ref
    with pytest.raises(InvalidParameter, match="buckets"):
        counting_of(
            config, CountOptions([f"--evertally_buckets={buckets}"]), replace(stream, spec=config.spec)
        )


def test_a_failure_in_a_runner_is_told_without_its_data() -> None:
    told = _reason("RuntimeError: ValueError: canary-918273645546 [while running 'Count']")
    assert "918273645546" not in str(told)
    text = (
        "evertally.errors.InvalidParameter: state.folder: got '/x', expected a path [while running 'Bound']\n"
    )
    mistake = _reason(f"Traceback: {text}canary")
    assert isinstance(mistake, InvalidParameter)
    assert str(mistake) == "state.folder: got '/x', expected a path"
    assert mistake.exit_code == 2
    assert str(_reason("x.IntegrityError: tick 3 [while running 'y']")) == "IntegrityError: tick 3"
