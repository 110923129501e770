"""What a worker tells its operators."""

from __future__ import annotations

from pathlib import Path

from tests.metrics.metrics_ledgers import samples

from evertally.pipelines.kafka.worker_metrics import WorkerMetrics

ROOT = Path(__file__).resolve().parents[2]


def test_a_worker_counts_what_it_reads_and_refuses() -> None:
    metrics = WorkerMetrics("visits")
    metrics.read(10, ["malformed", "key_missing", "malformed"])
    metrics.read(5, [])
    metrics.commit_failed("aggregate")
    metrics.lag("aggregate", None)
    metrics.lag("aggregate", 7)
    metrics.released(1, 12, 11)
    found = samples(metrics.operators.text().decode())
    assert found['evertally_worker_events_read_total{stream="visits"}'] == 15
    assert found['evertally_worker_dead_letters_total{code="malformed",stream="visits"}'] == 2
    assert found['evertally_worker_commit_failures_total{stage="aggregate",stream="visits"}'] == 1
    assert found['evertally_worker_lag_records{stage="aggregate",stream="visits"}'] == 7
    assert found['evertally_worker_ledger_tick{shard="1",stream="visits"}'] == 12
    assert found['evertally_worker_topic_tick{shard="1",stream="visits"}'] == 11


def test_every_metric_of_the_worker_is_in_the_reference() -> None:
    page = (ROOT / "docs" / "reference-metrics.md").read_text()
    names = {family.name for family in WorkerMetrics("s").operators.registry.collect()}
    own = {name for name in names if name.startswith("evertally_worker_")}
    assert len(own) >= 6
    for name in own:
        assert name in page
