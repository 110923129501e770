"""`evertally serve` and `evertally token`, as a user runs them; and the reference that describes them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
import typer
from typer.testing import CliRunner

from evertally.accountants.budget.service.grants import VERBS
from evertally.accountants.budget.service.problems import CODES
from evertally.errors import InvalidParameter
from evertally.pipelines.cli.serve import serve
from evertally.pipelines.cli.token import app as token_app

pytestmark = pytest.mark.slow

REFERENCE = Path(__file__).parents[2] / "docs" / "reference-http.md"


def _token(*arguments: str) -> str:
    done = CliRunner().invoke(token_app, list(arguments), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_token_is_created_listed_and_revoked(tmp_path: Path) -> None:
    ledger = str(tmp_path / "ledger.db")
    made = json.loads(
        _token("create", "--ledger", ledger, "--principal", "etl", "--grant", "scope:*=read", "--json")
    )
    assert re.fullmatch(r"evt_[0-9a-f]{16}_[\w-]{43}", made["token"])
    plain = _token(
        *("create", "--ledger", ledger, "--principal", "bi", "--grant", "stream:a*=read"),
        "--expires-days",
        "2",
    )
    assert plain.strip().splitlines()[-1].startswith("evt_")
    listed = json.loads(_token("list", "--ledger", ledger, "--json"))
    assert [entry["principal"] for entry in listed] == ["etl", "bi"]
    assert listed[1]["expires_ms"] - listed[1]["created_ms"] == 2 * 86_400_000
    assert made["token"] not in json.dumps(listed)
    assert "is revoked" in _token("revoke", made["token_id"], "--ledger", ledger)
    assert "revoked before" in _token("revoke", made["token_id"], "--ledger", ledger)
    text = _token("list", "--ledger", ledger)
    assert "revoked" in text
    assert "expires" in text
    with pytest.raises(InvalidParameter, match="token_id"):
        _token("revoke", "unknown", "--ledger", ledger)
    with pytest.raises(InvalidParameter, match="grant"):
        _token("create", "--ledger", ledger, "--principal", "x", "--grant", "scope:*=fly")


def test_a_token_that_could_not_be_printed_is_said_so(tmp_path: Path) -> None:
    """It is kept as a hash alone: who is not told makes another one, and revokes this one."""
    program = "from evertally.pipelines.cli.app import main; main()"
    words = ("token", "create", "--ledger", "ledger", "--principal", "etl", "--grant", "scope:*=read")
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-c", program, *words],
            cwd=tmp_path,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 4
    assert "standard output" in done.stderr
    assert re.search(r"[0-9a-f]{16} stands for etl", done.stderr)


def test_serve_runs_until_sigterm_and_exits_with_0(tmp_path: Path) -> None:
    ledger = str(tmp_path / "ledger.db")
    token = json.loads(
        _token("create", "--ledger", ledger, "--principal", "etl", "--grant", "scope:*=read", "--json")
    )["token"]
    program = "import typer; from evertally.pipelines.cli.serve import serve; typer.run(serve)"
    process = subprocess.Popen(
        [sys.executable, "-c", program, "--ledger", ledger, "--port", "0"], stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    with process.stderr:
        address = process.stderr.readline().split()[-1]
        answer = httpx.get(
            address + "/v1/scopes", headers={"Authorization": f"Bearer {token}"}, trust_env=False, timeout=60
        )
        assert answer.json() == []
        process.terminate()
        assert process.wait(60) == 0
        assert "everything in flight was answered" in process.stderr.read()


def test_serve_refuses_to_listen_in_the_open() -> None:
    with pytest.raises(InvalidParameter, match="host"):
        serve("ledger.db", host="0.0.0.0")


def test_reference_names_every_option_code_and_verb() -> None:
    text = REFERENCE.read_text()
    for code, (status, _) in CODES.items():
        assert f"| `{code}` | {status} |" in text
    for verbs in VERBS.values():
        assert all(verb in text for verb in verbs)
    single = typer.Typer()
    single.command()(serve)
    options = typer.main.get_command(single).params
    for option in options:
        for name in (*option.opts, *option.secondary_opts):
            if name not in ("--install-completion", "--show-completion"):
                assert f"`{name}`" in text, name
