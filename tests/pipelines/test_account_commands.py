"""`evertally account` and `evertally calibrate`: numbers, JSON, pictures, refusals."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from evertally.accountants import BallsInBins, BandedSquareRoot, account, calibrate_noise_multiplier
from evertally.errors import InvalidParameter
from evertally.pipelines.cli import account as account_command
from evertally.pipelines.cli import calibrate as calibrate_command

SCHEME = ["--participation", "balls-in-bins", "--batches", "20", "--epochs", "2"]
BSR = ["--strategy", "bsr", "--bands", "2"]


def invoke(command: Callable[..., Any], *arguments: str) -> Result:
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(command)
    return CliRunner().invoke(app, list(arguments))


def test_account_prints_the_library_s_numbers() -> None:
    result = invoke(
        account_command.account, *BSR, *SCHEME, "--noise-multiplier", "3", "--delta", "1e-5", "--json"
    )
    assert result.exit_code == 0, result.output
    found = json.loads(result.output)
    expected = account(BandedSquareRoot(2), BallsInBins(20, 2), 3.0).epsilon(delta=1e-5)
    assert found["epsilon"]["value"] == expected.value
    assert found["epsilon"]["source"] == expected.source
    assert found["epsilon"]["lower"] == expected.lower
    assert set(found["bounds"]) == {"gaussian", "colour", "renyi"}


@pytest.mark.slow
def test_account_table_names_units_and_every_bound(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "epsilon.png"
    arguments = ["--noise-multiplier", "3", "--epsilon", "1", "--plot", str(picture)]
    result = invoke(account_command.account, *BSR, *SCHEME, *arguments)
    assert result.exit_code == 0, result.output
    for word in ("delta (probability)", "gaussian", "colour", "renyi", "certified lower bound"):
        assert word in result.output
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_calibrate_meets_the_target() -> None:
    result = invoke(calibrate_command.calibrate, *BSR, *SCHEME, "--epsilon", "2", "--delta", "1e-5", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.output)["noise_multiplier"]
    scheme = BallsInBins(20, 2)
    expected = calibrate_noise_multiplier(BandedSquareRoot(2), scheme, epsilon=2.0, delta=1e-5)
    assert found["value"] == expected.value
    assert account(BandedSquareRoot(2), scheme, found["value"]).delta(epsilon=2.0).value <= 1e-5


def test_participation_is_asked_for() -> None:
    without = invoke(account_command.account, *BSR, "--noise-multiplier", "3", "--delta", "1e-5")
    assert without.exit_code == 2


@pytest.mark.parametrize(
    "arguments",
    [
        ["--noise-multiplier", "3"],
        ["--noise-multiplier", "3", "--delta", "1e-5", "--epsilon", "1"],
        ["--noise-multiplier", "nan", "--delta", "1e-5"],
        ["--noise-multiplier", "3", "--delta", "1e-5", "--bounds", "clt"],
    ],
)
def test_bad_values_are_refused_by_name(arguments: list[str]) -> None:
    result = invoke(account_command.account, *BSR, *SCHEME, *arguments)
    assert isinstance(result.exception, InvalidParameter)


def test_help_states_units() -> None:
    for command in (account_command.account, calibrate_command.calibrate):
        text = " ".join(invoke(command, "--help").output.split())
        assert "natural logarithm" in text
        assert "clip norm" in text


@pytest.mark.slow
def test_conditional_composition_has_its_line_when_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figure = pytest.importorskip("matplotlib.figure")
    drawn: list[list[str]] = []
    save = figure.Figure.savefig

    def spy(self: Any, *arguments: Any, **options: Any) -> None:
        drawn.append([text.get_text() for text in self.axes[0].get_legend().get_texts()])
        save(self, *arguments, **options)

    monkeypatch.setattr(figure.Figure, "savefig", spy)
    picture = tmp_path / "cc.png"
    scheme = ["--strategy", "identity", "--participation", "balls-in-bins", "--batches", "8", "--epochs", "1"]
    arguments = ["--noise-multiplier", "1", "--delta", "1e-3", "--bounds", "cc,renyi", "--plot", str(picture)]
    result = invoke(account_command.account, *scheme, *arguments)
    assert result.exit_code == 0, result.output
    assert drawn == [["renyi", "cc", "certified lower bound"]]
