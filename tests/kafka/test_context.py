"""What a worker opens before it counts: the stream, and the one key file it was begun with. No broker."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from evertally.accountants.budget.opening import open_ledger
from evertally.errors import IntegrityError, InvalidParameter
from evertally.pipelines.cli.check_config import check_config
from evertally.pipelines.closings import ClosingBlock
from evertally.pipelines.kafka.config import WorkerConfig, load_worker_config
from evertally.pipelines.kafka.context import StreamContext, open_new_incarnation
from evertally.pipelines.kafka.topics import Partitions
from evertally.pipelines.keyfile import KeyFile
from evertally.pipelines.releaser import Releaser

WORKER = """
[stream]
name = "visits"
keys = ["north", "south"]
start = "2026-01-01T00:00:00Z"
tick_s = 10
shards = 2
[source]
key = "region"
[privacy]
mu = 0.5
delta = 1e-6
[budget]
scope = "all"
epsilon_cap = 8.0
[state]
path = "ledger"
key_file = "key"
[kafka]
bootstrap_servers = "kafka:9092"
topic = "raw"
"""


@pytest.fixture
def config(tmp_path: Path) -> WorkerConfig:
    path = tmp_path / "worker.toml"
    path.write_text(WORKER)
    return load_worker_config(path, {})


def begin(config: WorkerConfig) -> StreamContext:
    return StreamContext.open(config, Partitions(1, 0), begun=False, may_begin=True)


@pytest.mark.slow
def test_a_stream_that_has_begun_gets_no_new_key_file(config: WorkerConfig) -> None:
    """Pieces sealed under it would stand on the topics for ever, and no releaser could open them."""
    begin(config).store.close()
    config.key_file.unlink()
    with pytest.raises(InvalidParameter, match="key_file"):
        begin(config)
    assert not config.key_file.exists()
    assert open_new_incarnation(config) == 2, "the way on without the old key: other totals, another charge"
    again = begin(config)
    assert again.opened.incarnation == 2
    again.store.close()


@pytest.mark.slow
def test_another_key_file_is_refused_before_anything_is_counted(config: WorkerConfig) -> None:
    context = begin(config)
    releaser = Releaser.open(context.store, config.spec, context.key_file, holder="test", shard=1)
    sums = np.array([[3]], dtype=object)
    releaser.release(ClosingBlock("visits", releaser.keys, 1, sums, b"", (10_000,)))
    context.store.close()
    config.key_file.unlink()
    KeyFile.create(config.key_file)
    with pytest.raises(IntegrityError, match="another key file"):
        begin(config)


@pytest.mark.slow
def test_a_key_file_that_others_can_read_is_refused_before_the_charge(config: WorkerConfig) -> None:
    KeyFile.create(config.key_file)
    config.key_file.chmod(0o644)
    with pytest.raises(InvalidParameter, match="0644"):
        begin(config)
    ledger = open_ledger(config.ledger)
    assert ledger.find_stream("visits") is None
    ledger.close()


@pytest.mark.slow
def test_the_longest_name_can_be_paid_for(tmp_path: Path) -> None:
    """`check-config` admits it; the names of its charges, which are made of it, have a limit of their own."""
    path = tmp_path / "worker.toml"
    select = "[select]\nslots = 2\nthreshold = 3000\nmu = 0.2\n[privacy]"
    path.write_text(WORKER.replace("visits", "v" * 128).replace("[privacy]", select))
    for rows in (2, 2):  # stream and selection, once
        context = begin(load_worker_config(path, {}))
        assert context.store.scope_status("all").rows == rows
        context.store.close()


@pytest.mark.slow
def test_check_config_finds_a_chain_key_that_lies_elsewhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "worker.toml"
    path.write_text(WORKER.replace('key_file = "key"', 'key_file = "key"\nchain_key_file = "chain"'))
    begin(load_worker_config(path, {})).store.close()
    check_config(path, str(tmp_path / "ledger"), as_json=True)
    assert "continues incarnation 1" in json.loads(capsys.readouterr().out)["against"]
