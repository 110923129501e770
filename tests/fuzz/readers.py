"""Every reader that is fuzzed, by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.fuzz import config_readers, event_readers, ledger_readers, state_readers
from tests.fuzz.attack import Reader

READERS: dict[str, Callable[[Path], Reader]] = {
    make.__name__: make
    for make in (
        event_readers.csv_lines,
        event_readers.json_lines,
        event_readers.json_records,
        event_readers.avro_records,
        config_readers.run_config,
        config_readers.worker_config,
        config_readers.train_config,
        state_readers.rational_snapshot,
        state_readers.fft_snapshot,
        state_readers.constant_snapshot,
        state_readers.sealed_state,
        state_readers.kafka_records,
        state_readers.beam_bytes,
        state_readers.flink_bytes,
        state_readers.key_file,
        state_readers.releases_file,
        state_readers.training_files,
        ledger_readers.ledger_pages,
        ledger_readers.ledger_rows,
    )
}
