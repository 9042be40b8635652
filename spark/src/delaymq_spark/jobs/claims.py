"""Delayed records and the records that may settle them, as tables that are combined in the second stage.

Rows that may belong together are sent to the same partition: records that state the identity of their timed message, by
that identity (`route`), and all others by what a copy has in common with its origin (`match_key`).
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from delaymq.message.names import MARKS_TOPIC, SCHEDULE_DLQ_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from delaymq.message.timed_marks import GroupMarkKind

from delaymq_spark.jobs.columns import Integers, Mask, integers, mask_of, place_of_texts, where
from delaymq_spark.source.schema import TYPES

DELIVERED, WITHDRAWN, PENDING, LOST = OUTCOMES = ("delivered", "withdrawn", "pending", "lost")
REPLACED: Final = "replaced"
"""Outcome of a record whose message is held by a later record: of a timed message, while it is pending."""
NEEDED: Final = "mark_needed"
"""Outcome of a record by which RocketMQ 5 recalls a message."""
CARRIED, RECALLED = "carried", "recalled"
"""Kinds of claims by records of the timer topic, in place of a mark: see `takeovers_of`. The first is also the mark of
a record of the schedule topic that carries a message forward."""
RESCHEDULED: Final = "rescheduled"
"""Mark of a record of the timer topic that holds a message which had a delay level before."""

_ORIGIN_COLUMNS: Final = (
    "queue_id", "queue_offset", "physical_offset", "segment", "size", "store_time", "kind", "reconsume_times",
    "body_crc", "real_topic", "real_queue_id", "delay_level", "due_time", "timer_record", "timer_out_ms", "identity",
    "delay_group", "run",
)  # fmt: skip
_CLAIM_COLUMNS: Final = (
    "topic", "queue_id", "reconsume_times", "body_crc", "delay_level", "store_time", "physical_offset", "mark",
    "origin_queue_id", "origin_offset", "timer_out_ms", "mark_identity", "mark_due_time", "next_due_time", "run",
    "segment", "size",
)  # fmt: skip
_KEYS: Final = (("match_key", pa.string()), ("route", pa.int64()))
ORIGINS: Final = pa.schema([*((name, TYPES[name][1]) for name in _ORIGIN_COLUMNS), *_KEYS])
"""Delayed records."""
CLAIMS: Final = pa.schema(
    [
        *((name, TYPES[name][1]) for name in _CLAIM_COLUMNS),
        *_KEYS,
        ("elsewhere", pa.bool_()),
        ("removable", pa.bool_()),
    ]
)
"""Records that may settle a delayed record: `elsewhere` is not in the real topic, `removable` may be dead itself."""
CHANGES: Final = pa.schema(
    [
        ("group", pa.string()),
        *((name, TYPES[name][1]) for name in ("next_due_time", "physical_offset", "store_time", "segment", "size")),
    ]
)
"""Changes of groups of timed messages, each of which may concern messages of all partitions."""
_OF_GROUPS: Final = tuple(map(str, (GroupMarkKind.CANCELLED, GroupMarkKind.MOVED, GroupMarkKind.FIRED)))
_MULTIPLIER: Final = np.uint64(0x9E3779B97F4A7C15)
"""2^64 divided by the golden ratio (Fibonacci hashing)."""
_FOUND: Final = (
    "elsewhere", "removable", "mark", "store_time", "physical_offset", "segment", "size", "timer_out_ms",
)  # fmt: skip


def origins_of(rows: pa.Table) -> pa.Table:
    """Return the delayed records `rows`, as ORIGINS."""
    key = _match_key(rows)
    # Copies of a record without an identity of its own cannot name it.
    is_stated = pc.is_in(rows["timer_record"], pa.array(["stated", "carried"]))
    names_another = pc.and_(
        pc.equal(rows["timer_record"], "rolled"), pc.not_equal(rows["identity"], rows["physical_offset"])
    )
    stated = mask_of(is_stated) | mask_of(names_another)
    route = pc.if_else(pa.array(stated), rows["identity"], pa.scalar(None, pa.int64()))
    return pa.table([*(rows[name] for name in _ORIGIN_COLUMNS), key, route], schema=ORIGINS)


def may_settle(rows: pa.Table) -> Mask:
    """Return a mask of records that may settle a delayed one, given records outside the topics of delayed records that
    are not fillers.
    """
    in_real_topic = pc.and_kleene(
        pc.equal(rows["real_topic"], rows["topic"]), pc.equal(rows["real_queue_id"], rows["queue_id"])
    )
    by_level = pc.and_kleene(
        pc.and_kleene(pc.greater(rows["delay_level"], 0), in_real_topic), pc.not_equal(rows["kind"], "normal")
    )
    # RocketMQ 5 may remove these two properties.
    by_time = pc.and_(
        pc.and_(pc.is_valid(rows["timer_out_ms"]), pc.is_null(rows["mark"])), pc.fill_null(in_real_topic, True)
    )
    marked = mask_of(pc.is_valid(rows["origin_offset"])) | mask_of(pc.is_valid(rows["mark_identity"]))
    return marked | mask_of(by_level) | mask_of(by_time)


def claims_of(rows: pa.Table, removable: Mask) -> pa.Table:
    """Return the records `rows` of `may_settle`, as CLAIMS.

    A record that names a timed message has two rows, because the message's record may lack an identity of its own.
    """
    # The copy of a run has a unique key of its own.
    is_run = pc.and_(pc.is_valid(rows["run"]), pc.is_null(rows["timer_record"]))
    of_schedule = pc.if_else(is_run, rows["schedule_id"], pa.scalar(None, pa.string()))
    key = pc.coalesce(pc.binary_join_element_wise("k", of_schedule, ""), _match_key(rows))
    elsewhere = pc.is_in(rows["topic"], pa.array([MARKS_TOPIC, SCHEDULE_DLQ_TOPIC, TIMER_TOPIC, SCHEDULE_TOPIC]))
    no_route = pa.nulls(rows.num_rows, pa.int64())
    columns = [*(rows[name] for name in _CLAIM_COLUMNS), key, no_route, elsewhere, pa.array(removable)]
    claims = pa.table(columns, schema=CLAIMS)
    timed = mask_of(pc.is_valid(rows["mark_identity"]))
    if not timed.any():
        return claims
    named = where(claims, timed)
    at = CLAIMS.get_field_index("route")
    return pa.concat_tables([claims, named.set_column(at, CLAIMS.field(at), named["mark_identity"])])


def places_of(rows: pa.Table, count: int) -> Integers:
    """Return the partition (of `count`) of each row of ORIGINS or CLAIMS."""
    # Records of equal size have physical offsets with a common factor, so their remainders are unevenly distributed.
    mixed = (integers(rows["route"]).astype(np.uint64) * _MULTIPLIER) >> np.uint64(32)
    by_identity = (mixed % np.uint64(count)).astype(np.int64)
    return np.where(mask_of(pc.is_valid(rows["route"])), by_identity, place_of_texts(rows["match_key"], count))


def changes_of(rows: pa.Table) -> pa.Table:
    """Return the changes of groups among records of the topic of marks, as CHANGES."""
    changes = where(rows, mask_of(pc.is_in(rows["mark"], pa.array(_OF_GROUPS))))
    return pa.table([groups_of(changes), *(changes[name] for name in CHANGES.names[1:])], schema=CHANGES)


def groups_of(rows: pa.Table) -> pa.ChunkedArray:
    """Return topic and group as a text; null without a group."""
    return pc.binary_join_element_wise(rows["real_topic"], rows["delay_group"], "\x1f")


def takeovers_of(rows: pa.Table) -> pa.Table:
    """Return the claims by records of the timer topic about those of RocketMQ 5.

    A record of DelayMQ that carries one forward takes over its message. A recall ends all messages of a topic with a
    unique key.
    """
    carried, recall = (where(rows, mask_of(pc.equal(rows["timer_record"], kind))) for kind in ("carried", "recall"))
    keys = [
        # RocketMQ 5.3.2 and later put the topic before the key.
        f"k{key.removeprefix(topic or '')}"
        for topic, key in zip(recall["real_topic"].to_pylist(), recall["recalled_key"].to_pylist(), strict=True)
    ]
    return pa.concat_tables(
        [
            _takeover(carried, CARRIED, carried["topic"], _match_key(carried), carried["identity"]),
            _takeover(recall, RECALLED, recall["real_topic"], pa.array(keys, pa.string())),
        ]
    )


def _takeover(
    rows: pa.Table, kind: str, topic: pa.ChunkedArray, key: pa.Array, identity: pa.ChunkedArray | None = None
) -> pa.Table:
    count = rows.num_rows
    special = {
        "topic": topic,
        "mark": pa.repeat(kind, count),
        "mark_identity": pa.nulls(count, pa.int64()) if identity is None else identity,
        "match_key": key,
        "route": pa.nulls(count, pa.int64()),
        "elsewhere": pa.repeat(True, count),
        "removable": pa.repeat(False, count),
    }
    return pa.table(
        [special.get(name, rows[name] if name in rows.column_names else None) for name in CLAIMS.names], schema=CLAIMS
    )


def distinct(claims: pa.Table) -> pa.Table:
    """Return each claim once, if both routes of some have led to this partition."""
    _, firsts = np.unique(integers(claims["physical_offset"]), return_index=True)
    return claims if len(firsts) == claims.num_rows else claims.take(pa.array(np.sort(firsts)))


def paired(origins: pa.Table, copies: pa.Table, *equal: str) -> pa.Table:
    """Return copies without a mark, each with its origin; `origin` is a row of `origins`.

    Both have the same topic, queue, match key and columns `equal`; of several, the n-th copy belongs to the n-th
    origin. Rows with null in one of the columns have no counterpart. Origins are in order of the log.
    """
    if not origins.num_rows or not copies.num_rows:
        return found(copies.slice(0, 0), np.zeros(0, np.int64))
    texts = [_common(origins, "real_topic", "real_queue_id", equal), _common(copies, "topic", "queue_id", equal)]
    numbers = pa.chunked_array([chunk for each in texts for chunk in each.chunks], pa.string())
    kinds = pc.fill_null(numbers.combine_chunks().dictionary_encode().indices, -1).to_numpy().astype(np.int64)
    of_origin, of_copy = kinds[: origins.num_rows], kinds[origins.num_rows :]
    # A stable sort: within a kind, origins stay in the order of the log.
    by_kind = np.argsort(of_origin, kind="stable")
    sorted_kinds = of_origin[by_kind]
    starts = np.searchsorted(sorted_kinds, of_copy, side="left")
    counts = np.searchsorted(sorted_kinds, of_copy, side="right") - starts
    copy_offset = integers(copies["physical_offset"])
    there = (counts > 0) & (of_copy >= 0)
    first_origin = integers(origins["physical_offset"])[by_kind[np.where(there, starts, 0)]]
    there &= copy_offset > first_origin
    rows = np.flatnonzero(there)
    rows = rows[np.lexsort((copy_offset[rows], of_copy[rows]))]
    kind = of_copy[rows]
    nth = np.arange(len(rows)) - np.searchsorted(kind, kind, side="left")
    # If there are more copies than origins, the broker delivered the last one again.
    return found(copies.take(pa.array(rows)), by_kind[starts[rows] + np.minimum(nth, counts[rows] - 1)])


def found(claims: pa.Table, origin: Integers) -> pa.Table:
    """Return claims that settle the rows `origin` of the origins."""
    return pa.table([pa.array(origin, pa.int64()), *(claims[name] for name in _FOUND)], names=["origin", *_FOUND])


def _common(rows: pa.Table, topic: str, queue_id: str, equal: tuple[str, ...]) -> pa.ChunkedArray:
    """Return what an unmarked copy and its origin have in common as a text; null if a part of it is missing."""
    parts = [rows[topic], rows["match_key"], *(rows[name].cast(pa.string()) for name in (queue_id, *equal))]
    return pc.binary_join_element_wise(*parts, "\x1f")


def _match_key(rows: pa.Table) -> pa.ChunkedArray:
    """Return the unique key, or else birth time and body size."""
    born = pc.binary_join_element_wise(
        "b", rows["born_time"].cast(pa.int64()).cast(pa.string()), rows["body_bytes"].cast(pa.string()), ":",
        null_handling="replace",
    )  # fmt: skip
    return pc.coalesce(pc.binary_join_element_wise("k", rows["unique_key"], ""), born)
