"""By this module's name Spark finds the data source `rocketmq_store` where nobody registered it."""

from delaymq_spark.source.data_source import RocketMqStoreSource as DefaultSource

__all__ = ["DefaultSource"]
