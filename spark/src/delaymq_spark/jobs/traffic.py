"""What came in: rate and bytes, sizes, hot keys, skew between queues, retries and dead letters."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from delaymq.message.names import DLQ_PREFIX, MARKS_TOPIC, OP_HALF_TOPIC, RETRY_PREFIX
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from delaymq_spark.jobs.settlements import is_filler

COLUMNS = ("topic", "queue_id", "size", "store_time", "sys_flag", "reconsume_times", "body_bytes", "kind", "keys")
"""What `transform` and the others need of the messages."""
LARGEST_BUCKET = 1 << 24


def transform(messages: DataFrame) -> DataFrame:
    """Messages and bytes by topic, hour of the store time, kind and queue.

    Columns: topic, hour, kind, queue_id, messages, bytes, body_bytes, again (delivered again after a failure).
    """
    return (
        messages.where(~is_filler())
        .groupBy("topic", F.date_trunc("hour", "store_time").alias("hour"), "kind", "queue_id")
        .agg(
            F.count("*").alias("messages"),
            F.sum("size").alias("bytes"),
            F.sum(F.col("body_bytes").cast("long")).alias("body_bytes"),
            F.count_if(F.col("reconsume_times") > 0).alias("again"),
        )
    )


def topics(traffic: DataFrame) -> DataFrame:
    """By topic: messages, bytes, body_bytes, first_hour, last_hour, peak_hour_messages, queues, and the skew of queues.

    `skew`: messages of the fullest queue by those of the mean one; 1 when all have the same.
    """
    hours = traffic.groupBy("topic", "hour").agg(F.sum("messages").alias("m"), F.sum("bytes").alias("b"))
    by_hour = hours.groupBy("topic").agg(
        F.min("hour").alias("first_hour"),
        F.max("hour").alias("last_hour"),
        F.max("m").alias("peak_hour_messages"),
        F.max("b").alias("peak_hour_bytes"),
    )
    queues = traffic.groupBy("topic", "queue_id").agg(
        F.sum("messages").alias("m"), F.sum("bytes").alias("b"), F.sum("body_bytes").alias("body")
    )
    by_queue = queues.groupBy("topic").agg(
        F.sum("m").alias("messages"),
        F.sum("b").alias("bytes"),
        F.sum("body").alias("body_bytes"),
        F.count("*").alias("queues"),
        (F.max("m") / F.avg("m")).alias("skew"),
        F.max_by("queue_id", "m").alias("fullest_queue"),
    )
    return by_queue.join(by_hour, "topic")


def sizes(messages: DataFrame) -> DataFrame:
    """Bodies by size in powers of two: `from_bytes` (0, 1, 2, 4 …), messages, bytes (of bodies)."""
    power = F.floor(F.log2(F.col("body_bytes").cast("double")))
    bucket = F.when(F.col("body_bytes") == 0, 0).otherwise(F.pow(F.lit(2.0), power).cast("long"))
    return (
        messages.where(~is_filler() & (F.col("topic") != OP_HALF_TOPIC) & (F.col("topic") != MARKS_TOPIC))
        .groupBy(F.least(bucket, F.lit(LARGEST_BUCKET)).cast("long").alias("from_bytes"))
        .agg(F.count("*").alias("messages"), F.sum(F.col("body_bytes").cast("long")).alias("bytes"))
        .orderBy("from_bytes")
    )


def hot_keys(messages: DataFrame, limit: int) -> DataFrame:
    """The KEYS that most messages carry, under the topic that consumers read: topic, keys, messages, bytes."""
    return (
        messages.where(F.col("keys").isNotNull() & F.col("kind").isin("normal", "delivered"))
        .groupBy("topic", "keys")
        .agg(F.count("*").alias("messages"), F.sum("size").alias("bytes"))
        .where(F.col("messages") > 1)
        .orderBy(F.desc("messages"), "topic", "keys")
        .limit(limit)
    )


def failures(traffic: DataFrame) -> DataFrame:
    """Retries and dead letters by group: group, retries, dead_letters, bytes."""
    prefixes = {RETRY_PREFIX: "retries", DLQ_PREFIX: "dead_letters"}
    kind = F.when(F.col("topic").startswith(RETRY_PREFIX), "retries").when(
        F.col("topic").startswith(DLQ_PREFIX), "dead_letters"
    )
    length = F.when(kind == "retries", len(RETRY_PREFIX)).otherwise(len(DLQ_PREFIX))
    group = F.col("topic").substr(length + 1, F.length("topic"))
    return (
        traffic.where(kind.isNotNull())
        .groupBy(group.alias("group"))
        .agg(
            *(F.sum(F.when(kind == name, F.col("messages")).otherwise(0)).alias(name) for name in prefixes.values()),
            F.sum("bytes").alias("bytes"),
        )
        .orderBy(F.desc("dead_letters"), F.desc("retries"), "group")
    )


def main(argv: Sequence[str] | None = None) -> int:
    """`delaymq-spark traffic …`; also what a SparkApplication runs. The exit code."""
    from delaymq_spark.cli import run

    return run(["traffic", *(sys.argv[1:] if argv is None else argv)])


if __name__ == "__main__":
    sys.exit(main())
