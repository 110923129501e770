"""Several streams in one Beam job on Prism, so that the suite starts a runner once and not for each of them.

Those whose configuration says `closing_sources` are closed for a releaser, the others released inside.

python tests/beam/many_streams.py PRISM FROM CONFIG...
"""

# Beam has no types
# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

import sys
from pathlib import Path

import apache_beam as beam
from apache_beam.options.pipeline_options import DebugOptions, PipelineOptions

from evertally.pipelines.beam.job import CountKafka, prepare
from evertally.pipelines.beam.job_end import wait_for_end
from evertally.pipelines.beam.options import CountOptions
from evertally.pipelines.kafka.config import load_worker_config


def main(prism: str, start_from: str, *configs: str) -> None:
    options = PipelineOptions(
        ["--runner=PrismRunner", f"--prism_location={prism}", "--environment_type=LOOPBACK", "--streaming"]
    )
    options.view_as(DebugOptions).add_experiment("prism_disable_sdf_split")
    words = [] if start_from == "-" else [f"--evertally_from={start_from}"]
    pipeline = beam.Pipeline(options=options)
    for path in configs:
        config = load_worker_config(Path(path))
        closings = [] if config.closing_sources is None else ["--evertally_closings"]
        ours = CountOptions([*words, *closings], evertally_buckets=2)
        pipeline | config.spec.name >> CountKafka(config, prepare(config, ours), ours)
    wait_for_end(pipeline.run())


if __name__ == "__main__":
    main(*sys.argv[1:])
