"""Settlement of delayed records, by evidence in the log first, then by the positions.

DelayMQ's copies name their origin: a record of a delay level by queue and offset, a timed message by its identity
(`timed_settlements`). RocketMQ's copies contain no reference: they are matched by topic, queue, unique key (else birth
time and size), reconsume times and level; of several equal ones, the n-th copy belongs to the n-th origin.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from delaymq.message.names import HALF_TOPIC

from delaymq_spark.jobs import timed_settlements
from delaymq_spark.jobs.claims import CARRIED, CHANGES, OUTCOMES, REPLACED, RESCHEDULED, distinct, found, paired
from delaymq_spark.jobs.columns import TIME, Mask, integers, mask_of, where

NO_CHANGES: Final = CHANGES.empty_table()


@dataclass(frozen=True, slots=True)
class Settled:
    """Outcome of the delayed records of a partition."""

    origins: pa.Table
    """ORIGINS with `outcome`, `copies`, `copy_time` and `copy_offset` of the first copy, and `holds`: whether the
    record stands for its message. The other records of a timed message only take up space.
    """
    proofs: pa.Table
    """Removable records that settle one: `segment`, `origin_segment`, `messages` (1 each), `bytes`."""
    runs: pa.Table
    """Runs of repeating messages, in addition to the messages: the columns of `origins`."""


def settle(
    origins: pa.Table, claims: pa.Table, delay_offsets: Mapping[int, int], changes: pa.Table = NO_CHANGES
) -> Settled:
    """Pair the claims of a partition, and changes of groups, with its origins.

    `delay_offsets`: level → offset below which all are settled.
    """
    # Sorted by offset, so that "the n-th" means the same in every run.
    origins = origins.sort_by("physical_offset").combine_chunks()
    claims = distinct(claims)
    timed = mask_of(pc.is_valid(origins["timer_record"]))
    if not timed.any():
        return _settle_levels(origins, claims, delay_offsets)
    levels = _settle_levels(where(origins, ~timed), claims, delay_offsets)
    known, proofs, runs = timed_settlements.settle(where(origins, timed), claims, changes)
    return Settled(
        pa.concat_tables([levels.origins, known.select(levels.origins.column_names)]),
        pa.concat_tables([levels.proofs, proofs.select(levels.proofs.column_names)]),
        runs.select(levels.origins.column_names),
    )


def _settle_levels(origins: pa.Table, claims: pa.Table, delay_offsets: Mapping[int, int]) -> Settled:
    names_level = mask_of(pc.is_valid(claims["origin_offset"]))
    marked = _marked(origins, where(claims, names_level))
    is_settled = np.zeros(origins.num_rows, np.bool_)
    is_settled[integers(marked["origin"])] = True
    names_nothing = ~names_level & mask_of(pc.is_null(claims["mark_identity"]))
    unmarked = paired(where(origins, ~is_settled), where(claims, names_nothing), "reconsume_times", "delay_level")
    unmarked_origins = np.flatnonzero(~is_settled)[integers(unmarked["origin"])]
    pairs = pa.concat_tables([marked, unmarked.set_column(0, "origin", pa.array(unmarked_origins, pa.int64()))])
    known = _with_outcome(origins, pairs, delay_offsets)
    removable = where(pairs, mask_of(pairs["removable"]))
    proofs = pa.table(
        {
            "segment": removable["segment"],
            "origin_segment": origins["segment"].take(removable["origin"]),
            "messages": pa.array(np.ones(removable.num_rows, np.int64)),
            "bytes": removable["size"].cast(pa.int64()),
        }
    )
    return Settled(known, proofs, known.slice(0, 0))


def _marked(origins: pa.Table, named: pa.Table) -> pa.Table:
    """Return the claims whose mark names an origin that they copy: clients and other brokers also copy properties."""
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
        mask_of(pc.equal(claim["match_key"], origin["match_key"]))
        & mask_of(pc.equal(claim["reconsume_times"], origin["reconsume_times"]))
        & (mask_of(claim["elsewhere"]) | mask_of(same_place))
        & mask_of(pc.greater(claim["physical_offset"], origin["physical_offset"]))
    )
    return found(where(claim, fits), integers(pairs["origin"])[fits])


def _with_outcome(origins: pa.Table, pairs: pa.Table, delay_offsets: Mapping[int, int]) -> pa.Table:
    count = origins.num_rows
    is_copy = ~mask_of(pairs["elsewhere"])
    of_copies = integers(pairs["origin"])[is_copy]
    copies = np.bincount(of_copies, minlength=count)
    elsewhere = np.bincount(integers(pairs["origin"])[~is_copy], minlength=count)
    most = np.iinfo(np.int64).max
    copy_time, copy_offset = np.full(count, most), np.full(count, most)
    np.minimum.at(copy_time, of_copies, integers(pairs["store_time"], most)[is_copy])
    np.minimum.at(copy_offset, of_copies, integers(pairs["physical_offset"])[is_copy])
    below = _below_position(origins, delay_offsets)
    # RocketMQ intentionally drops delayed messages for the half topic, without a trace.
    dropped = (elsewhere > 0) | (below & mask_of(pc.equal(origins["real_topic"], HALF_TOPIC)))
    carried = np.zeros(count, np.bool_)
    is_held_later = mask_of(pc.is_in(pairs["mark"], pa.array([CARRIED, RESCHEDULED])))
    carried[integers(pairs["origin"])[is_held_later]] = True
    carried &= copies == 0
    outcome = np.select([copies > 0, carried, dropped, below], [0, len(OUTCOMES), 1, 3], 2)
    times = pa.array(copy_time, pa.int64(), mask=copy_time == most).cast(TIME)
    return (
        origins.append_column("outcome", pa.array([*OUTCOMES, REPLACED]).take(pa.array(outcome)))
        .append_column("copies", pa.array(copies, pa.int64()))
        .append_column("copy_time", times)
        .append_column("copy_offset", pa.array(copy_offset, pa.int64(), mask=copy_offset == most))
        .append_column("holds", pa.array(~carried))
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
