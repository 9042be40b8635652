"""What of a store is dead, and why: each record has one reason, so bytes are counted once (docs/analytics.md)."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from delaymq.message.names import HALF_TOPIC, MARKS_TOPIC, OP_HALF_TOPIC, SCHEDULE_TOPIC
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from delaymq_spark.jobs import progress_of_groups, settlements
from delaymq_spark.positions import Positions

DEAD_REASONS = (
    "filler", "delivered", "withdrawn", "transaction_settled", "mark_obsolete", "topic_deleted", "consumed",
    "superseded", "expired",
)  # fmt: skip
"""Why a record is dead, in the order in which the reasons are tried."""
LIVE_REASONS = ("pending", "lost", "half_pending", "operation_needed", "mark_needed", "unread", "retained")
"""What holds a live record."""
_BREAKDOWN = ("topic", "queue_id", "segment", "kind", "dead", "reason")
_CLASSIFIED = ("topic", "queue_id", "segment", "kind", "size", "store_time", "physical_offset", "due_time", "reason")
_MILLISECONDS_PER_HOUR = 3_600_000


@dataclass(frozen=True, kw_only=True)
class CompactionOptions:
    """What counts as dead beside what the store itself says."""

    as_of_ms: int
    """The time that expiry is reckoned at."""
    retention_hours: float = 72
    """Messages stored longer ago are expired (the broker's fileReservedTime)."""
    keyed_topics: frozenset[str] = frozenset()
    """Topics in which a newer message replaces older ones with the same KEYS; `*` for all."""
    complete: bool = True
    """Whether nothing of the log was skipped; else what a mark or an op record settles may stand there."""


COLUMNS = (*settlements.COLUMNS, "half_offset")
"""What `transform` needs of the messages; with keyed topics `keys` too."""


def transform(messages: DataFrame, positions: Positions, options: CompactionOptions) -> DataFrame:
    """Messages and bytes by topic, queue, segment, kind and reason.

    Columns: topic, queue_id, segment, kind, dead, reason, messages, bytes, first_stored, last_stored, last_due.
    """
    return breakdown(classify(messages, positions, options))


def breakdown(classified: DataFrame) -> DataFrame:
    """The sums of what `classify` says of each record."""
    return (
        classified.withColumn("dead", F.col("reason").isin(*DEAD_REASONS))
        .groupBy(*_BREAKDOWN)
        .agg(
            F.count("*").alias("messages"),
            F.sum("size").alias("bytes"),
            F.min("store_time").alias("first_stored"),
            F.max("store_time").alias("last_stored"),
            F.max("due_time").alias("last_due"),
        )
    )


def classify(messages: DataFrame, positions: Positions, options: CompactionOptions) -> DataFrame:
    """Each record with its `reason`: why it is dead (DEAD_REASONS), else what holds it (LIVE_REASONS)."""
    filler = settlements.is_filler()
    special = F.col("topic").isin(SCHEDULE_TOPIC, HALF_TOPIC, OP_HALF_TOPIC, MARKS_TOPIC)
    parts = [
        messages.where(filler).withColumn("reason", F.lit("filler")),
        _delayed(messages, positions),
        _marks(messages, options),
        *_transactions(messages, positions, options),
        _plain(messages.where(~filler & ~special), positions, options),
    ]
    whole = parts[0].select(*_CLASSIFIED)
    for part in parts[1:]:
        whole = whole.unionByName(part.select(*_CLASSIFIED))
    return whole


def _delayed(messages: DataFrame, positions: Positions) -> DataFrame:
    return settlements.outcomes(messages, positions).withColumnRenamed("outcome", "reason")


def _marks(messages: DataFrame, options: CompactionOptions) -> DataFrame:
    """A mark alone is needed as long as the record that it settles is in the log."""
    oldest = (
        messages.where(settlements.is_delayed())
        .groupBy(F.col("queue_id").alias("origin_queue_id"))
        .agg(F.min("queue_offset").alias("oldest"))
    )
    needed = F.coalesce(F.col("origin_offset") >= F.col("oldest"), F.lit(False)) | F.lit(not options.complete)
    return (
        messages.where((F.col("topic") == MARKS_TOPIC) & ~settlements.is_filler())
        .join(F.broadcast(oldest), "origin_queue_id", "left")
        .withColumn("reason", F.when(needed, "mark_needed").otherwise("mark_obsolete"))
    )


def _transactions(messages: DataFrame, positions: Positions, options: CompactionOptions) -> list[DataFrame]:
    """Half messages are settled by an op record or the check-back's progress; op records outlive half messages."""
    halves = messages.where((F.col("topic") == HALF_TOPIC) & ~settlements.is_filler())
    ops = messages.where((F.col("topic") == OP_HALF_TOPIC) & ~settlements.is_filler())
    named = ops.select(F.col("half_offset").alias("queue_offset")).distinct().withColumn("op", F.lit(True))
    settled = F.col("op").isNotNull() | (F.col("queue_offset") < progress_of_groups.settled_halves(positions))
    oldest = halves.agg(F.min("queue_offset").alias("oldest"))
    # No half message at all: nothing is left that an op record could settle.
    gone = F.coalesce(F.col("oldest").isNull() | (F.col("half_offset") < F.col("oldest")), F.lit(False))
    gone = gone & F.lit(options.complete)
    done = gone | (F.col("queue_offset") < progress_of_groups.settled_operations(positions))
    return [
        halves.join(named, "queue_offset", "left").withColumn(
            "reason", F.when(settled, "transaction_settled").otherwise("half_pending")
        ),
        ops.crossJoin(F.broadcast(oldest)).withColumn(
            "reason", F.when(done, "transaction_settled").otherwise("operation_needed")
        ),
    ]


def _plain(messages: DataFrame, positions: Positions, options: CompactionOptions) -> DataFrame:
    """What consumers read: copies, retries and dead letters among them."""
    spark = messages.sparkSession
    read = [(topic, queue, offset) for (topic, queue), offset in progress_of_groups.read_by_all(positions).items()]
    deleted = list(positions.deleted_topics.items())
    known = _with_small(spark, messages, read, "topic string, queue_id int, read_to long", ["topic", "queue_id"])
    known = _with_small(spark, known, deleted, "topic string, deleted_at long", ["topic"])
    expired_before_ms = options.as_of_ms - int(options.retention_hours * _MILLISECONDS_PER_HOUR)
    superseded: Column = F.lit(False)
    if options.keyed_topics:
        keyed = F.col("keys").isNotNull()
        if "*" not in options.keyed_topics:
            keyed = keyed & F.col("topic").isin(*sorted(options.keyed_topics))
        newest = messages.where(keyed).groupBy("topic", "keys").agg(F.max("physical_offset").alias("newest"))
        known = known.join(newest, ["topic", "keys"], "left")
        superseded = keyed & (F.col("physical_offset") < F.col("newest"))
    return known.withColumn(
        "reason",
        F.when(F.col("physical_offset") < F.col("deleted_at"), "topic_deleted")
        .when(F.col("queue_offset") < F.col("read_to"), "consumed")
        .when(superseded, "superseded")
        .when(F.unix_millis("store_time") < expired_before_ms, "expired")
        .when(F.col("read_to").isNotNull(), "unread")
        .otherwise("retained"),
    )


def _with_small(
    spark: SparkSession, messages: DataFrame, rows: Sequence[tuple[object, ...]], schema: str, on: list[str]
) -> DataFrame:
    """`messages` with the columns of a small table from the driver, null where it has no row."""
    return messages.join(F.broadcast(spark.createDataFrame(list(rows), schema)), on, "left")


def main(argv: Sequence[str] | None = None) -> int:
    """`delaymq-spark compaction …`; also what a SparkApplication runs. The exit code."""
    from delaymq_spark.cli import run

    return run(["compaction", *(sys.argv[1:] if argv is None else argv)])


if __name__ == "__main__":
    sys.exit(main())
