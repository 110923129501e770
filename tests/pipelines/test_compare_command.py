"""`evertally compare`: table, JSON, figure, refusals."""

import json
import sys
from pathlib import Path

import pytest

from evertally.errors import InvalidParameter
from evertally.pipelines.cli.compare import compare


@pytest.mark.slow
def test_json_holds_every_mechanism(capsys: pytest.CaptureFixture[str]) -> None:
    compare(to="2^8", as_json=True)
    result = json.loads(capsys.readouterr().out)
    assert result["ticks"] == [2**8]
    rows = {row["key"]: row for row in result["mechanisms"]}
    assert rows["sqrt"]["ratio"] == [pytest.approx(1.0)]
    assert rows["W32"]["variance"][0] == pytest.approx(12.117, abs=0.001)
    assert rows["W32"]["unbounded"] is True
    assert rows["tree"]["unbounded"] is False
    assert rows["log-0-published"]["private"] is False
    assert rows["log-0-published"]["cost"] == []
    assert all(row["cost"][-1]["tick_ns"] > 0 for row in rows.values() if row["private"])


@pytest.mark.slow
def test_table_and_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "comparison.png"
    compare(to="64", plot=picture)
    printed = capsys.readouterr().out
    assert "rational W32, the default" in printed
    assert "t = 2^6" in printed
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.stat().st_size > 20_000


@pytest.mark.parametrize("to", ["", "2^4", "31", "2^29", "-4", "1e3", "2^2^2", "nan"])
def test_bad_last_ticks_are_refused(to: str) -> None:
    with pytest.raises(InvalidParameter, match="to:"):
        compare(to=to)


def test_missing_matplotlib_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.backends.backend_agg", None)
    with pytest.raises(InvalidParameter, match="the extra `plots`"):
        compare(to="2^5", plot=tmp_path / "x.png")


@pytest.mark.slow
def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidParameter, match="existing folder"):
        compare(to="2^5", plot=tmp_path / "nowhere" / "x.png")
