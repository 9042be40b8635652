"""Classification of records as live or dead: each record has one reason, so bytes are counted once
(docs/analytics.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from delaymq.message.names import OP_HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC, is_system_topic

from delaymq_spark.jobs import group_progress
from delaymq_spark.jobs.columns import TIME, Integers, Mask, codes, integers, mask_of
from delaymq_spark.jobs.sums import Sums
from delaymq_spark.source.schema import TYPES
from delaymq_spark.store.positions import Positions

DEAD_REASONS = (
    "filler", "delivered", "withdrawn", "replaced", "transaction_settled", "mark_obsolete", "topic_deleted", "consumed",
    "superseded", "expired",
)  # fmt: skip
"""Reasons why a record is dead, in the order in which they are checked."""
LIVE_REASONS = ("pending", "lost", "half_pending", "operation_needed", "mark_needed", "unread", "retained")
"""Reasons why a record is live."""
REASONS: Final = (*DEAD_REASONS, *LIVE_REASONS)
_MILLISECONDS_PER_HOUR = 3_600_000
_NO_QUEUE: Final = -(1 << 31)
"""Place of a missing queue id: no queue has it."""

BREAKDOWN: Final = Sums(
    name="compaction",
    keys={
        "topic": pa.string(), "queue_id": pa.int32(), "segment": pa.int64(), "kind": pa.string(), "dead": pa.bool_(),
        "reason": pa.string(), "replayable": pa.bool_(),
    },
    adds=("messages", "bytes"),
    least=("first_stored",),
    most={"last_stored": TIME, "last_due": pa.timestamp("us", tz="UTC")},
)  # fmt: skip
"""Messages and bytes by reason. `replayable`: consumed, but a group that resets its offsets could still read them."""
PROOFS: Final = Sums(
    name="proofs", keys={"segment": pa.int64(), "origin_segment": pa.int64()}, adds=("messages", "bytes")
)
"""Records of a segment that are kept only because they prove the delivery of a delayed record in another segment."""
NAMED: Final = Sums(
    name="named",
    keys={
        "topic": pa.string(), "queue_id": pa.int32(), "segment": pa.int64(), "kind": pa.string(),
        "named_queue": pa.int32(), "named_offset": pa.int64(), "settled": pa.bool_(),
    },
    adds=("messages", "bytes"),
    least=("first_stored",),
    most={"last_stored": TIME},
)  # fmt: skip
"""Marks and op marks: live while the log contains the record they name, which is known after reading all of it."""
_CLASSIFIED: Final = ("topic", "queue_id", "segment", "kind", "size", "store_time", "due_time")
HALVES: Final = pa.schema([(name, TYPES[name][1]) for name in (*_CLASSIFIED, "queue_offset")])
"""Half messages."""
KEYED: Final = pa.schema(
    [
        *((name, TYPES[name][1]) for name in (*_CLASSIFIED, "keys", "physical_offset")),
        ("reason", pa.int64()),
        ("replayable", pa.bool_()),
    ]
)
"""Records with KEYS in keyed topics, and their reason unless a later record supersedes them."""


@dataclass(frozen=True, kw_only=True)
class CompactionOptions:
    """Settings that determine which records are dead, in addition to the evidence in the log."""

    as_of_ms: int
    """Reference time of expiry."""
    retention_hours: float = 72
    """Age at which messages expire (the broker's fileReservedTime)."""
    keyed_topics: frozenset[str] = frozenset()
    """Topics in which a newer message supersedes older ones with the same KEYS; `*` for all."""


@dataclass(frozen=True, kw_only=True)
class Consumption:
    """Records released and held according to the positions stored next to the log; small, since each task gets a
    copy.
    """

    read_to: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    """Result of `group_progress.read_by_all`."""
    deleted_at: Mapping[str, int] = field(default_factory=dict)
    """Topic → physical offset below which its records were deleted."""
    known_topics: frozenset[str] | None = None
    """Existing topics; records of others below `known_to` were deleted. None: the store does not provide them."""
    known_to: int = 0
    settled_halves: int = 0
    settled_operations: int = 0
    delay_offsets: Mapping[int, int] = field(default_factory=dict)

    @staticmethod
    def of(positions: Positions) -> Consumption:
        """Return the consumption according to a store's positions."""
        return Consumption(
            read_to=group_progress.read_by_all(positions),
            deleted_at=dict(positions.deleted_topics),
            known_topics=positions.known_topics,
            known_to=positions.known_to,
            settled_halves=group_progress.settled_halves(positions),
            settled_operations=group_progress.settled_operations(positions),
            delay_offsets=dict(positions.delay_offsets),
        )

    def deleted_below(self, topic: str) -> int:
        """Return the physical offset below which the records of a topic were deleted."""
        at = self.deleted_at.get(topic, 0)
        if self.known_topics is None or topic in self.known_topics or is_system_topic(topic):
            return at
        return max(at, self.known_to)


def breakdown(rows: pa.Table, reason: Integers, replayable: Mask | None = None) -> pa.Table:
    """Return the BREAKDOWN of records, each with its reason's number in REASONS."""
    count = rows.num_rows
    values = {
        "dead": reason < len(DEAD_REASONS),
        "reason": pa.array(REASONS).take(pa.array(reason)),
        "replayable": np.zeros(count, np.bool_) if replayable is None else replayable,
        "messages": np.ones(count, np.int64),
        "bytes": rows["size"].cast(pa.int64()),
        "first_stored": rows["store_time"],
        "last_stored": rows["store_time"],
        "last_due": rows["due_time"],
    }
    return BREAKDOWN.of(pa.table({**{name: rows[name] for name in ("topic", "queue_id", "segment", "kind")}, **values}))


def of_reason(rows: pa.Table, reason: str) -> pa.Table:
    """Return the BREAKDOWN of records with the same reason."""
    return breakdown(rows, np.full(rows.num_rows, REASONS.index(reason)))


def of_delayed(settled: pa.Table) -> pa.Table:
    """Return the BREAKDOWN of delayed records, by `settlements.settle`."""
    topic = pc.if_else(pc.is_valid(settled["timer_record"]), TIMER_TOPIC, SCHEDULE_TOPIC)
    return breakdown(settled.append_column("topic", topic), _numbers(settled["outcome"]))


def plain(rows: pa.Table, consumption: Consumption, options: CompactionOptions) -> tuple[Integers, Mask]:
    """Return reason and replayability of records that consumers read (including copies, retries and dead letters).

    It ignores whether a later record supersedes one.
    """
    read_to, deleted_below = _bounds(rows, consumption)
    queue_offset, offset = integers(rows["queue_offset"]), integers(rows["physical_offset"])
    expired_before_ms = options.as_of_ms - int(options.retention_hours * _MILLISECONDS_PER_HOUR)
    expired = mask_of(pc.is_valid(rows["store_time"])) & (integers(rows["store_time"]) < expired_before_ms * 1000)
    consumed = queue_offset < read_to
    conditions = {
        "topic_deleted": offset < deleted_below, "consumed": consumed, "expired": expired, "unread": read_to >= 0,
    }  # fmt: skip
    numbers = [REASONS.index(name) for name in conditions]
    reason = np.select(list(conditions.values()), numbers, REASONS.index("retained"))
    return reason, (reason == REASONS.index("consumed")) & ~expired


def _bounds(rows: pa.Table, consumption: Consumption) -> tuple[Integers, Integers]:
    """Return, for each record, the offset to which its queue has been read (-1: its topic has no readers), and the
    deletion offset.
    """
    numbers, topics = codes(rows["topic"])
    queues = integers(rows["queue_id"])
    pairs, places = np.unique(numbers.astype(np.int64) << 32 | (queues & 0xFFFF_FFFF), return_inverse=True)
    read_to = np.full(len(pairs), -1, np.int64)
    for at, pair in enumerate(pairs.tolist()):
        of_topic = consumption.read_to.get(str(topics[pair >> 32]))
        if of_topic is not None:
            # Restores the sign of a number of 32 bits.
            queue_id = (pair & 0xFFFF_FFFF ^ 0x8000_0000) - 0x8000_0000
            read_to[at] = max(of_topic.get(queue_id, 0), 0)
    deleted = np.array([consumption.deleted_below(str(topic)) for topic in topics], np.int64)
    return read_to[places], deleted[numbers]


def is_keyed(rows: pa.Table, options: CompactionOptions) -> Mask:
    """Return a mask of records that can be superseded by a later record with the same KEYS."""
    if not options.keyed_topics:
        return np.zeros(rows.num_rows, np.bool_)
    keyed = mask_of(pc.is_valid(rows["keys"]))
    if "*" in options.keyed_topics:
        return keyed
    return keyed & mask_of(pc.is_in(rows["topic"], pa.array(sorted(options.keyed_topics), pa.string())))


def keyed(rows: pa.Table, reason: Integers, replayable: Mask) -> pa.Table:
    """Return the records `rows` of `is_keyed`, as KEYED."""
    columns = [rows[name] for name in (*_CLASSIFIED, "keys", "physical_offset")]
    return pa.table([*columns, pa.array(reason, pa.int64()), pa.array(replayable)], schema=KEYED)


def of_keyed(rows: pa.Table) -> pa.Table:
    """Return the BREAKDOWN of all KEYED records of some keys."""
    both = pc.binary_join_element_wise(rows["topic"], rows["keys"], "\x1f")
    numbers, _ = codes(both)
    offset, reason = integers(rows["physical_offset"]), integers(rows["reason"])
    newest = np.zeros(numbers.max(initial=-1) + 1, np.int64)
    np.maximum.at(newest, numbers, offset)
    superseded = REASONS.index("superseded")
    # Reasons are checked in order: a deleted or consumed record keeps that reason.
    takes = (offset < newest[numbers]) & (reason > superseded)
    return breakdown(rows, np.where(takes, superseded, reason), mask_of(rows["replayable"]))


def halves(rows: pa.Table) -> pa.Table:
    """Return half messages, as HALVES."""
    return pa.table([rows[name] for name in HALVES.names], schema=HALVES)


def of_halves(rows: pa.Table, named: pa.Table, consumption: Consumption) -> pa.Table:
    """Return the BREAKDOWN of half messages: settled by an op mark (`named`: the `half_offset` of all), or by a
    check.
    """
    ended = mask_of(pc.is_in(rows["queue_offset"], named["half_offset"].combine_chunks()))
    ended |= integers(rows["queue_offset"]) < consumption.settled_halves
    return breakdown(rows, np.where(ended, REASONS.index("transaction_settled"), REASONS.index("half_pending")))


def naming(rows: pa.Table, consumption: Consumption, *, operations: bool) -> pa.Table:
    """Return the NAMED of op marks, or of marks. A mark that names a timed message has no queue."""
    count = rows.num_rows
    queue = pa.nulls(count, pa.int32()) if operations else rows["origin_queue_id"]
    settled = integers(rows["queue_offset"]) < (consumption.settled_operations if operations else 0)
    columns = [rows[name] for name in ("topic", "queue_id", "segment", "kind")]
    named = rows["half_offset"] if operations else pc.coalesce(rows["origin_offset"], rows["mark_identity"])
    columns += [queue, named, pa.array(settled)]
    columns += [pa.array(np.ones(count, np.int64)), rows["size"], rows["store_time"], rows["store_time"]]
    return NAMED.of(pa.table(columns, names=NAMED.schema.names).cast(NAMED.schema))


def of_naming(
    named: pa.Table,
    oldest_delayed: Mapping[int, int],
    oldest_timed: int | None,
    oldest_half: int | None,
    *,
    complete: bool,
) -> pa.Table:
    """Return the BREAKDOWN of NAMED, once the oldest records of the schedule topic's queues, of the timer topic and of
    half messages are known.

    If the log was not completely read (`complete` is false), the named record may be in the rest of it.
    """
    offset = integers(named["named_offset"])
    is_named = mask_of(pc.is_valid(named["named_offset"]))
    most = np.iinfo(np.int64).max
    # Marks of timed messages name no queue.
    queues = integers(named["named_queue"], _NO_QUEUE)
    oldest_of = {**oldest_delayed, _NO_QUEUE: most if oldest_timed is None else oldest_timed}
    oldest = np.array([oldest_of.get(queue, most) for queue in queues.tolist()], np.int64)
    is_op = mask_of(pc.equal(named["topic"], OP_HALF_TOPIC))
    # Without half messages, no op mark can settle anything.
    gone = np.ones(len(offset), np.bool_) if oldest_half is None else is_named & (offset < oldest_half)
    done = mask_of(named["settled"]) | (gone & complete)
    needed = (is_named & (offset >= oldest)) | (not complete)
    reason = np.where(
        is_op,
        np.where(done, REASONS.index("transaction_settled"), REASONS.index("operation_needed")),
        np.where(needed, REASONS.index("mark_needed"), REASONS.index("mark_obsolete")),
    )
    values = {
        "dead": reason < len(DEAD_REASONS),
        "reason": pa.array(REASONS).take(pa.array(reason)),
        "replayable": np.zeros(len(reason), np.bool_),
        "last_due": pa.nulls(len(reason), TIME),
    }
    same = ("topic", "queue_id", "segment", "kind", "messages", "bytes", "first_stored", "last_stored")
    return BREAKDOWN.of(pa.table({**{name: named[name] for name in same}, **values}))


def _numbers(reasons: pa.ChunkedArray) -> Integers:
    return integers(pc.index_in(reasons, pa.array(REASONS)))
