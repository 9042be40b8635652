"""How punctual the delays were, and whether each message came once: against the promises (docs/analytics.md)."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from delaymq_spark.jobs import settlements
from delaymq_spark.positions import Positions

LATENESS_EDGES_MS = (0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 60_000, 600_000, 3_600_000)
"""Lower edges of the histogram's buckets; what is early has the bucket -1."""
PENDING_EDGES = (
    ("overdue", 0), ("next minute", 60_000), ("next 10 minutes", 600_000), ("next hour", 3_600_000),
    ("next day", 86_400_000),
)  # fmt: skip
"""Name and upper edge (ms from now) of the classes of pending messages, in order; what is due later is `later`."""
PENDING_LATER = "later"
PROMISE_P99_MS = 100
"""Lateness that is promised for 99 of 100 messages unless told otherwise: RocketMQ's own step is 100 ms."""
_SHARES = (0.5, 0.9, 0.99)
# Exact below some thousand distinct values, else off by one in so many.
_ACCURACY = 10_000


def transform(messages: DataFrame, positions: Positions) -> DataFrame:
    """One row per delayed record: level, topic, due and copy time, lateness in ms, outcome, copies.

    Columns: level, topic (the real one), queue_id (of the schedule topic), queue_offset, physical_offset, segment,
    size, store_time, due_time, copy_time, copy_offset, copies, outcome, lateness_ms (null unless delivered), hour (of
    due_time).
    """
    return settlements.outcomes(messages, positions).select(
        F.coalesce("delay_level", F.col("queue_id") + 1).alias("level"),
        F.col("real_topic").alias("topic"),
        "queue_id",
        "queue_offset",
        "physical_offset",
        "segment",
        "size",
        "store_time",
        "due_time",
        "copy_time",
        "copy_offset",
        "copies",
        "outcome",
        F.when(F.col("outcome") == settlements.DELIVERED, F.unix_millis("copy_time") - F.unix_millis("due_time")).alias(
            "lateness_ms"
        ),
        F.date_trunc("hour", "due_time").alias("hour"),
    )


def lateness(delayed: DataFrame, *by: str) -> DataFrame:
    """Messages, outcomes and the lateness of what was delivered, for each value of the columns `by` (none: one row)."""
    late = F.col("lateness_ms")
    frame = delayed.groupBy(*by).agg(
        F.count("*").alias("messages"),
        *(
            F.count_if(F.col("outcome") == name).alias(name)
            for name in (settlements.DELIVERED, settlements.PENDING, settlements.WITHDRAWN, settlements.LOST)
        ),
        F.coalesce(F.sum(F.greatest(F.col("copies") - 1, F.lit(0))), F.lit(0)).alias("duplicates"),
        F.count_if(late < 0).alias("early"),
        F.percentile_approx(late, list(_SHARES), _ACCURACY).alias("shares"),
        F.max(late).alias("max_ms"),
        F.avg(late).alias("mean_ms"),
    )
    return frame.select(
        *by, "messages", "delivered", "pending", "withdrawn", "lost", "duplicates", "early",
        F.get("shares", F.lit(0)).alias("p50_ms"),
        F.get("shares", F.lit(1)).alias("p90_ms"),
        F.get("shares", F.lit(2)).alias("p99_ms"),
        "max_ms", "mean_ms",
    )  # fmt: skip


def histogram(delayed: DataFrame) -> DataFrame:
    """How many messages were how late: `from_ms` (the bucket's lower edge, -1 for early ones), `messages`."""
    bucket: Column = F.lit(-1)
    for edge in LATENESS_EDGES_MS:
        bucket = F.when(F.col("lateness_ms") >= edge, edge).otherwise(bucket)
    return (
        delayed.where(F.col("lateness_ms").isNotNull())
        .groupBy(bucket.cast("long").alias("from_ms"))
        .agg(F.count("*").alias("messages"))
        .orderBy("from_ms")
    )


def pending(delayed: DataFrame, as_of_ms: int) -> DataFrame:
    """What waits, by level and by when it is due: level, due, messages, bytes, first_due, last_due."""
    ahead_ms = F.unix_millis("due_time") - as_of_ms
    due: Column = F.lit(PENDING_LATER)
    for name, edge_ms in reversed(PENDING_EDGES):
        due = F.when(ahead_ms <= edge_ms, name).otherwise(due)
    return (
        delayed.where(F.col("outcome") == settlements.PENDING)
        .groupBy("level", due.alias("due"))
        .agg(
            F.count("*").alias("messages"),
            F.sum("size").alias("bytes"),
            F.min("due_time").alias("first_due"),
            F.max("due_time").alias("last_due"),
        )
    )


def offenders(delayed: DataFrame, limit: int) -> DataFrame:
    """The messages that broke a promise, worst first: lost, early, more than one copy. At most `limit` rows."""
    broken = (
        F.when(F.col("outcome") == settlements.LOST, "lost")
        .when(F.col("lateness_ms") < 0, "early")
        .when(F.col("copies") > 1, "duplicate")
    )
    rank = F.when(F.col("broken") == "lost", 0).when(F.col("broken") == "early", 1).otherwise(2)
    return (
        delayed.withColumn("broken", broken)
        .where(F.col("broken").isNotNull())
        .orderBy(rank, "lateness_ms", "physical_offset")
        .limit(limit)
    )


def main(argv: Sequence[str] | None = None) -> int:
    """`delaymq-spark delay …`; also what a SparkApplication runs. The exit code."""
    from delaymq_spark.cli import run

    return run(["delay", *(sys.argv[1:] if argv is None else argv)])


if __name__ == "__main__":
    sys.exit(main())
