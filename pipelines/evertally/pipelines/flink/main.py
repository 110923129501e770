"""What the Flink client runs to build the job's graph; `evertally flink submit` starts it."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from evertally.pipelines.flink.job import Placement, run
from evertally.pipelines.flink.parameters import JobParameters
from evertally.pipelines.kafka.config import load_worker_config


def main() -> None:
    """Read the description of a job, and submit it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("description", type=Path)
    fields = json.loads(parser.parse_args().description.read_text("utf-8"))
    config = load_worker_config(Path(fields["config"]))
    job = JobParameters.of(
        config,
        fields["life"],
        fields["incarnation"],
        fields["horizon"],
        fields["shard_of"],
        Path(fields["keys"]),
    )
    run(job, config.broker, Placement(fields["name"], fields["parallelism"], fields["checkpoint_ms"]))


if __name__ == "__main__":
    main()
