"""The face of the transforms to Beam: the YAML example as it stands, display data, pipeline options."""

# Beam has no types
# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import apache_beam as beam
import pytest
import yaml  # type: ignore[import-untyped]  # PyYAML ships no types
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.transforms.display import DisplayData
from tests.beam.direct import START_MS, TICK_MS, DirectStream
from tests.contracts.engine_conformance import Case, exact_steps

from evertally.accountants.budget.opening import open_ledger
from evertally.accountants.budget.scopes import Scope
from evertally.errors import InvalidParameter
from evertally.pipelines.beam import ContinualCount, ContinualSum, KeyRef, LedgerRef
from evertally.pipelines.beam.job import counting_of, stream_of
from evertally.pipelines.beam.options import CountOptions
from evertally.pipelines.beam.yaml_provider import CountRows, count, total
from evertally.pipelines.kafka.config import load_worker_config
from evertally.pipelines.keyfile import KeyFile
from evertally.pipelines.releases import read_releases
from evertally.pipelines.stream_spec import StreamSpec

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "deploy" / "beam" / "visits.yaml"


@pytest.mark.slow
def test_the_yaml_example_runs_as_it_stands(tmp_path: Path) -> None:
    """The two commands in its head, in an empty folder: three events are counted, one is a dead letter."""
    shutil.copy(EXAMPLE, tmp_path)
    commands = re.findall(r"^#   (python .*)$", EXAMPLE.read_text(), re.MULTILINE)
    assert len(commands) == 2
    for command in commands:
        words = command.replace("python ", f"{sys.executable} ", 1)
        done = subprocess.run(
            ["bash", "-ec", words], cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False
        )
        assert done.returncode == 0, done.stderr[-3000:]
    header, releases = read_releases(tmp_path / "releases.jsonl")
    found = list(releases)
    assert (header.stream, header.keys) == ("visits", ("north", "south"))
    assert sorted((release.key, release.t) for release in found) == [
        (key, t) for key in ("north", "south") for t in range(1, 7)
    ]
    store = open_ledger(str(tmp_path / "visits.ledger"))
    opened = store.find_stream("visits")
    store.close()
    assert opened is not None
    (config,) = [
        step["config"]
        for step in yaml.safe_load(EXAMPLE.read_text())["pipeline"]["transforms"]
        if step["type"] == "ContinualCount"
    ]
    spec = count(**config)._counted._stream.spec
    steps = exact_steps(found, spec, opened, KeyFile.open(tmp_path / "visits.key"))
    assert steps == {"north": [2, 0, 0, 0, 0, 0], "south": [0, 0, 0, 1, 0, 0]}
    assert (tmp_path / "visits.key").read_bytes()[16:48].hex() not in done.stderr + done.stdout


def test_a_yaml_configuration_is_checked_by_name(tmp_path: Path) -> None:
    KeyFile.create(tmp_path / "key")
    config = {
        "stream": "visits",
        "keys": ["a"],
        "start": "2024-01-01T00:00:00Z",
        "tick_s": 60,
        "ticks": 2,
        "epsilon": 1.0,
        "delta": 1e-6,
        "ledger": str(tmp_path / "ledger"),
        "key": str(tmp_path / "key"),
    }
    assert isinstance(count(**dict(config)), CountRows)
    assert isinstance(total("amount", **dict(config), clip=5), CountRows)
    with pytest.raises(InvalidParameter, match="ticks"):
        count(**{**config, "ticks": None})
    with pytest.raises(TypeError, match="nonsense"):
        count(**config, nonsense=1)


def test_display_data_shows_public_parameters_alone(tmp_path: Path) -> None:
    stream = DirectStream(tmp_path, Case("shown", (), ticks=3))
    items = DisplayData.create_from(stream.counted(ticks=3)).items
    shown = {item.key: item.value for item in items}
    assert shown["stream"] == stream.name
    assert shown["keys"] == 4
    assert shown["tick_s"] == TICK_MS / 1000
    assert shown["mechanism"] == "rational:W32"
    assert shown["scope"] == stream.name
    assert shown["unit"] == "event"
    assert shown["mu"] == pytest.approx(stream.spec.grid.mu)
    assert set(shown) == {"stream", "keys", "tick_s", "closing", "mechanism", "scope", "unit", "mu"}
    secret = (tmp_path / "key").read_bytes()[16:48]
    assert secret.hex() not in str(shown)


def test_transforms_have_types_and_stable_labels() -> None:
    spec = StreamSpec("s", ("a",), START_MS, TICK_MS, Scope("s", "event", "add-remove", "1", "1e-6"))
    made = ContinualCount(spec, LedgerRef("ledger"), KeyRef("key"), ticks=2)
    assert isinstance(made, ContinualSum)
    p = beam.Pipeline(options=PipelineOptions([]))
    out = p | beam.Create([{"key": "a"}]) | made
    assert out._fields == ("releases", "dead_letters")
    labels: list[str] = []

    class Visitor(beam.pipeline.PipelineVisitor):
        def enter_composite_transform(self, transform_node: beam.pipeline.AppliedPTransform) -> None:
            labels.append(transform_node.full_label)

        def visit_transform(self, transform_node: beam.pipeline.AppliedPTransform) -> None:
            labels.append(transform_node.full_label)

    p.visit(Visitor())
    assert {"ContinualCount/Check", "ContinualCount/EndTicks", "ContinualCount/Release/Close"} <= set(labels)
    with pytest.raises(InvalidParameter, match="ContinualSum"):
        ContinualCount(spec, LedgerRef("ledger"), KeyRef("key"), ticks=2, value_field="v")


def test_pipeline_options_say_what_a_job_needs(tmp_path: Path) -> None:
    from tests.beam.test_beam_secrets import CONFIG

    words = ["--evertally_config=w.toml", "--evertally_from=latest", "--evertally_key=secret:visits"]
    words += ["--evertally_buckets=7", "--evertally_metrics_listen=127.0.0.1:9", "--evertally_closings"]
    given = PipelineOptions([*words, "--runner=PrismRunner"]).view_as(CountOptions)
    assert (given.evertally_config, given.evertally_from) == ("w.toml", "latest")
    assert (given.evertally_buckets, given.evertally_closings) == (7, True)
    assert given.evertally_metrics_listen == "127.0.0.1:9"
    bare = PipelineOptions([]).view_as(CountOptions)
    assert (bare.evertally_buckets, bare.evertally_closings, bare.evertally_key) == (4, False, None)
    (tmp_path / "worker.toml").write_text(CONFIG)
    config = load_worker_config(tmp_path / "worker.toml", {"EVERTALLY_KAFKA_PASSWORD": "p"})
    inside = CountOptions(["--evertally_key=secret:visits"])
    assert stream_of(config, inside).key == KeyRef("secret:visits")
    closing = CountOptions(["--evertally_key=secret:keys", "--evertally_closings"])
    assert stream_of(config, closing).key == KeyRef(str(tmp_path / "key"))
    assert counting_of(config, given, stream_of(config, inside)).buckets == 7


def test_the_command_turns_its_options_into_beams(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.beam.test_beam_secrets import CONFIG
    from typer.testing import CliRunner

    from evertally.pipelines.cli import beam_command
    from evertally.pipelines.cli.app import app

    seen: list[list[str]] = []
    ended: list[bool] = []

    def run_job(given: list[str]) -> str:
        seen.append(given)
        return "DONE"

    monkeypatch.setattr("evertally.pipelines.beam.job.run_job", run_job)
    # it silences the whole process, which here is the suite's
    monkeypatch.setattr(beam_command, "said_all", lambda: ended.append(True))
    monkeypatch.setenv("EVERTALLY_KAFKA_PASSWORD", "p")
    (tmp_path / "worker.toml").write_text(CONFIG)
    words = [
        "beam",
        "--config",
        str(tmp_path / "worker.toml"),
        "--closings",
        "--metrics-listen",
        "127.0.0.1:9",
    ]
    done = CliRunner().invoke(app, [*words, "--from", "latest", "--", "--job_name=visits"])
    assert done.exit_code == 0, done.output
    assert {
        "--evertally_closings",
        "--evertally_metrics_listen=127.0.0.1:9",
        "--evertally_from=latest",
        "--job_name=visits",
        "--streaming",
        "--runner=PrismRunner",
    } <= set(seen[0])
    assert ended == [True]


def test_a_runner_that_is_not_there_is_refused_before_any_charge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.beam.test_beam_secrets import CONFIG

    from evertally.pipelines.beam import job

    monkeypatch.setattr(job, "prepare", lambda *_: pytest.fail("the stream is paid for"))
    monkeypatch.setenv("EVERTALLY_KAFKA_PASSWORD", "p")
    (tmp_path / "worker.toml").write_text(CONFIG)
    words = [f"--evertally_config={tmp_path / 'worker.toml'}", f"--prism_location={tmp_path / 'prism'}"]
    with pytest.raises(InvalidParameter, match="make prism"):
        job.run_job(words)
