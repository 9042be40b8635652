"""Module by whose name Spark finds the data source `rocketmq_store` without registration.

Invariant: the name of this module starts with `pyspark_`, and it defines only `DefaultSource`. Spark imports all
modules with this prefix and registers the class of this name.
"""

from delaymq_spark.source.data_source import RocketMqStoreSource as DefaultSource

__all__ = ["DefaultSource"]
