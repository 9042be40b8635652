"""The data source `rocketmq_store`: options, schema, partitions, batch and stream readers.

What executors run is `read`; `data_source` and `stream` are what Spark calls.
"""
