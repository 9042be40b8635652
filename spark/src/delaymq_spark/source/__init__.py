"""The data source `rocketmq_store`: options, schema, partitions, batch and stream readers.

Executors run `read`; Spark calls `data_source` and `stream`.

Invariants: a read returns only records that the store contained when it was planned, and never writes to the store.
Every part that it cannot read is logged, and is a row if the column `skipped` is selected.
"""
