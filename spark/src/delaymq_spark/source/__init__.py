"""The data source `rocketmq_store`: options, schema, partitions, batch and stream readers.

Executors run `read`; Spark calls `data_source` and `stream`.
"""
