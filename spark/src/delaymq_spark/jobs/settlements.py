"""Which delayed records were settled, and by what: the log's own evidence first, then the positions.

Our scheduler's copies name their origin by queue and offset. RocketMQ's name nothing: they are known by topic, queue,
unique key (else birth and size), reconsume times and level; of several equal ones the n-th copy is that of the n-th
origin.
"""

from __future__ import annotations

from delaymq.message.flags import TRANSACTION_MASK, TRANSACTION_ROLLBACK
from delaymq.message.names import HALF_TOPIC, MARKS_TOPIC, SCHEDULE_DLQ_TOPIC, SCHEDULE_TOPIC
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from delaymq_spark.positions import Positions

DELIVERED = "delivered"
WITHDRAWN = "withdrawn"
PENDING = "pending"
LOST = "lost"

COLUMNS = (
    "topic", "queue_id", "queue_offset", "physical_offset", "segment", "size", "store_time", "born_time", "sys_flag",
    "reconsume_times", "body_bytes", "kind", "real_topic", "real_queue_id", "delay_level", "due_time", "unique_key",
    "origin_queue_id", "origin_offset",
)  # fmt: skip
"""What `outcomes` needs of the messages."""


def is_filler() -> Column:
    """Whether a record only fills a damaged place."""
    return F.col("sys_flag").bitwiseAND(F.lit(TRANSACTION_MASK)) == TRANSACTION_ROLLBACK


def is_delayed() -> Column:
    """Whether a record waits, or waited, for its time."""
    return (F.col("topic") == SCHEDULE_TOPIC) & ~is_filler()


def outcomes(messages: DataFrame, positions: Positions) -> DataFrame:
    """Each delayed record with its `outcome`, `copies`, and `copy_time` and `copy_offset` of its first copy.

    One row per record of the schedule topic, all its columns kept. `copies` counts copies under the real topic.
    """
    delayed = messages.where(is_delayed())
    claims = _claims(messages)
    # A mark is believed if what it settles is what it is a copy of: clients and other brokers copy properties.
    marked = (
        claims.where(F.col("c_origin_offset").isNotNull())
        .join(
            delayed.select(
                F.col("queue_id").alias("c_origin_queue_id"),
                F.col("queue_offset").alias("c_origin_offset"),
                F.col("physical_offset").alias("o_offset"),
                F.col("unique_key").alias("o_key"),
                F.col("reconsume_times").alias("o_times"),
                F.col("real_topic").alias("o_topic"),
                F.col("real_queue_id").alias("o_queue"),
            ),
            ["c_origin_queue_id", "c_origin_offset"],
        )
        .where(
            F.col("c_key").eqNullSafe(F.col("o_key"))
            & (F.col("c_times") == F.col("o_times"))
            & (F.col("c_elsewhere") | ((F.col("c_topic") == F.col("o_topic")) & (F.col("c_queue") == F.col("o_queue"))))
            & (F.col("c_offset") > F.col("o_offset"))
        )
        .select("o_offset", "c_elsewhere", "c_time", "c_offset")
    )
    settlements = _per_origin(marked.unionByName(_unmarked(delayed, claims, marked)))
    known = delayed.join(settlements, delayed["physical_offset"] == settlements["o_offset"], "left").drop("o_offset")
    below = _below_position(positions)
    return (
        known.withColumn("copies", F.coalesce("copies", F.lit(0)).cast("long"))
        .withColumn(
            "outcome",
            F.when(F.col("copies") > 0, DELIVERED)
            .when(F.col("elsewhere") > 0, WITHDRAWN)
            # RocketMQ drops these without a trace, and means to.
            .when(below & (F.col("real_topic") == HALF_TOPIC), WITHDRAWN)
            .when(below, LOST)
            .otherwise(PENDING),
        )
        .drop("elsewhere")
    )


def _claims(messages: DataFrame) -> DataFrame:
    """Records outside the schedule topic that may settle one in it, in columns c_…."""
    may_be_copy = (
        (F.col("delay_level") > 0)
        & (F.col("real_topic") == F.col("topic"))
        & (F.col("real_queue_id") == F.col("queue_id"))
        & (F.col("kind") != "normal")
    )
    return messages.where(
        (F.col("topic") != SCHEDULE_TOPIC) & ~is_filler() & (F.col("origin_offset").isNotNull() | may_be_copy)
    ).select(
        F.col("topic").alias("c_topic"),
        F.col("queue_id").alias("c_queue"),
        F.col("topic").isin(MARKS_TOPIC, SCHEDULE_DLQ_TOPIC).alias("c_elsewhere"),
        F.col("unique_key").alias("c_key"),
        _identity().alias("c_identity"),
        F.col("reconsume_times").alias("c_times"),
        F.col("delay_level").alias("c_level"),
        F.col("store_time").alias("c_time"),
        F.col("physical_offset").alias("c_offset"),
        F.col("origin_queue_id").alias("c_origin_queue_id"),
        F.col("origin_offset").alias("c_origin_offset"),
    )


def _unmarked(delayed: DataFrame, claims: DataFrame, marked: DataFrame) -> DataFrame:
    """Copies without a mark, each with the origin that it is paired with."""
    same = ("c_topic", "c_queue", "c_identity", "c_times", "c_level")
    origins = (
        delayed.join(marked.select(F.col("o_offset").alias("physical_offset")), "physical_offset", "left_anti")
        .select(
            F.col("physical_offset").alias("o_offset"),
            F.col("real_topic").alias("c_topic"),
            F.col("real_queue_id").alias("c_queue"),
            _identity().alias("c_identity"),
            F.col("reconsume_times").alias("c_times"),
            F.col("delay_level").alias("c_level"),
        )
        .withColumn("number", F.row_number().over(Window.partitionBy(*same).orderBy("o_offset")))
        .withColumn("origins", F.count("*").over(Window.partitionBy(*same)))
    )
    # More copies than origins: the broker handed the last one over again.
    counts = origins.groupBy(*same).agg(F.max("origins").alias("origins"), F.min("o_offset").alias("first_origin"))
    copies = (
        claims.where(F.col("c_origin_offset").isNull())
        .join(counts, list(same))
        .where(F.col("c_offset") > F.col("first_origin"))
        .withColumn("nth", F.row_number().over(Window.partitionBy(*same).orderBy("c_offset")))
        .withColumn("number", F.least("nth", "origins"))
        .drop("origins")
    )
    return copies.join(origins.drop("origins"), [*same, "number"]).select(
        "o_offset", "c_elsewhere", "c_time", "c_offset"
    )


def _per_origin(settlements: DataFrame) -> DataFrame:
    is_copy = ~F.col("c_elsewhere")
    return settlements.groupBy("o_offset").agg(
        F.count_if(is_copy).alias("copies"),
        F.count_if(F.col("c_elsewhere")).alias("elsewhere"),
        F.min(F.when(is_copy, F.col("c_time"))).alias("copy_time"),
        F.min(F.when(is_copy, F.col("c_offset"))).alias("copy_offset"),
    )


def _identity() -> Column:
    born = F.concat_ws(":", F.unix_millis("born_time").cast("string"), F.col("body_bytes").cast("string"))
    return F.coalesce(F.concat(F.lit("k"), "unique_key"), F.concat(F.lit("b"), born))


def _below_position(positions: Positions) -> Column:
    """Whether the broker has passed over a delayed record; queue n of the schedule topic is that of level n + 1."""
    if not positions.delay_offsets:
        return F.lit(False)
    pairs: list[Column] = []
    for level, offset in sorted(positions.delay_offsets.items()):
        pairs += [F.lit(level), F.lit(offset).cast("long")]
    position = F.try_element_at(F.create_map(*pairs), F.col("queue_id") + 1)
    return F.coalesce(F.col("queue_offset") < position, F.lit(False))
