"""Configurations: every mistake at once, each with field, got and expected."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from evertally.accountants.budget.opening import open_ledger
from evertally.accountants.budget.scopes import Scope
from evertally.accountants.gaussian import gaussian_epsilon
from evertally.errors import InvalidParameter
from evertally.pipelines.config import load_config
from evertally.pipelines.config_table import InvalidConfig

Cli = Callable[..., tuple[int, str, str]]
REPOSITORY = Path(__file__).resolve().parents[2]
SINCE_VERSION_2 = ("unit_field", "timezone", "other", "version")


def change(folder: Path, old: str, new: str) -> Path:
    path = folder / "run.toml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    return path


def test_a_good_configuration(gates: Path) -> None:
    config = load_config(gates / "run.toml")
    assert (config.ticks.ticks, config.spec.keys, config.bound, config.other) == (
        6,
        ("north", "south"),
        None,
        None,
    )
    assert config.releases == gates / "releases.jsonl"
    assert config.spec.header(1).epsilon <= 1.0


@pytest.mark.parametrize(
    ("old", "new", "field"),
    [
        ('releases = "releases.jsonl"', 'releases = "there"', "output.releases"),
        ('releases = "releases.jsonl"', 'releases = "/dev/null"', "output.releases"),
        ('dead_letters = "dead.jsonl"', 'dead_letters = "there"', "output.dead_letters"),
        ('path = "state.sqlite"', 'path = "there"', "state.path"),
        ('key_file = "key"', 'key_file = "there"', "state.key_file"),
    ],
)
def test_what_a_run_could_not_write_is_said_before_it_pays(
    gates: Path, old: str, new: str, field: str
) -> None:
    (gates / "there").mkdir()
    with pytest.raises(InvalidConfig) as caught:
        load_config(change(gates, old, new))
    assert [mistake.field for mistake in caught.value.mistakes] == [field]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('path = "state.sqlite"', 'path = "postgresql://u:hunter2@host/db"'),
        ('path = "state.sqlite"', 'path = "postgresql://u:hunter2@host/db\\u0007"'),
        ('path = "state.sqlite"', 'paht = "postgresql://u:hunter2@host/db"'),
    ],
)
def test_a_mistake_says_no_secret(gates: Path, cli: Cli, old: str, new: str) -> None:
    code, out, err = cli("check-config", "--json", "--config", change(gates, old, new))
    assert code == 2
    assert "hunter2" not in out + err


@pytest.mark.parametrize(
    ("old", "new", "field"),
    [
        ('name = "gates"', "", "stream.name"),
        ('name = "gates"', 'name = ""', "stream.name"),
        ('name = "gates"', 'name = "with space"', "stream.name"),
        ('keys = ["north", "south"]', "keys = []", "stream.keys"),
        ('keys = ["north", "south"]', 'keys = ["north", "north"]', "stream.keys"),
        ('keys = ["north", "south"]', "keys = [1]", "stream.keys"),
        ('keys = ["north", "south"]', 'keys = ["north"]\nother = "rest"', "stream.other"),
        ("start = 2024-01-01T00:00:00Z", "start = 2024-01-01T00:00:00", "stream.start"),
        ("start = 2024-01-01T00:00:00Z", 'start = "yesterday"', "stream.start"),
        ("start = 2024-01-01T00:00:00Z", "start = 0", "stream.start"),
        ("end = 2024-01-01T06:00:00Z", "end = 2024-01-01T06:30:00Z", "stream.end"),
        ("end = 2024-01-01T06:00:00Z", "end = 2023-01-01T06:00:00Z", "stream.end"),
        ("start = 2024-01-01T00:00:00Z", 'start = "0001-01-01T00:00:00+10:00"', "stream.start"),
        ("start = 2024-01-01T00:00:00Z", "start = 0001-01-01T00:00:00+10:00", "stream.start"),
        ("end = 2024-01-01T06:00:00Z", 'end = "9999-12-31T23:59:60Z"', "stream.end"),
        ("end = 2024-01-01T06:00:00Z", 'end = "9999-12-31T23:00:00-01:00"', "stream.end"),
        ('keys = ["north", "south"]', 'keys = ["north", "so\\u0000uth"]', "stream.keys"),
        ('keys = ["north", "south"]', f'keys = ["north", "{"k" * 257}"]', "stream.keys"),
        ("tick_s = 3600", "tick_s = 0", "stream.tick_s"),
        ("tick_s = 3600", "tick_s = nan", "stream.tick_s"),
        ("tick_s = 3600", "tick_s = 0.0001", "stream.tick_s"),
        (
            "tick_s = 3600",
            "tick_s = 0.001",
            "stream.tick_s",
        ),
        ('path = "events.csv"', 'path = "none.csv"', "source.path"),
        ('path = "events.csv"', 'path = "-"', "source.format"),
        ('path = "events.csv"', 'path = "events.csv"\nformat = "xml"', "source.format"),
        ('key = "gate"', "", "source.key"),
        ('key = "gate"', 'key = "gate"\ncarrier = "gate"', "source.carrier"),
        ('key = "gate"', 'key = "gate"\nunit = "who"', "source.unit"),
        ('key = "gate"', 'key = "gate"\nvalue = "amount"\nvalue_unit = "0"', "source.value_unit"),
        ('key = "gate"', 'key = "gate"\nvalue = "amount"\nvalue_unit = "cent"', "source.value_unit"),
        ('key = "gate"', 'key = "gate"\nvalue_unit = "1"', "source.value_unit"),
        ('key = "gate"', 'key = "gate"\ntimezone = "Mars/Base"', "source.timezone"),
        ("epsilon = 1.0", "epsilon = 1.0\nclip = 1099511627776", "privacy.clip"),
        ("epsilon = 1.0", "epsilon = inf", "privacy.epsilon"),
        ("epsilon = 1.0", "epsilon = -1", "privacy.epsilon"),
        ("epsilon = 1.0", 'epsilon = "1"', "privacy.epsilon"),
        ("epsilon = 1.0", "epsilon = true", "privacy.epsilon"),
        ("epsilon = 1.0", "epsilon = 1.0\nmu = 0.5", "privacy.epsilon"),
        ("epsilon = 1.0", "", "privacy.epsilon"),
        ("epsilon = 1.0", "mu = 1e-300", "privacy.mu"),
        ("delta = 1e-6", "delta = 1", "privacy.delta"),
        ("delta = 1e-6", "", "privacy.delta"),
        ("delta = 1e-6", "delta = 1e-6\nclip = 0", "privacy.clip"),
        ("delta = 1e-6", "delta = 1e-6\nclip = 1.5", "privacy.clip"),
        ("delta = 1e-6", "delta = 1e-6\nlower = -2", "privacy.lower"),
        ("delta = 1e-6", "delta = 1e-6\nparticipations = 3", "privacy.participations"),
        ("delta = 1e-6", 'delta = 1e-6\nunit = "person"', "privacy.participations"),
        ("delta = 1e-6", 'delta = 1e-6\nadjacency = "none"', "privacy.adjacency"),
        ("delta = 1e-6", 'delta = 1e-6\nmechanism = "magic"', "mechanism"),
        ("delta = 1e-6", "delta = 1e-6\nslack_horizon = 3", "slack_horizon"),
        ('releases = "releases.jsonl"', 'releases = "nowhere/releases.jsonl"', "output.releases"),
        ('releases = "releases.jsonl"', 'releases = "events.csv"', "source.path"),
        ('key_file = "key"', 'key_file = "state.sqlite"', "state.key_file"),
        ("[state]", "[estate]", "estate"),
    ],
)
def test_each_mistake_is_named(gates: Path, cli: Cli, old: str, new: str, field: str) -> None:
    path = change(gates, old, new)
    if new == "tick_s = 0.001":  # over two days: too many releases
        path = change(gates, "end = 2024-01-01T06:00:00Z", "end = 2024-01-03T00:00:00Z")
    code, out, err = cli("check-config", "--config", path)
    assert code == 2
    assert re.search(rf"\b{re.escape(field)}: got .*, expected ", err), err
    assert "Traceback" not in out + err
    assert not (gates / "key").exists()


@pytest.mark.parametrize("name", ["key", "state.sqlite", "events.csv"])
def test_a_hard_link_is_no_other_file(gates: Path, cli: Cli, name: str) -> None:
    (gates / name).touch(0o600)
    before = (gates / name).read_bytes()
    os.link(gates / name, gates / "dead.jsonl")
    code, _, err = cli("run", "-c", gates / "run.toml")
    assert (code, "another file than output.dead_letters" in err) == (2, True)
    assert (gates / name).read_bytes() == before


@pytest.mark.parametrize("suffix", ["-wal", "-shm", "-journal", ".chainkey"])
def test_the_files_beside_the_state_are_taken(gates: Path, suffix: str) -> None:
    path = change(gates, '"dead.jsonl"', f'"state.sqlite{suffix}"')
    with pytest.raises(InvalidConfig, match=r"state\.path.*another file than output\.dead_letters"):
        load_config(path)


def test_all_mistakes_come_at_once(gates: Path, cli: Cli) -> None:
    path = change(gates, "tick_s = 3600", "tick_s = -1\ntik_s = 5")
    change(gates, "delta = 1e-6", "delta = 2")
    change(gates, 'key_file = "key"', "")
    code, out, _ = cli("check-config", "--config", path, "--json")
    fields = [mistake["field"] for mistake in json.loads(out)["mistakes"]]
    assert code == 2
    assert fields == ["stream.tick_s", "privacy.delta", "state.key_file", "stream.tik_s"]
    with pytest.raises(InvalidConfig, match="4 mistakes") as caught:
        load_config(path)
    assert "did you mean tick_s?" in str(caught.value)


@pytest.mark.parametrize("content", [b"[stream", b"\xff", b"a = [" + b"[" * 5000])
def test_files_that_are_no_toml(gates: Path, cli: Cli, content: bytes) -> None:
    (gates / "run.toml").write_bytes(content)
    code, _, err = cli("check-config", "--config", gates / "run.toml")
    assert (code, "TOML" in err) == (2, True)
    with pytest.raises(InvalidParameter):
        load_config(gates / "none.toml")


def test_a_training_runs_file_is_told_apart(gates: Path, cli: Cli) -> None:
    path = gates / "train.toml"
    path.write_text('[run]\nname = "digits"\n')
    code, _, err = cli("check-config", "--config", path)
    assert code == 2
    assert "`evertally train` checks" in err
    assert "stream.name" not in err


def test_mu_is_another_way_to_say_epsilon(gates: Path) -> None:
    path = change(gates, "epsilon = 1.0", "mu = 0.5")
    header = load_config(path).spec.header(1)
    assert 0.4999 < header.mu <= 0.5
    assert header.epsilon <= gaussian_epsilon(0.999e-6, 0.5) * (1 + 2e-6)


def test_a_scope_of_its_own_is_wider_than_the_stream(gates: Path) -> None:
    path = change(
        gates, "[output]", '[budget]\nscope = "city"\nepsilon_cap = 3.0\ndelta_cap = 1e-5\n\n[output]'
    )
    spec = load_config(path).spec
    assert (spec.scope.name, float(spec.scope.epsilon_cap), float(spec.scope.delta_cap)) == (
        "city",
        3.0,
        1e-5,
    )
    assert spec.header(1).mu < 0.25


def test_a_scope_may_be_one_that_training_runs_share(gates: Path) -> None:
    alone = load_config(gates / "run.toml").spec
    change(
        gates,
        "[output]",
        '[budget]\nscope = "people"\nepsilon_cap = 8.0\ndelta_cap = 1e-5\norder = 8\n\n[output]',
    )
    spec = load_config(gates / "run.toml").spec
    # word for word what a training configuration with the same caps declares: the same scope
    assert spec.scope == Scope("people", "event", "add-remove", 8, 1e-5, filter="renyi", order=8)
    assert spec.grid.sigma == pytest.approx(alone.grid.sigma, rel=0.01)
    change(gates, 'scope = "people"\nepsilon_cap = 8.0\ndelta_cap = 1e-5\n', "")
    with pytest.raises(InvalidConfig) as refused:
        load_config(gates / "run.toml")
    assert [mistake.field for mistake in refused.value.mistakes] == ["budget.scope"]


def test_against_says_what_a_change_costs(gates: Path, cli: Cli) -> None:
    path = gates / "run.toml"
    (gates / "empty.sqlite").touch()
    assert cli("check-config", "-c", path, "--against", gates / "none.sqlite")[0] == 2
    assert cli("run", "-c", path)[0] == 0
    code, out, _ = cli("check-config", "-c", path, "--against", gates / "state.sqlite")
    assert (code, "without a new charge" in out) == (0, True)
    change(gates, "tick_s = 3600", "tick_s = 1800")
    code, _, err = cli("check-config", "-c", path, "--against", gates / "state.sqlite")
    assert (code, "tick_ms" in err, "new charge" in err) == (2, True, True)
    change(gates, 'name = "gates"', 'name = "doors"')
    code, out, _ = cli("check-config", "-c", path, "--against", gates / "state.sqlite")
    assert (code, "a charge of its own" in out) == (0, True)


def test_what_a_whole_scope_cannot_pay_for_is_not_promised(gates: Path, cli: Cli) -> None:
    change(gates, "[output]", '[budget]\nscope = "city"\nepsilon_cap = 2\norder = 8\n\n[output]')
    assert cli("check-config", "-c", gates / "run.toml")[0] == 0
    code, out, err = cli("check-config", "-c", change(gates, "epsilon = 1.0", "epsilon = 3.0"))
    assert (code, "Guarantee" in out, "budget refused" in err, "spent 0 of" in err) == (3, False, True, True)


def test_against_a_scope_with_too_little_left_says_so(gates: Path, cli: Cli) -> None:
    path = change(gates, "[output]", '[budget]\nscope = "city"\nepsilon_cap = 1.0\n\n[output]')
    change(gates, "epsilon = 1.0\ndelta", "epsilon = 0.9\ndelta")
    assert cli("run", "-c", path)[0] == 0
    change(gates, 'name = "gates"', 'name = "doors"')
    assert cli("check-config", "-c", path)[0] == 0
    code, _, err = cli("check-config", "-c", path, "--against", gates / "state.sqlite")
    assert (code, "a smaller epsilon" in err) == (3, True)
    assert cli("ledger", "verify", gates / "state.sqlite")[1].startswith("1 scope, 1 charge row")


def test_a_misspelt_table_is_answered_with_its_name(gates: Path, cli: Cli) -> None:
    _, _, err = cli("check-config", "-c", change(gates, "[privacy]", "[privcy]"))
    assert "did you mean [privacy]?" in err


def test_another_commands_file_is_answered_with_the_command(gates: Path, cli: Cli) -> None:
    path = change(gates, "[output]", '[kafka]\ntopic = "visits.raw"\n\n[output]')
    code, _, err = cli("run", "-c", path)
    assert (code, "`evertally worker`" in err) == (2, True)


def test_an_order_of_one_is_outside_of_what_is_expected(gates: Path, cli: Cli) -> None:
    change(gates, "[output]", '[budget]\nscope = "city"\nepsilon_cap = 2\norder = 1\n\n[output]')
    _, _, err = cli("check-config", "-c", gates / "run.toml")
    assert "budget.order: got 1, expected a number in [1.000000954, 1024]" in err


@pytest.mark.parametrize(
    ("old", "new", "name"),
    [
        ('unit = "who"', 'unit = "amount"', "unit_field"),
        ('timezone = "Europe/Berlin"', 'timezone = "UTC"', "timezone"),
        ('timezone = "Europe/Berlin"\n', "", "timezone"),
        ('other = "south"', 'other = "north"', "other"),
        ('other = "south"\n', "", "other"),
    ],
)
def test_who_when_and_where_an_event_counts_belong_to_the_stream(
    gates: Path, old: str, new: str, name: str
) -> None:
    change(gates, 'keys = ["north", "south"]', 'keys = ["north", "south"]\nother = "south"')
    change(gates, 'key = "gate"', 'key = "gate"\nunit = "who"\ntimezone = "Europe/Berlin"')
    change(gates, "epsilon = 1.0", 'unit = "person"\nparticipations = 3\nepsilon = 1.0')
    spec = load_config(gates / "run.toml").spec
    store = open_ledger(gates / "state.sqlite")
    store.create_scope(spec.scope)
    opened = store.open_stream(spec.record(), spec.charge())
    store.close()
    assert spec.changes(opened) == ()
    change(gates, old, new)
    changed = load_config(gates / "run.toml").spec
    assert changed.changes(opened) == (name,)
    with pytest.raises(InvalidParameter, match=name):
        changed.require_same(opened)
    # an incarnation from before these were recorded goes on: what it was opened with cannot be known
    first = {key: value for key, value in opened.descriptor.items() if key not in SINCE_VERSION_2}
    older = replace(opened, descriptor={**first, "version": 1})
    assert changed.changes(older) == ()
    assert replace(changed, tick_ms=1800).changes(older) == ("tick_ms",)


def test_ticks_beyond_the_declared_horizon_need_an_extension_in_the_ledger(gates: Path, cli: Cli) -> None:
    change(gates, "epsilon = 1.0", "mu = 0.2\nslack_horizon = 6")
    change(gates, "[output]", '[budget]\nscope = "wide"\nepsilon_cap = 2.0\n\n[output]')
    assert cli("run", "-c", gates / "run.toml")[0] == 0
    change(gates, "end = 2024-01-01T06:00:00Z", "end = 2024-01-01T08:00:00Z")
    code, _, error = cli("run", "-c", gates / "run.toml", "--resume")
    assert (code, "slack_horizon" in error, "extend-horizon" in error) == (2, True, True)
    assert cli("ledger", "extend-horizon", gates / "state.sqlite", "gates", "--to", 7)[0] == 0
    assert cli("check-config", "-c", gates / "run.toml")[0] == 2
    assert cli("ledger", "extend-horizon", gates / "state.sqlite", "gates", "--to", 9)[0] == 0
    code, out, error = cli("check-config", "-c", gates / "run.toml", "--against", gates / "state.sqlite")
    assert (code, "without a new charge" in out) == (0, True), error
    assert cli("run", "-c", gates / "run.toml", "--resume")[0] == 0
    lines = (gates / "releases.jsonl").read_bytes().splitlines()
    assert len(lines) == 1 + 2 * 8
    assert cli("ledger", "publish", gates / "state.sqlite", "gates", "--to", gates / "again.jsonl")[0] == 0
    assert (gates / "again.jsonl").read_bytes().splitlines() == lines


@pytest.mark.parametrize(("name", "stderr"), [("departures-by-carrier", 20.53), ("aircraft-active", 85.88)])
def test_examples_are_valid_and_cost_what_the_docs_say(name: str, stderr: float) -> None:
    config = load_config(REPOSITORY / "examples" / f"{name}.toml")
    assert config.ticks.ticks == 8761
    from evertally.counters import parse_mechanism

    error = config.spec.grid.sigma * math.sqrt(parse_mechanism(config.spec.mechanism).noise_power(8761))
    assert abs(error - stderr) < 0.01


def test_every_key_is_in_the_reference() -> None:
    reference = (REPOSITORY / "docs" / "reference-config.md").read_text()
    sources = [
        REPOSITORY / "pipelines/evertally/pipelines" / name
        for name in ("config.py", "config_parts.py", "config_stream.py")
    ]
    asked = set()
    for source in sources:
        asked |= set(re.findall(r'\.(?:text|integer|positive|choice|raw)\(\s*"(\w+)"', source.read_text()))
    assert len(asked) > 20
    assert {key for key in asked if f"`{key}`" not in reference} == set()
