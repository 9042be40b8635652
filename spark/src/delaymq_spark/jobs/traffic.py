"""Traffic: rates and bytes, sizes, hot keys, skew between queues, retries and dead letters."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from delaymq.message.names import DLQ_PREFIX, MARKS_TOPIC, OP_HALF_TOPIC, RETRY_PREFIX

from delaymq_spark.jobs.columns import TIME, hour_of, integers, is_filler, is_topic, mask_of, where
from delaymq_spark.jobs.sums import Sums, by, first

LARGEST_BUCKET: Final = 1 << 24

TRAFFIC: Final = Sums(
    name="traffic",
    keys={"topic": pa.string(), "hour": TIME, "kind": pa.string(), "queue_id": pa.int32()},
    adds=("messages", "bytes", "body_bytes", "again"),
)
"""Message counts. `again`: redelivered after a failure. `hour`: hour of the store time."""
SIZES: Final = Sums(name="sizes", keys={"from_bytes": pa.int64()}, adds=("messages", "bytes"))
HOT_KEYS: Final = Sums(name="hot_keys", keys={"topic": pa.string(), "keys": pa.string()}, adds=("messages", "bytes"))
VOLUME: Final = Sums(
    name="volume", keys={"topic": pa.string(), "segment": pa.int64()}, adds=("messages", "bytes"),
    least=("first_stored",), most={"last_stored": TIME},
)  # fmt: skip
"""Totals of all records, including fillers."""
MOST_FIRST: Final = (("messages", "descending"), ("topic", "ascending"), ("keys", "ascending"))
MOST_FAILURES_FIRST: Final = (("dead_letters", "descending"), ("retries", "descending"), ("group", "ascending"))


def volume(rows: pa.Table) -> pa.Table:
    """Return the VOLUME of records."""
    values = {
        "messages": np.ones(rows.num_rows, np.int64), "bytes": rows["size"].cast(pa.int64()),
        "first_stored": rows["store_time"], "last_stored": rows["store_time"],
    }  # fmt: skip
    return VOLUME.of(pa.table({"topic": rows["topic"], "segment": rows["segment"], **values}))


def rates(rows: pa.Table) -> pa.Table:
    """Return the TRAFFIC of records."""
    rows = where(rows, ~is_filler(rows))
    values = {
        "messages": np.ones(rows.num_rows, np.int64),
        "bytes": rows["size"].cast(pa.int64()),
        "body_bytes": rows["body_bytes"].cast(pa.int64()),
        "again": (integers(rows["reconsume_times"]) > 0).astype(np.int64),
    }
    keys = {"topic": rows["topic"], "hour": hour_of(rows["store_time"])}
    return TRAFFIC.of(pa.table({**keys, "kind": rows["kind"], "queue_id": rows["queue_id"], **values}))


def sizes(rows: pa.Table) -> pa.Table:
    """Return bodies by size in powers of two: `from_bytes` (0, 1, 2, 4 …), messages, bytes (of bodies)."""
    rows = where(rows, ~is_filler(rows) & ~is_topic(rows, OP_HALF_TOPIC, MARKS_TOPIC))
    body_bytes = integers(rows["body_bytes"])
    # The exponent; frexp returns it plus one.
    powers = np.left_shift(1, np.maximum(np.frexp(body_bytes.astype(np.float64))[1].astype(np.int64) - 1, 0))
    buckets = np.where(body_bytes == 0, 0, np.minimum(powers, LARGEST_BUCKET))
    ones = np.ones(len(buckets), np.int64)
    return SIZES.of(pa.table({"from_bytes": buckets, "messages": ones, "bytes": body_bytes}))


def keys(rows: pa.Table) -> pa.Table:
    """Return the HOT_KEYS of records that consumers read: the KEYS of messages."""
    rows = where(rows, mask_of(pc.is_valid(rows["keys"])) & mask_of(pc.is_in(rows["kind"], _WITH_KEYS)))
    ones = pa.array(np.ones(rows.num_rows, np.int64))
    columns = {"topic": rows["topic"], "keys": rows["keys"], "messages": ones, "bytes": rows["size"].cast(pa.int64())}
    return HOT_KEYS.of(pa.table(columns))


_WITH_KEYS: Final = pa.array(["normal", "delivered"])


def hot_keys(found: pa.Table, limit: int) -> pa.Table:
    """Return the most frequent keys, with more than one message."""
    return first(where(found, integers(found["messages"]) > 1), limit, *MOST_FIRST)


def topics(traffic: pa.Table) -> pa.Table:
    """Return by topic: messages, bytes, body_bytes, queues, skew, fullest_queue, first and last hour, hourly peaks.

    `skew`: messages of the fullest queue divided by the mean of all queues; 1 if all have the same number.
    """
    hours = by(traffic, ["topic", "hour"], m=("messages", "sum"), b=("bytes", "sum"))
    by_hour = by(
        hours, ["topic"], first_hour=("hour", "min"), last_hour=("hour", "max"), peak_hour_messages=("m", "max"),
        peak_hour_bytes=("b", "max"),
    )  # fmt: skip
    queues = by(
        traffic, ["topic", "queue_id"], m=("messages", "sum"), b=("bytes", "sum"), body=("body_bytes", "sum")
    )  # fmt: skip
    by_queue = by(
        queues, ["topic"], messages=("m", "sum"), bytes=("b", "sum"), body_bytes=("body", "sum"),
        queues=("queue_id", "count"), fullest=("m", "max"),
    )  # fmt: skip
    skew = pc.divide(
        pc.multiply(by_queue["fullest"].cast(pa.float64()), by_queue["queues"].cast(pa.float64())),
        by_queue["messages"].cast(pa.float64()),
    )
    fullest = queues.sort_by([("topic", "ascending"), ("m", "descending"), ("queue_id", "ascending")])
    fullest_queue = fullest["queue_id"].take(pc.index_in(by_queue["topic"], fullest["topic"].combine_chunks()))
    by_queue = by_queue.drop_columns(["fullest"]).append_column("skew", skew)
    by_queue = by_queue.append_column("fullest_queue", fullest_queue)
    by_hour = by_hour.take(pc.index_in(by_queue["topic"], by_hour["topic"].combine_chunks()))
    for name in by_hour.column_names[1:]:
        by_queue = by_queue.append_column(name, by_hour[name])
    return by_queue


def failures(traffic: pa.Table) -> pa.Table:
    """Return retries and dead letters by group: group, retries, dead_letters, bytes; most dead letters first."""
    retry = mask_of(pc.starts_with(traffic["topic"], RETRY_PREFIX))
    dead = mask_of(pc.starts_with(traffic["topic"], DLQ_PREFIX))
    messages = integers(traffic["messages"])
    columns = {
        "group": pc.replace_substring_regex(traffic["topic"], f"^({RETRY_PREFIX}|{DLQ_PREFIX})", ""),
        "retries": pa.array(np.where(retry, messages, 0)),
        "dead_letters": pa.array(np.where(dead, messages, 0)),
        "bytes": traffic["bytes"],
    }
    sums = {name: (name, "sum") for name in ("retries", "dead_letters", "bytes")}
    found = by(where(pa.table(columns), retry | dead), ["group"], **sums)
    return first(found, found.num_rows, *MOST_FAILURES_FIRST)
