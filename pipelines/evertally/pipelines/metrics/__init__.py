r"""What Prometheus reads, on two planes that never share a port.

The public plane (`/metrics`) shows released values and health that no data can move. The operators' plane
(`/internal/metrics`) shows lag, event counts and memory: exact functions of the data, for operators only.

A command feeds the operators' plane so:

>>> from evertally.pipelines.metrics import OperatorMetrics
>>> metrics = OperatorMetrics("worker")
>>> metrics.counter("events_read", "Events read from the input.", ("stage",)).labels("aggregate").inc(3)
>>> "evertally_worker_events_read_total{stage=\"aggregate\"} 3.0" in metrics.text().decode()
True

and serves it with `internal_plane(Listen("127.0.0.1", 9465), metrics)`: `start()`, `close()`.
"""

from evertally.pipelines.metrics.listen import Listen, parse_listen, read_metrics_listen
from evertally.pipelines.metrics.operators import OperatorMetrics
from evertally.pipelines.metrics.plane import Answer, PlaneServer, internal_plane

__all__ = [
    "Answer",
    "Listen",
    "OperatorMetrics",
    "PlaneServer",
    "internal_plane",
    "parse_listen",
    "read_metrics_listen",
]
