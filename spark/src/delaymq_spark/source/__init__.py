"""The data source `rocketmq_store`: options, schema, partitions, batch and stream readers.

`read` runs on executors; Spark calls `data_source` and `stream`.
"""
