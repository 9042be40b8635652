"""Settlement of delayed records, by evidence in the log first, then by the positions.

DelayMQ's copies name their origin by queue and offset. RocketMQ's copies contain no reference: they are matched by
topic, queue, unique key (else birth time and size), reconsume times and level; of several equal ones, the n-th copy
belongs to the n-th origin. Records that may belong together have the same identity, so they meet in the same
partition.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from delaymq.message.names import HALF_TOPIC, MARKS_TOPIC, SCHEDULE_DLQ_TOPIC

from delaymq_spark.jobs.columns import TIME, Integers, Mask, integers, mask_of, where
from delaymq_spark.source.schema import TYPES

DELIVERED, WITHDRAWN, PENDING, LOST = OUTCOMES = ("delivered", "withdrawn", "pending", "lost")

_ORIGIN_COLUMNS: Final = (
    "queue_id", "queue_offset", "physical_offset", "segment", "size", "store_time", "kind", "reconsume_times",
    "real_topic", "real_queue_id", "delay_level", "due_time",
)  # fmt: skip
_CLAIM_COLUMNS: Final = (
    "topic", "queue_id", "reconsume_times", "delay_level", "store_time", "physical_offset", "origin_queue_id",
    "origin_offset", "segment", "size",
)  # fmt: skip
ORIGINS: Final = pa.schema([*((name, TYPES[name][1]) for name in _ORIGIN_COLUMNS), ("identity", pa.string())])
"""Delayed records."""
CLAIMS: Final = pa.schema(
    [
        *((name, TYPES[name][1]) for name in _CLAIM_COLUMNS),
        ("identity", pa.string()),
        ("elsewhere", pa.bool_()),
        ("removable", pa.bool_()),
    ]
)
"""Records that may settle a delayed record: `elsewhere` is not in the real topic, `removable` may be dead itself."""


@dataclass(frozen=True, slots=True)
class Settled:
    """Outcome of the delayed records of a partition."""

    origins: pa.Table
    """ORIGINS with `outcome`, `copies`, `copy_time` and `copy_offset` of the first copy."""
    proofs: pa.Table
    """Removable records that settle one: `segment`, `origin_segment`, `messages` (1 each), `bytes`."""


def origins_of(rows: pa.Table) -> pa.Table:
    """Return the delayed records `rows`, as ORIGINS."""
    columns = [rows[name] for name in _ORIGIN_COLUMNS]
    return pa.table([*columns, _identity(rows)], schema=ORIGINS)


def may_settle(rows: pa.Table) -> Mask:
    """Return a mask of records that may settle a delayed one, given records outside the schedule topic that are not
    fillers.
    """
    copy = pc.and_kleene(
        pc.and_kleene(pc.greater(rows["delay_level"], 0), pc.equal(rows["real_topic"], rows["topic"])),
        pc.and_kleene(pc.equal(rows["real_queue_id"], rows["queue_id"]), pc.not_equal(rows["kind"], "normal")),
    )
    return mask_of(pc.is_valid(rows["origin_offset"])) | mask_of(copy)


def claims_of(rows: pa.Table, removable: Mask) -> pa.Table:
    """Return the records `rows` of `may_settle`, as CLAIMS."""
    columns = [rows[name] for name in _CLAIM_COLUMNS]
    elsewhere = pc.is_in(rows["topic"], pa.array([MARKS_TOPIC, SCHEDULE_DLQ_TOPIC]))
    return pa.table([*columns, _identity(rows), elsewhere, pa.array(removable)], schema=CLAIMS)


def settle(origins: pa.Table, claims: pa.Table, delay_offsets: Mapping[int, int]) -> Settled:
    """Pair the claims of a partition with its origins. `delay_offsets`: level → offset below which all are settled."""
    # Sorted by offset, so that "the n-th" means the same in every run.
    origins = origins.sort_by("physical_offset").combine_chunks()
    offsets = integers(origins["physical_offset"])
    marked = _marked(origins, claims)
    is_settled = np.zeros(len(offsets), np.bool_)
    is_settled[integers(marked["origin"])] = True
    unmarked = _unmarked(where(origins, ~is_settled), where(claims, ~mask_of(pc.is_valid(claims["origin_offset"]))))
    unmarked_origins = np.flatnonzero(~is_settled)[integers(unmarked["origin"])]
    found = pa.concat_tables([marked, unmarked.set_column(0, "origin", pa.array(unmarked_origins, pa.int64()))])
    known = _with_outcome(origins, found, delay_offsets)
    removable = where(found, mask_of(found["removable"]))
    proofs = pa.table(
        {
            "segment": removable["segment"],
            "origin_segment": origins["segment"].take(removable["origin"]),
            "messages": pa.array(np.ones(removable.num_rows, np.int64)),
            "bytes": removable["size"].cast(pa.int64()),
        }
    )
    return Settled(known, proofs)


_FOUND: Final = ("elsewhere", "removable", "store_time", "physical_offset", "segment", "size")


def _identity(rows: pa.Table) -> pa.ChunkedArray:
    born = pc.binary_join_element_wise(
        "b", rows["born_time"].cast(pa.int64()).cast(pa.string()), rows["body_bytes"].cast(pa.string()), ":",
        null_handling="replace",
    )  # fmt: skip
    return pc.coalesce(pc.binary_join_element_wise("k", rows["unique_key"], ""), born)


def _marked(origins: pa.Table, claims: pa.Table) -> pa.Table:
    """Return the claims whose mark names an origin that they copy: clients and other brokers also copy properties."""
    named = where(claims, mask_of(pc.is_valid(claims["origin_offset"])))
    named = named.append_column("claim", pa.array(np.arange(named.num_rows)))
    places = pa.table(
        {
            "origin_queue_id": origins["queue_id"],
            "origin_offset": origins["queue_offset"],
            "origin": pa.array(np.arange(origins.num_rows)),
        }
    )
    wanted = named.select(["origin_queue_id", "origin_offset", "claim"])
    pairs = wanted.join(places, ["origin_queue_id", "origin_offset"], join_type="inner", use_threads=False)
    claim, origin = named.take(pairs["claim"]), origins.take(pairs["origin"])
    same_place = pc.and_kleene(
        pc.equal(claim["topic"], origin["real_topic"]), pc.equal(claim["queue_id"], origin["real_queue_id"])
    )
    fits = (
        mask_of(pc.equal(claim["identity"], origin["identity"]))
        & mask_of(pc.equal(claim["reconsume_times"], origin["reconsume_times"]))
        & (mask_of(claim["elsewhere"]) | mask_of(same_place))
        & mask_of(pc.greater(claim["physical_offset"], origin["physical_offset"]))
    )
    return _found(where(claim, fits), integers(pairs["origin"])[fits])


def _unmarked(origins: pa.Table, copies: pa.Table) -> pa.Table:
    """Return copies without a mark, each with its origin; `origin` is a row of `origins`."""
    if not origins.num_rows or not copies.num_rows:
        return _found(copies.slice(0, 0), np.zeros(0, np.int64))
    equal = pa.concat_tables(
        [
            _what_is_equal(origins, "real_topic", "real_queue_id"),
            _what_is_equal(copies, "topic", "queue_id"),
        ]
    )
    numbers = equal["equal"].combine_chunks().dictionary_encode().indices
    kinds = pc.fill_null(numbers, -1).to_numpy().astype(np.int64)
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
    paired = by_kind[starts[rows] + np.minimum(nth, counts[rows] - 1)]
    return _found(copies.take(pa.array(rows)), paired)


def _what_is_equal(rows: pa.Table, topic: str, queue_id: str) -> pa.Table:
    """Return the common identity of an unmarked copy and its origin as a text; null if a part of it is missing."""
    parts = [rows[topic], rows["identity"]]
    parts += [rows[name].cast(pa.string()) for name in (queue_id, "reconsume_times", "delay_level")]
    return pa.table({"equal": pc.binary_join_element_wise(*parts, "\x1f")})


def _found(claims: pa.Table, origin: Integers) -> pa.Table:
    return pa.table([pa.array(origin, pa.int64()), *(claims[name] for name in _FOUND)], names=["origin", *_FOUND])


def _with_outcome(origins: pa.Table, found: pa.Table, delay_offsets: Mapping[int, int]) -> pa.Table:
    count = origins.num_rows
    is_copy = ~mask_of(found["elsewhere"])
    of_copies = integers(found["origin"])[is_copy]
    copies = np.bincount(of_copies, minlength=count)
    elsewhere = np.bincount(integers(found["origin"])[~is_copy], minlength=count)
    most = np.iinfo(np.int64).max
    copy_time, copy_offset = np.full(count, most), np.full(count, most)
    np.minimum.at(copy_time, of_copies, integers(found["store_time"], most)[is_copy])
    np.minimum.at(copy_offset, of_copies, integers(found["physical_offset"])[is_copy])
    below = _below_position(origins, delay_offsets)
    # RocketMQ intentionally drops delayed messages for the half topic, without a trace.
    dropped = (elsewhere > 0) | (below & mask_of(pc.equal(origins["real_topic"], HALF_TOPIC)))
    outcome = np.select([copies > 0, dropped, below], [0, 1, 3], 2)
    times = pa.array(copy_time, pa.int64(), mask=copy_time == most).cast(TIME)
    return (
        origins.append_column("outcome", pa.array(OUTCOMES).take(pa.array(outcome)))
        .append_column("copies", pa.array(copies, pa.int64()))
        .append_column("copy_time", times)
        .append_column("copy_offset", pa.array(copy_offset, pa.int64(), mask=copy_offset == most))
    )


def _below_position(origins: pa.Table, delay_offsets: Mapping[int, int]) -> Mask:
    """Return whether the broker's offset is beyond a delayed record; queue n of the schedule topic is that of level
    n + 1.
    """
    queues, places = np.unique(integers(origins["queue_id"]), return_inverse=True)
    least = np.iinfo(np.int64).min
    positions = np.array([delay_offsets.get(int(queue) + 1, least) for queue in queues], np.int64)
    below: Mask = integers(origins["queue_offset"]) < positions[places]
    return below
