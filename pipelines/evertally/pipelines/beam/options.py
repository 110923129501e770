"""Pipeline options of evertally's jobs."""

from __future__ import annotations

from argparse import ArgumentParser

from apache_beam.options.pipeline_options import PipelineOptions

__all__ = ["CountOptions"]


class CountOptions(PipelineOptions):
    """What a job says about its stream beside what runners ask."""

    @classmethod
    def _add_argparse_args(cls, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--evertally_config", help="TOML file that declares the stream, its topics and its ledger."
        )
        parser.add_argument(
            "--evertally_from",
            help="Only at the very first start: earliest, latest, an RFC 3339 time, or epoch milliseconds.",
        )
        parser.add_argument(
            "--evertally_key",
            help="Where workers find the key file: a path, or secret:NAME; default: the TOML's.",
        )
        parser.add_argument(
            "--evertally_buckets",
            type=int,
            default=4,
            help="Bounding steps that share the privacy units; fixed for one incarnation.",
        )
        parser.add_argument(
            "--evertally_closings",
            action="store_true",
            help="Write sealed closings for `evertally release` instead of releasing; workers then get "
            "neither the ledger nor the key file, and --evertally_key is the place of the aggregation keys.",
        )
        parser.add_argument(
            "--evertally_metrics_listen",
            help="host:port of /internal/metrics in the process that runs the job; default: the TOML's.",
        )
