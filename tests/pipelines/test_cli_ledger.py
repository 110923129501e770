from __future__ import annotations

import json
from pathlib import Path

import apsw
import pytest
from typer.testing import CliRunner

from evertally.accountants.budget import (
    STATEMENT,
    ChargeRequest,
    CounterLine,
    CounterParameters,
    GaussianLine,
    ReleaseRow,
    Scope,
    StreamRecord,
    open_ledger,
)
from evertally.errors import EvertallyError, InvalidParameter
from evertally.pipelines.cli.ledger import app
from evertally.pipelines.cli.token import app as token_app

CANARY = b"917263544512"


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    path = tmp_path / "state.sqlite"
    store = open_ledger(path)
    store.create_scope(Scope("flights", "event", "add-remove", "4", "1e-6"))
    charge = ChargeRequest("flights", "event", "add-remove", GaussianLine(1, 10))
    stream = store.open_stream(StreamRecord("departures", ("AA", "UA"), 1, {"tick_s": 3600}), charge)
    shard = stream.shard(0)
    epoch = store.acquire(shard, "test")
    rows = [ReleaseRow(k, t, 10 * t + k, "20.5", 1000 * t) for t in (1, 2, 3) for k in (0, 1)]
    store.commit_ticks(shard, epoch, 1, rows, 3, CANARY)
    store.mark_published(shard, epoch, 2, 0)
    store.close()
    return path


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(arguments))
    if isinstance(result.exception, EvertallyError):  # the root of the command line prints it
        return result.exception.exit_code, str(result.exception)
    return result.exit_code, result.output


def test_verify_says_what_it_walked(ledger: Path) -> None:
    code, output = run("verify", str(ledger))
    assert code == 0
    assert "1 scope, 1 charge row, 1 shard, 6 released rows" in output
    assert "the ledger is whole" in output
    code, output = run("verify", str(ledger), "--json")
    assert json.loads(output) == {
        "ok": True,
        "scopes": 1,
        "charge_rows": 1,
        "shards": 1,
        "released_rows": 6,
        "problems": [],
    }


def test_verify_fails_with_four_on_an_altered_row(ledger: Path) -> None:
    raw = apsw.Connection(str(ledger))
    raw.execute("DROP TRIGGER row_fixed")
    raw.execute("UPDATE released SET value = '11' WHERE t = 2 AND key_index = 0")
    raw.close()
    code, output = run("verify", str(ledger))
    assert code == 4
    assert "the rows of tick 2 were altered" in output


def test_show_prints_spend_and_progress_with_the_statement(ledger: Path) -> None:
    code, output = run("show", str(ledger))
    assert code == 0
    assert "spent 10000000 of" in output
    assert "shard 0: tick 3, published to 2" in output
    assert STATEMENT in output
    code, output = run("show", str(ledger), "--json")
    shown = json.loads(output)
    assert shown["streams"][0]["shards"][0]["t"] == 3
    assert shown["scopes"][0]["spent"] == 10_000_000


def test_sealed_states_are_never_shown(ledger: Path) -> None:
    for command in (("show",), ("show", "--json"), ("verify",), ("verify", "--json")):
        _, output = run(command[0], str(ledger), *command[1:])
        assert CANARY.decode() not in output
        assert CANARY.hex() not in output


@pytest.mark.parametrize("command", [("list",), ("revoke", "t-1")])
def test_only_a_new_token_makes_a_ledger(tmp_path: Path, command: tuple[str, ...]) -> None:
    result = CliRunner().invoke(token_app, [*command, "--ledger", str(tmp_path / "nothing.sqlite")])
    assert isinstance(result.exception, InvalidParameter)
    assert list(tmp_path.iterdir()) == []


def test_no_group_of_commands_offers_completion() -> None:
    for group in (app, token_app):
        assert "completion" not in CliRunner().invoke(group, ["--help"]).output


@pytest.mark.parametrize(("location", "code"), [("nothing.sqlite", 2), ("no/such/folder.sqlite", 2)])
def test_missing_ledgers_are_bad_input(tmp_path: Path, location: str, code: int) -> None:
    for command in ("show", "verify"):
        assert run(command, str(tmp_path / location))[0] == code
    assert list(tmp_path.iterdir()) == []


def test_missing_chain_key_is_an_integrity_failure(ledger: Path) -> None:
    ledger.with_name("state.sqlite.chainkey").unlink()
    assert run("verify", str(ledger))[0] == 4


def test_unreachable_server_is_unavailable(tmp_path: Path, ledger: Path) -> None:
    key = str(ledger.with_name("state.sqlite.chainkey"))
    code, output = run("show", f"postgresql://u@/d?host={tmp_path}", "--key-file", key)
    assert code == 5, output


@pytest.fixture
def counter(tmp_path: Path) -> Path:
    """A ledger with a counter that has paid for four ticks."""
    path = tmp_path / "counter.sqlite"
    store = open_ledger(path)
    store.create_scope(Scope("flights", "event", "add-remove", "4", "1e-6"))
    parameters = CounterParameters("rational:W32", q=2**24, keys=2, slack_horizon=4)
    charge = ChargeRequest("flights", "event", "add-remove", CounterLine(parameters))
    store.open_stream(StreamRecord("departures", ("AA", "UA"), 1, {"tick_s": 3600}), charge)
    store.close()
    return path


def test_extend_horizon_quotes_then_pays_and_a_repeat_is_free(counter: Path) -> None:
    command = ("extend-horizon", str(counter), "departures", "--to", str(2**30))
    before = run("show", str(counter), "--json")[1]
    code, output = run(*command, "--dry-run", "--json")
    assert code == 0, output
    quoted = json.loads(output)
    assert (quoted["charged"], quoted["horizon_before"], quoted["horizon"]) == (False, 4, 2**30)
    assert run("show", str(counter), "--json")[1] == before
    assert "would charge" in run(*command, "--dry-run")[1]
    paid = json.loads(run(*command, "--json")[1])
    assert paid["main"] == quoted["main"] > 0
    assert paid["remaining"] == quoted["remaining"] - paid["main"]
    assert "charged 0 nano-mu2" in run(*command)[1]
    assert f"paid up to tick {2**30}" in run("show", str(counter))[1]
    assert run("verify", str(counter))[0] == 0


def test_extend_horizon_exits_by_what_is_wrong(counter: Path, ledger: Path) -> None:
    short = ("extend-horizon", str(counter), "departures", "--to")
    assert run(*short, "3")[0] == 2
    assert run("extend-horizon", str(counter), "arrivals", "--to", "9")[0] == 2
    code, output = run("extend-horizon", str(ledger), "departures", "--to", "9")  # a Gaussian line
    assert code != 0
    assert "only a counter" in output
    store = open_ledger(counter)
    left = f"{(store.scope_status('flights').remaining - 100) / 1e9:.9f}"
    rest = GaussianLine(1, f"{float(left) ** -0.5:.17g}")
    store.charge(ChargeRequest("flights", "event", "add-remove", rest))
    store.close()
    assert run(*short, str(2**40))[0] == 3
