"""Module by whose name Spark finds the data source `rocketmq_store` without registration."""

from delaymq_spark.source.data_source import RocketMqStoreSource as DefaultSource

__all__ = ["DefaultSource"]
