"""What the files of deploy/ promise, read from the files; `make lint-deploy` holds their form."""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]  # PyYAML ships no types
from tests.deploy.stack_client import require

from evertally.accountants.budget.service.telemetry import Telemetry
from evertally.pipelines.beam.job_metrics import JobMetrics
from evertally.pipelines.cli.app import _load
from evertally.pipelines.flink.job_health import JobHealth
from evertally.pipelines.flink.rest import FlinkRest
from evertally.pipelines.kafka.aggregation import TickRule
from evertally.pipelines.kafka.config import load_worker_config
from evertally.pipelines.kafka.worker_metrics import WorkerMetrics
from evertally.pipelines.keyfile import KeyFile
from evertally.pipelines.metrics.exposition import PUBLIC_METRICS

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
RECORDED = re.compile(r"evertally:\w+:\w+")
METRIC = re.compile(r"\bevertally_\w+")
KEY_SECRETS = {"stream-key", "ledger-chain-key", "visits.key", "chain.key", "training-key"}


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


@functools.cache
def manifests(overlay: str) -> tuple[dict[str, Any], ...]:
    folder = str(DEPLOY / "kubernetes" / "overlays" / overlay)
    cached = Path.home() / ".cache" / "evertally" / "kustomize" / "5.6.0" / "kustomize"
    words = [str(cached), "build", folder] if cached.exists() else ["kubectl", "kustomize", folder]
    if not cached.exists():
        require("kubectl")
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=True)
    return tuple(yaml.safe_load_all(done.stdout))


def of_kind(overlay: str, *kinds: str) -> list[dict[str, Any]]:
    return [item for item in manifests(overlay) if item["kind"] in kinds]


def pods(overlay: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for item in of_kind(overlay, "Deployment", "StatefulSet", "Job"):
        yield item["metadata"]["name"], item["spec"]["template"]["spec"]


@pytest.mark.parametrize("overlay", ["dev", "production"])
def test_every_pod_is_restricted(overlay: str) -> None:
    found = dict(pods(overlay))
    assert {"budget", "worker", "exporter"} <= found.keys()
    for name, pod in found.items():
        security = pod["securityContext"]
        assert (security["runAsNonRoot"], security["seccompProfile"]["type"]) == (True, "RuntimeDefault"), (
            name
        )
        assert pod["automountServiceAccountToken"] is False, name
        assert pod["enableServiceLinks"] is False, name
        for container in [*pod.get("initContainers", []), *pod["containers"]]:
            own = container["securityContext"]
            assert own["allowPrivilegeEscalation"] is False, name
            assert own["capabilities"]["drop"] == ["ALL"], name
            assert own.get("readOnlyRootFilesystem") is True or name == "kafka", name
            assert container["resources"]["limits"]["memory"], name
            if container in pod["containers"] and name != "training":  # a job that ends has no probe
                assert container["readinessProbe"], name


@pytest.mark.parametrize("overlay", ["dev", "production"])
def test_every_object_has_its_namespace(overlay: str) -> None:
    everywhere = ("Namespace", "PriorityClass")
    lost = [item["metadata"]["name"] for item in manifests(overlay) if item["kind"] not in everywhere
            and "namespace" not in item["metadata"]]  # fmt: skip
    assert lost == []


@pytest.mark.parametrize("overlay", ["dev", "production"])
def test_keys_stay_in_memory_and_with_those_who_need_them(overlay: str) -> None:
    seen: dict[str, set[str]] = {}
    for name, pod in pods(overlay):
        volumes = {volume["name"]: volume for volume in pod.get("volumes", [])}
        seen[name] = {
            source["secret"]["name"]
            for source in volumes.get("secrets", {}).get("projected", {}).get("sources", [])
        }
        if name in ("budget", "worker", "exporter", "training"):
            assert volumes["keys"]["emptyDir"]["medium"] == "Memory"
            secret_environment = [
                variable["name"]
                for container in pod["containers"]
                for variable in container.get("env", [])
                if "secretKeyRef" in variable.get("valueFrom", {})
            ]
            assert secret_environment in ([], ["EVERTALLY_KAFKA_PASSWORD"])
    assert not seen["exporter"] & KEY_SECRETS
    assert seen["exporter"] == {"ledger-reader", "internal-token"}
    assert "stream-key" in seen["worker"]
    assert "stream-key" not in seen["budget"]


@pytest.mark.parametrize("overlay", ["dev", "production"])
def test_the_network_is_closed_by_default(overlay: str) -> None:
    policies = [
        policy
        for policy in of_kind(overlay, "NetworkPolicy")
        if policy["metadata"]["namespace"] == "evertally"
    ]
    deny = next(policy["spec"] for policy in policies if policy["metadata"]["name"] == "default-deny")
    assert deny == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    for policy in policies:
        for rule in [*policy["spec"].get("ingress", []), *policy["spec"].get("egress", [])]:
            assert rule.get("ports"), policy["metadata"]["name"]
            assert rule.get("from") or rule.get("to"), policy["metadata"]["name"]


def test_production_survives_a_drain_and_trains_on_a_gpu() -> None:
    budgets = {
        item["metadata"]["name"]: item["spec"] for item in of_kind("production", "PodDisruptionBudget")
    }
    assert budgets["budget"]["minAvailable"] == budgets["worker"]["maxUnavailable"] == 1
    replicas = {item["metadata"]["name"]: item["spec"].get("replicas") for item in manifests("production")
                if item["kind"] in ("Deployment", "StatefulSet")}  # fmt: skip
    assert replicas == {"budget": 2, "worker": 3, "exporter": 1}
    training = dict(pods("production"))["training"]
    assert training["nodeSelector"] == {"nvidia.com/gpu.present": "true"}
    assert training["tolerations"][0]["key"] == "nvidia.com/gpu"
    assert training["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "1"


def commands() -> Iterator[tuple[str, list[str]]]:
    """Every call of evertally in the manifests and the compose file."""
    for overlay in ("dev", "production"):
        for name, pod in pods(overlay):
            for container in pod["containers"]:
                if container["image"].startswith("evertally/"):
                    yield f"{overlay} {name}", container["args"]
    for name, service in load(DEPLOY / "compose" / "compose.yaml")["services"].items():
        if str(service.get("image", "")).startswith("evertally/"):
            yield f"compose {name}", service["command"]
    for path in (DEPLOY / "systemd").glob("*.service"):
        line = re.search(r"^ExecStart=/opt/evertally/bin/evertally (.*)$", path.read_text(), re.MULTILINE)
        assert line is not None
        yield path.name, line[1].split()


def test_every_command_and_option_exists() -> None:
    found = list(commands())
    assert len(found) >= 12
    for where, words in found:
        command = _load(words[0])
        rest = words[1:]
        while hasattr(command, "commands") and rest and rest[0] in command.commands:
            command, rest = command.commands[rest[0]], rest[1:]
        known = {
            option for parameter in command.params for option in parameter.opts + parameter.secondary_opts
        }
        for word in rest:
            if word.startswith("--"):
                assert word in known, f"{where}: {word}"


@pytest.mark.parametrize(
    "path",
    ["compose/worker.toml", "kubernetes/base/worker.toml", "kubernetes/overlays/production/worker.toml"],
)
def test_the_declared_streams_are_valid(path: str) -> None:
    config = load_worker_config(DEPLOY / path, {"EVERTALLY_KAFKA_PASSWORD": "x"})
    assert config.spec.name == "visits"
    assert config.metrics is not None
    assert config.metrics.token_file == Path("/keys/internal-token")


def test_who_drains_is_given_the_time_for_it() -> None:
    """They drain for 30 s at most; a container engine kills after 10 where nothing else is said."""
    services = load(DEPLOY / "compose" / "compose.yaml")["services"]
    for name in ("budget", "worker"):
        assert int(services[name]["stop_grace_period"].removesuffix("s")) > 30, name
        pod = next(spec for of, spec in pods("production") if of == name)
        assert pod["terminationGracePeriodSeconds"] > 30, name
        (unit,) = (DEPLOY / "systemd").glob(f"evertally-{name}*.service")
        assert int(re.findall(r"^TimeoutStopSec=(\d+)$", unit.read_text(), re.MULTILINE)[0]) > 30, name


def test_a_login_stays_with_the_service_that_knows_it() -> None:
    replicas = {
        item["metadata"]["name"]: item["spec"]["replicas"] for item in of_kind("production", "Deployment")
    }
    services = {item["metadata"]["name"]: item["spec"] for item in of_kind("production", "Service")}
    assert replicas["budget"] == 1 or services["budget"]["sessionAffinity"] == "ClientIP"


def test_the_exporter_of_the_compose_file_has_no_key() -> None:
    board = load(DEPLOY / "compose" / "compose.yaml")
    services = board["services"]
    assert set(services["exporter"]["secrets"]) == {"pgpass-exporter", "internal-token"}
    assert "visits.key" not in services["budget"]["secrets"]
    for name, service in services.items():
        assert service["cap_drop"] == ["ALL"], name
        assert service["read_only"] is True or name == "kafka", name
        assert service["user"] not in ("0", "0:0", "root"), name
        for port in service.get("ports", []):
            assert port.startswith("127.0.0.1:"), name


def known_metrics() -> set[str]:
    from evertally.pipelines.metrics import Listen
    from evertally.pipelines.metrics.exporter import Exporter, ExporterSettings

    exporter = Exporter("nowhere", ExporterSettings(Listen("127.0.0.1", 0), Listen("127.0.0.1", 0)))
    flink = JobHealth("s", "j", FlinkRest("127.0.0.1:1")).operators.registry
    rule, here = TickRule(0, 1000), Listen("127.0.0.1", 0)
    with JobMetrics("s", rule, here) as metrics:
        beam = metrics.operators.registry
    worker = WorkerMetrics("s").operators.registry
    registries = (worker, beam, flink, exporter._metrics.registry, Telemetry().registry)
    names = {f"evertally_{name}" for name in PUBLIC_METRICS}
    for registry in registries:
        for family in registry.collect():
            suffixes = {"counter": ("_total",), "histogram": ("_sum", "_count", "_bucket")}.get(
                family.type, ("",)
            )
            names |= {family.name + suffix for suffix in suffixes}
    # gauges that a running worker adds
    return names | {"evertally_worker_clock_trusted", "evertally_worker_stage_silent_seconds"}


def rules() -> list[dict[str, Any]]:
    files = (DEPLOY / "prometheus" / "rules").glob("*.yml")
    return [rule for path in files for group in load(path)["groups"] for rule in group["rules"]]


def queries(name: str) -> list[str]:
    board = json.loads((DEPLOY / "grafana" / "dashboards" / name).read_text())
    return [target["expr"] for panel in board["panels"] for target in panel.get("targets", [])]


@pytest.mark.slow
def test_rules_and_dashboards_ask_for_metrics_that_exist() -> None:
    known = known_metrics()
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    for expression in [
        *(rule["expr"] for rule in rules()),
        *queries("releases.json"),
        *queries("operators.json"),
    ]:
        assert set(METRIC.findall(expression)) <= known, expression
        assert set(RECORDED.findall(expression)) <= recorded, expression


def test_the_public_dashboard_shows_the_public_plane_alone() -> None:
    public = {f"evertally_{name}" for name in PUBLIC_METRICS}
    recorded = {rule["record"]: set(METRIC.findall(rule["expr"])) for rule in rules() if "record" in rule}
    for expression in queries("releases.json"):
        asked = set(METRIC.findall(expression))
        for name in RECORDED.findall(expression):
            asked |= recorded[name]
        assert asked, expression
        assert asked <= public, expression


def test_nothing_takes_the_rate_of_a_noisy_total() -> None:
    expressions = [*(rule["expr"] for rule in rules()), *queries("releases.json"), *queries("operators.json")]
    for expression in expressions:
        for call in re.findall(r"\b(rate|irate|increase|resets)\(([^)]*)\)", expression):
            assert call[0] == "increase", expression
            assert "_total" in call[1] or "_seconds_" in call[1], expression
    asked = " ".join(queries("releases.json"))
    for wanted in ("delta(", "deriv(", "upper95", "lower95", "release_age", "budget_spent", "window_events"):
        assert wanted in asked


def test_the_dashboards_are_what_the_script_writes(tmp_path: Path) -> None:
    script = DEPLOY / "grafana" / "generate.py"
    subprocess.run([sys.executable, str(script), str(tmp_path)], check=True, capture_output=True, timeout=120)
    for path in (DEPLOY / "grafana" / "dashboards").iterdir():
        assert (tmp_path / path.name).read_text() == path.read_text(), path.name


def test_every_alert_has_its_section_in_the_operations_page() -> None:
    page = (ROOT / "docs" / "operations.md").read_text()
    alerts = [rule for rule in rules() if "alert" in rule]
    assert len(alerts) == 15
    for rule in alerts:
        assert f"\n### {rule['alert']}\n" in page
        assert rule["annotations"]["runbook"] == f"docs/operations.md#{rule['alert'].lower()}"
        assert rule["labels"]["severity"] in ("warning", "critical")


def test_every_alert_has_a_unit_test() -> None:
    tested = (DEPLOY / "prometheus" / "tests" / "alerts_test.yml").read_text()
    for rule in rules():
        if "alert" in rule:
            assert re.search(rf"alertname: {rule['alert']}\n\s+exp_alerts:\n", tested), rule["alert"]


def pinned(path: Path) -> dict[str, str]:
    return dict(re.findall(r"^([A-Za-z0-9_.\[\]-]+)==([^ ;\\]+)", path.read_text(), re.MULTILINE))


@pytest.mark.parametrize(("lock", "tested"), [("service", "dev"), ("training", "train")])
def test_images_install_what_is_tested(lock: str, tested: str) -> None:
    text = (DEPLOY / "images" / f"requirements-{lock}.lock").read_text()
    assert "://" not in text
    assert text.count("--hash=sha256:") > text.count("==")
    ours, theirs = (
        pinned(DEPLOY / "images" / f"requirements-{lock}.lock"),
        pinned(ROOT / f"requirements-{tested}.lock"),
    )
    assert {"psycopg", "kafka-python", "prometheus-client", "hatchling"} <= ours.keys()
    assert {name: version for name, version in ours.items() if theirs.get(name) != version} == {}


@pytest.mark.parametrize(
    "name", ["images/service.Dockerfile", "images/training.Dockerfile", "beam/Dockerfile"]
)
def test_dockerfiles_copy_what_is_there_and_end_without_root(name: str) -> None:
    text = (DEPLOY / name).read_text()
    for line in re.findall(r"^COPY ((?!--).*)$", text, re.MULTILINE):
        for source in line.split()[:-1]:
            assert (ROOT / source).exists(), source
    final = text.rpartition("\nFROM ")[2]
    assert re.search(r"^USER (65532:65532|10001)$", final, re.MULTILINE)
    if name != "beam/Dockerfile":  # Beam's own entry point stays
        assert final.rstrip().splitlines()[-2].startswith("ENTRYPOINT")
    ignored = (DEPLOY / f"{name}.dockerignore").read_text().splitlines()
    assert {"*", "**/*.key", "**/*.ledger"} <= set(ignored)


def test_every_foreign_image_has_an_exact_tag() -> None:
    """Which digest a tag has only a registry can say; deploy/README.md tells how to pin it."""
    files = [*DEPLOY.glob("images/*.Dockerfile"), DEPLOY / "beam" / "Dockerfile"]
    named = re.findall(r"^ARG \w*BASE=(\S+)$", "\n".join(path.read_text() for path in files), re.MULTILINE)
    for path in [DEPLOY / "compose" / "compose.yaml", *DEPLOY.glob("kubernetes/**/*.yaml")]:
        named += re.findall(r"^\s*image: (\S+)$", path.read_text(), re.MULTILINE)
    foreign = [image for image in named if not image.startswith("evertally/")]
    assert len(foreign) > 8
    for image in foreign:
        tag = image.rpartition(":")[2]
        assert re.search(r"\d", tag) or image.startswith("gcr.io/distroless/python3-debian12:"), image


STAGE = DEPLOY / "images" / "stage_keys.py"


def stage(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-I", str(STAGE), *map(str, words)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_staged_keys_are_their_owners_alone(tmp_path: Path) -> None:
    mounted, keys = tmp_path / "mounted", tmp_path / "keys"
    (mounted / "..data").mkdir(parents=True)
    keys.mkdir()
    KeyFile.create(mounted / "visits.key")
    (mounted / "visits.key").chmod(0o444)
    (keys / "made-here").write_text("stays")
    assert stage(mounted, keys).returncode == 0
    assert (keys / "visits.key").stat().st_mode & 0o777 == 0o600
    KeyFile.open(keys / "visits.key")
    before = (keys / "visits.key").stat().st_ino
    assert stage(mounted, keys).returncode == 0
    assert (keys / "visits.key").stat().st_ino == before  # what did not change is left alone
    assert sorted(path.name for path in keys.iterdir()) == ["made-here", "visits.key"]
    shown = stage(mounted, keys, "--", sys.executable, "-c", "print('went on')")
    assert (shown.returncode, shown.stdout) == (0, "went on\n")
    assert stage(mounted).returncode != 0


@pytest.mark.slow
def test_the_secrets_of_the_compose_file_are_made_once(tmp_path: Path) -> None:
    script = DEPLOY / "compose" / "make_secrets.py"
    made = subprocess.run(
        [sys.executable, str(script), str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert made.returncode == 0, made.stderr
    wanted = {
        Path(entry["file"]).name for entry in load(DEPLOY / "compose" / "compose.yaml")["secrets"].values()
    }
    assert {path.name for path in (tmp_path / "secrets").iterdir()} == wanted
    for path in [*(tmp_path / "secrets").iterdir(), *(tmp_path / "prometheus-secrets").iterdir()]:
        assert path.stat().st_mode & 0o077 == 0
    KeyFile.open(tmp_path / "secrets" / "visits.key") if os.getuid() == 0 else None
    again = subprocess.run([sys.executable, str(script), str(tmp_path)], capture_output=True, check=False)
    assert again.returncode != 0
