"""The image's program against real Kafka, PostgreSQL, Prometheus and Alertmanager: events in, alerts out.

The tests run in their order over one stack: the last ones stop parts of it.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import signal
import subprocess
import time
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.deploy.stack_client import RunningStack, wait_for
from tests.faults.canary_search import files, leaks, processes

pytestmark = [
    pytest.mark.prometheus,
    pytest.mark.kafka,
    pytest.mark.postgres,
    pytest.mark.slow,
    pytest.mark.timeout(900),
]
ROOT = Path(__file__).resolve().parents[2]
DASHBOARDS = ROOT / "deploy" / "grafana" / "dashboards"
CANARIES = (314_159_265_359, 271_828_182_849, 141_421_356_237, 577_215_664_903)
CLIP = 100_000_000
MASKED = 662_607_015_897  # in a record that is malformed
CHOICES = {"stream": "visits", "key": ".*", "window": "10s"}


def test_events_in_releases_out(stack: RunningStack) -> None:
    """Each canary is the exact sum of a burst of events; all of it reaches Prometheus as a noisy total."""
    for canary in CANARIES:
        whole, rest = divmod(canary, CLIP)
        stack.send({"k": "north", "v": value} for value in [*[CLIP] * whole, rest])
        time.sleep(2.1)  # two ticks, in which the running total stands still
    stack.send([b"{", json.dumps({"k": "north", "v": f"x{MASKED}"}).encode(), b"\xff\xfe"])
    events = sum(canary // CLIP + 1 for canary in CANARIES) + 3
    wait_for("reads", lambda: stack.value("sum(evertally_worker_events_read_total)") == events)
    tick = max(12.0, stack.value('evertally_release_index{stream="visits"}') or 0.0)
    wait_for("ticks", lambda: (stack.value('evertally_release_index{stream="visits"}') or 0) > tick + 2)
    keys = {sample["metric"]["key"] for sample in stack.query("evertally_released_events")}
    assert keys == {"north", "south", "other"}
    total = stack.value('evertally_released_events{key="north"}')
    error = stack.value('evertally_released_events_stderr{key="north"}')
    assert total is not None
    assert error is not None
    assert 0 < abs(total - sum(CANARIES)) < 8 * error


def spend(stack: RunningStack, program: Path, share: float) -> None:
    """A charge over HTTP that brings the scope to a share of its cap."""
    database, chain = stack.addresses["postgres"], str(Path(stack.folder) / "chain.key")
    made = subprocess.run(
        [str(program), "token", "create", "--ledger", database, "--key-file", chain,
         "--principal", "tester", "--grant", "scope:*=read,reserve,commit"],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    token = re.search(r"evt_\S+", made.stdout)
    assert token is not None
    headers = {"Authorization": f"Bearer {token[0]}"}
    with httpx.Client(
        base_url=stack.addresses["budget"], headers=headers, trust_env=False, timeout=60
    ) as client:
        status = client.get("/v1/scopes/city").raise_for_status().json()
        cap, spent = int(status["cap"]["main"]), int(status["spent"]["main"])
        sigma = math.sqrt(1e9 / (share * cap - spent))
        line = {"kind": "gaussian", "sensitivity": "1", "sigma": f"{sigma:.6f}"}
        body = {"scope": "city", "unit": "event", "adjacency": "add-remove", "line": line, "mode": "commit"}
        client.post("/v1/charges", json=body).raise_for_status()


def test_a_budget_above_80_percent_reaches_alertmanager(stack: RunningStack, image_program: Path) -> None:
    assert stack.firing("EvertallyBudgetNearlySpent") is None
    spend(stack, image_program, 0.88)
    labels = wait_for("the alert", lambda: stack.firing("EvertallyBudgetNearlySpent"))
    assert (labels["scope"], labels["severity"]) == ("city", "warning")
    ratio = stack.value('evertally_budget_spent_ratio{scope="city"}')
    assert ratio == pytest.approx(0.88, abs=0.002)


def panels(name: str) -> list[dict[str, Any]]:
    board = json.loads((DASHBOARDS / name).read_text())
    inside = [inner for panel in board["panels"] for inner in panel.get("panels", [])]
    return [panel for panel in [*board["panels"], *inside] if panel["type"] != "row"]


def filled(expression: str) -> str:
    for name, value in CHOICES.items():
        expression = expression.replace(f"${name}", value)
    assert "$" not in expression
    return expression


def shows_a_number(stack: RunningStack, expression: str) -> bool:
    """A rate that nothing moved is 0/0 for a while."""
    return any(math.isfinite(float(sample["value"][1])) for sample in stack.query(expression))


def test_no_panel_of_the_dashboards_is_empty(stack: RunningStack) -> None:
    found = [(panel["title"], target["expr"]) for name in ("releases.json", "operators.json")
             for panel in panels(name) for target in panel["targets"]]  # fmt: skip
    assert len(found) > 20
    for title, expression in found:
        wait_for(title, partial(shows_a_number, stack, filled(expression)), 60)


def test_the_choices_of_the_dashboards_are_filled(stack: RunningStack) -> None:
    board = json.loads((DASHBOARDS / "releases.json").read_text())
    asked = [variable for variable in board["templating"]["list"] if variable["type"] == "query"]
    assert {variable["name"] for variable in asked} == set(CHOICES)
    for variable in asked:
        call = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"])
        assert call is not None
        answer = stack.get(
            "prometheus", f"/api/v1/label/{call[2]}/values", params={"match[]": filled(call[1])}
        )
        assert answer.json()["data"]


def test_every_target_is_up_and_the_rules_are_healthy(stack: RunningStack) -> None:
    def targets() -> list[dict[str, Any]]:
        active: list[dict[str, Any]] = stack.get("prometheus", "/api/v1/targets").json()["data"][
            "activeTargets"
        ]
        return active

    def rules() -> list[dict[str, Any]]:
        groups = stack.get("prometheus", "/api/v1/rules").json()["data"]["groups"]
        return [rule for group in groups for rule in group["rules"]]

    assert {target["labels"]["job"] for target in targets()} == {
        "evertally-public", "evertally-internal", "evertally-budget"}  # fmt: skip
    # a scrape may take a second here, and on a busy machine one takes longer
    wait_for("every target is up", lambda: all(target["health"] == "up" for target in targets()))
    assert len(rules()) >= 19
    wait_for("every rule is healthy", lambda: all(rule["health"] == "ok" for rule in rules()))
    assert stack.get("internal", "/internal/metrics").status_code == 401
    assert stack.get("worker", "/internal/metrics").status_code == 401


def test_exact_sums_and_keys_show_nowhere(stack: RunningStack) -> None:
    """The canaries, their running totals, a refused payload and every key, in all that the programs leave."""
    folder = Path(stack.folder)
    secrets: dict[str, int | bytes | str] = {f"canary {n}": canary for n, canary in enumerate(CANARIES)}
    secrets |= {f"total {n}": sum(CANARIES[: n + 1]) for n in range(len(CANARIES))}
    secrets |= {"noise key": (folder / "visits.key").read_bytes()[16:48]}
    secrets |= {"chain key": (folder / "chain.key").read_bytes()}
    headers = {"Authorization": f"Bearer {stack.token()}"}
    texts = dict(stack.logs())
    for plane, path in (("public", "/metrics"), ("public", "/"), ("internal", "/internal/metrics"),
                        ("worker", "/internal/metrics"), ("health", "/healthz"), ("health", "/readyz"),
                        ("budget", "/"), ("budget", "/metrics"), ("budget", "/openapi.json"),
                        ("public", "/nothing")):  # fmt: skip
        texts[plane + path] = stack.get(plane, path, headers=headers).text
    texts["every series"] = json.dumps(stack.query('{__name__=~"evertally.*"}'))
    places = [(name, text.encode()) for name, text in texts.items()]
    for topic in ("releases", "dead-letters", "closed"):
        records = read_topic(stack.addresses["kafka"], f"visits.{topic}")
        assert records, topic
        assert topic != "dead-letters" or len(records) == 3
        places += [(topic, record) for record in records]
    assert "counting partition" in texts["worker.log"]
    places += processes(*stack.processes.values())
    assert leaks({**secrets, "refused": MASKED}, places) == []
    # the database, the brokers' logs, the series' store; what was sent stands in one of them
    stored = list(files(folder, besides=["visits.key", "chain.key"]))
    assert any("pg_wal" in place for place, _ in stored)
    assert leaks(secrets, stored) == []


def read_topic(servers: str, topic: str) -> list[bytes]:
    from kafka import KafkaConsumer, TopicPartition

    reader = KafkaConsumer(bootstrap_servers=servers, enable_auto_commit=False, metrics_enabled=False)
    places = [TopicPartition(topic, number) for number in sorted(reader.partitions_for_topic(topic) or ())]
    reader.assign(places)
    ends = reader.end_offsets(places)
    reader.seek_to_beginning(*places)
    found: list[bytes] = []
    deadline = time.monotonic() + 60
    while any(reader.position(place) < ends[place] for place in places) and time.monotonic() < deadline:
        for records in reader.poll(timeout_ms=500).values():
            found += [(record.key or b"") + b" " + (record.value or b"") for record in records]
    reader.close(autocommit=False)
    return found


def test_a_worker_that_stops_is_noticed(stack: RunningStack) -> None:
    """Its releases grow stale; the exporter goes on showing what was released."""
    os.kill(stack.processes["worker"], signal.SIGTERM)
    labels = wait_for("the alert", lambda: stack.firing("EvertallyReleaseStale"))
    assert (labels["stream"], labels["severity"]) == ("visits", "critical")
    assert stack.get("public", "/healthz").status_code == 200
    assert stack.query("evertally_released_events")


def test_ctrl_c_stops_everything_and_leaves_nothing(stack: RunningStack) -> None:
    stack.process.send_signal(signal.SIGINT)
    assert stack.process.wait(180) == 0
    assert not Path(stack.folder).exists()
    for name, pid in stack.processes.items():
        with contextlib.suppress(ProcessLookupError, FileNotFoundError):
            os.kill(pid, 0)
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
            assert state == "Z", name
