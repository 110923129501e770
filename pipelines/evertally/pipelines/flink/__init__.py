"""Aggregation on a Flink cluster: events of a Kafka topic to sealed closings, each event in exactly one.

`submit` opens the stream and starts the job; `job` builds its graph; `combine`, `lanes` and `unit_events`
hold what is computed, without Flink. PyFlink is imported only where a job is built or runs.
"""
