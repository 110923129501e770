"""Apache Beam: continual counts as transforms, a Kafka source that keeps its positions in the ledger, jobs.

Read in this order: `elements` or `kafka_source` (events to parts of ticks), `add_parts`, `bound_units`,
`release_ticks` or `close_ticks`, then `transforms` and `job`, which put them together.
"""

from evertally.pipelines.beam.closings_topic import ClosingsTopic
from evertally.pipelines.beam.refs import KeyRef, LedgerRef
from evertally.pipelines.beam.sink_refs import FileSinkRef, TopicSinkRef
from evertally.pipelines.beam.transforms import ContinualCount, ContinualSum, Counted

__all__ = [
    "ClosingsTopic",
    "ContinualCount",
    "ContinualSum",
    "Counted",
    "FileSinkRef",
    "KeyRef",
    "LedgerRef",
    "TopicSinkRef",
]
