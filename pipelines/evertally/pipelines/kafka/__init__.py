"""The Kafka worker: consumes events, counts them per tick, releases noisy totals, each exactly once.

Read in this order: `aggregation` (events to partial sums), `closing_records` (their form on the topic),
`collector` (partial sums to closed ticks), `release_stage` and `release_sink`, then `worker`.
"""
