"""Settlement of timed messages (docs/decisions/0054-state-facts-about-timed-messages-completely.md).

Marks of DelayMQ name the identity of the message, which is the physical offset of its first record. They need no
comparison with that record. The newest statement about an identity decides, and an end is final. A copy without a
valid mark must be equal to the message: it was made by RocketMQ 5, or its mark is damaged.

A repeating message is pending until its end, and each of its runs is a delivery: a row of its own, without a record of
its own (docs/decisions/0061-repeat-messages-by-marks-of-their-copies.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from delaymq_spark.jobs.claims import (
    CARRIED,
    DELIVERED,
    NEEDED,
    PENDING,
    RECALLED,
    REPLACED,
    WITHDRAWN,
    groups_of,
    paired,
)
from delaymq_spark.jobs.columns import TIME, Integers, Mask, integers, mask_of, where

_MOST: Final = np.iinfo(np.int64).max
_MAX_MS: Final = _MOST // 1_000_000
"""Larger times are none: they cannot be shown."""
_EQUAL: Final = ("reconsume_times", "timer_out_ms", "body_crc")
"""What an unmarked copy has in common with its message, in addition to topic, queue and match key."""


@dataclass(frozen=True, slots=True)
class _Messages:
    """Messages of a partition in ascending order of their identity, and the message of each record."""

    identity: Integers
    of_record: Integers
    """Index of the message of each origin."""
    holder: Integers
    """Index of the origin that holds each message: its newest record. -1: its records are no longer in the log."""
    repeats: Mask
    """Whether each message repeats, according to its records and runs."""

    def index_of(self, identities: Integers) -> Integers:
        """Return the index of each identity; -1 if no record holds such a message."""
        if not len(self.identity):
            return np.full(len(identities), -1, np.int64)
        at = np.minimum(np.searchsorted(self.identity, identities), len(self.identity) - 1)
        there = (self.identity[at] == identities) & (self.holder[at] >= 0)
        return np.where(there, at, -1)


def settle(origins: pa.Table, claims: pa.Table, changes: pa.Table) -> tuple[pa.Table, pa.Table, pa.Table]:
    """Return `origins`, `proofs` and `runs` of `settlements.Settled` for records of the timer topic, in order of the
    log.
    """
    is_copied = mask_of(pc.equal(origins["timer_record"], "rolled")) & ~_names_itself(origins)
    is_copied |= mask_of(pc.equal(origins["timer_record"], "recall"))
    messages = _messages(origins, is_copied)
    is_carried = mask_of(pc.equal(claims["mark"], CARRIED))
    # Records that carry messages with a delay level name no timed message.
    names_one = mask_of(pc.is_valid(claims["mark_identity"]))
    taken = _taken_over(origins, messages, where(claims, is_carried & names_one))
    pairs = _pairs(origins, messages, taken, where(claims, ~is_carried))
    if changes.num_rows:
        pairs = pa.concat_tables([pairs, _of_groups(origins, messages, changes)]).sort_by("physical_offset")
        pairs = pairs.combine_chunks()
    known = _with_outcome(origins, is_copied, messages, taken, pairs)
    proofs = _proofs(where(origins, ~is_copied), messages.of_record[~is_copied], pairs)
    return known, proofs, _runs(known, messages, taken, pairs)


def _names_itself(origins: pa.Table) -> Mask:
    return mask_of(pc.equal(origins["identity"], origins["physical_offset"]))


def _messages(origins: pa.Table, is_copied: Mask) -> _Messages:
    """Return the messages. The records `is_copied` hold nothing: copies of DelayMQ's by RocketMQ 5, and recalls."""
    named = _identities(origins)
    identity, of_record = np.unique(named, return_inverse=True)
    holder = np.full(len(identity), -1, np.int64)
    rows = np.flatnonzero(~is_copied)
    # In order of the log: the last assignment counts.
    holder[of_record[rows]] = rows
    repeats = np.zeros(len(identity), np.bool_)
    repeats[of_record[mask_of(pc.is_valid(origins["run"]))]] = True
    return _Messages(identity, of_record, holder, repeats)


def _identities(origins: pa.Table) -> Integers:
    """Return the identity of the message of each record.

    If RocketMQ 5 stored its own record again, older and newer record have the identity of the newest, as in DelayMQ's
    recovery.
    """
    identity = integers(origins["identity"])
    again = mask_of(pc.equal(origins["timer_record"], "rolled")) & _names_itself(origins)
    if not again.any():
        return identity
    parts = [origins[name].cast(pa.string()) for name in ("real_topic", "real_queue_id", "match_key", *_EQUAL)]
    common = pc.binary_join_element_wise(*parts, "\x1f", null_handling="replace").combine_chunks()
    codes = common.dictionary_encode().indices.to_numpy()
    foreign = np.flatnonzero(again | mask_of(pc.equal(origins["timer_record"], "unstated")))
    rows = foreign[np.argsort(codes[foreign], kind="stable")]
    begins = ~again[rows]
    begins[np.flatnonzero(np.diff(codes[rows], prepend=-1))] = True
    last = np.append(begins[1:], True).nonzero()[0]
    identity = identity.copy()
    identity[rows] = identity[rows[last[np.cumsum(begins) - 1]]]
    return identity


def _taken_over(origins: pa.Table, messages: _Messages, carried: pa.Table) -> Mask:
    """Return whether each message is held by a record of DelayMQ that may be in another partition."""
    taken = np.zeros(len(messages.identity), np.bool_)
    message = messages.index_of(integers(carried["mark_identity"]))
    offset, message = integers(carried["physical_offset"])[message >= 0], message[message >= 0]
    taken[message[offset > integers(origins["physical_offset"])[messages.holder[message]]]] = True
    return taken


def _pairs(origins: pa.Table, messages: _Messages, taken: Mask, claims: pa.Table) -> pa.Table:
    """Return the claims about messages in this partition, in order of the log.

    Columns: those of `_pair_table`.
    """
    has_mark = mask_of(pc.is_valid(claims["mark"]))
    names_one = mask_of(pc.is_valid(claims["mark_identity"]))
    # The unique id of a copy proves the run, even if the mark is damaged.
    is_sound = has_mark | mask_of(pc.is_valid(claims["run"]))
    stated = _own(messages, where(claims, is_sound & names_one))
    messages.repeats[integers(where(stated, mask_of(stated["is_run"]))["message"])] = True
    alike = _alike(origins, messages, where(claims, ~is_sound & names_one))
    settled = np.zeros(len(messages.identity), np.bool_)
    for each in (stated, alike):
        settled[integers(where(each, mask_of(each["is_end"]))["message"])] = True
    # Only messages without an identity of their own: the copies of others name it.
    holders = messages.holder[messages.holder >= 0]
    is_foreign = ~_has_identity(origins) & ~taken[messages.of_record]
    holders = holders[is_foreign[holders]]
    recalled = _recalled(origins, holders, messages, where(claims, mask_of(pc.equal(claims["mark"], RECALLED))))
    candidates = np.sort(holders[~settled[messages.of_record[holders]]])
    copies = where(claims, ~has_mark & ~names_one & mask_of(pc.is_valid(claims["timer_out_ms"])))
    pairs = paired(origins.take(pa.array(candidates)), copies, *_EQUAL)
    message = messages.of_record[candidates[integers(pairs["origin"])]]
    unmarked = _foreign(pairs, message, messages)
    return pa.concat_tables([stated, alike, unmarked, recalled]).sort_by("physical_offset").combine_chunks()


_TAKEN: Final = ("physical_offset", "store_time", "segment", "size", "removable")


def _pair_table(
    claims: pa.Table, message: Integers, *, is_end: pa.Array | pa.ChunkedArray, **more: pa.Array | pa.ChunkedArray
) -> pa.Table:
    """Return claims with the indexes of their messages.

    Further columns, with their defaults: `is_end`, `is_delivery`, `is_copy`, `is_run` (false), `due` and `next` (µs,
    none), and of a run, `run` (its number; none if RocketMQ 5 delivered it; 0: no run) and `run_time` (µs, none).
    """
    count = claims.num_rows
    no, no_time = pa.repeat(False, count), pa.nulls(count, TIME)
    defaults = {
        "is_delivery": no, "is_copy": no, "is_run": no, "due": no_time, "next": no_time,
        "run": pa.nulls(count, pa.int64()), "run_time": no_time,
    }  # fmt: skip
    assert more.keys() <= defaults.keys()
    taken = {name: claims[name] for name in _TAKEN}
    return pa.table({"message": pa.array(message, pa.int64()), "is_end": is_end, **defaults, **more, **taken})


def _own(messages: _Messages, claims: pa.Table) -> pa.Table:
    """Return the pairs of DelayMQ's own statements."""
    message = messages.index_of(integers(claims["mark_identity"]))
    fits = (message >= 0) & mask_of(pc.greater(claims["physical_offset"], claims["mark_identity"]))
    claims, message = where(claims, fits), message[fits]
    is_damaged = pc.is_null(claims["mark"])
    is_delivery = pc.or_(is_damaged, pc.fill_null(pc.equal(claims["mark"], DELIVERED), False))
    is_copy = pc.and_(is_delivery, pc.invert(claims["elsewhere"]))
    return _pair_table(
        claims,
        message,
        is_end=pc.and_(pc.is_null(claims["next_due_time"]), pc.invert(is_damaged)),
        is_delivery=is_delivery,
        is_copy=is_copy,
        # A run that only a mark states may be 0: RocketMQ 5 had delivered the message before its first run.
        is_run=pc.and_(is_delivery, pc.fill_null(pc.greater(claims["run"], 0), False)),
        due=claims["mark_due_time"],
        next=claims["next_due_time"],
        run=pc.if_else(is_delivery, claims["run"], pa.scalar(None, pa.int64())),
        run_time=pc.coalesce(pc.if_else(is_copy, _run_times(claims), pa.scalar(None, TIME)), claims["mark_due_time"]),
    )


def _run_times(claims: pa.Table) -> pa.Array:
    """Return the time of the run that each copy delivers."""
    ms = integers(claims["timer_out_ms"], _MOST)
    return _times(np.where(ms <= _MAX_MS, np.minimum(ms, _MAX_MS) * 1_000, _MOST))


def _of_groups(origins: pa.Table, messages: _Messages, changes: pa.Table) -> pa.Table:
    """Return the pairs of changes of groups: for each message, the first one that ends it, and the last move before.

    A change concerns the messages of its group whose first records are before it.
    """
    changes = changes.sort_by("physical_offset").combine_chunks()
    offsets, count = integers(changes["physical_offset"]), changes.num_rows
    message = np.flatnonzero(messages.holder >= 0)
    groups = groups_of(origins.take(pa.array(messages.holder[message])))
    known, code = np.unique(np.array(changes["group"].to_pylist(), np.object_), return_inverse=True)
    of_message = pc.fill_null(pc.index_in(groups, pa.array(known.tolist(), pa.string())), -1)
    group = of_message.to_numpy().astype(np.int64)
    message, group = message[group >= 0], group[group >= 0]
    # A number for each change, ascending by group and then by place in the log.
    base, numbers = group * (count + 1), code.astype(np.int64) * (count + 1) + np.arange(count)
    first = np.searchsorted(offsets, messages.identity[message], side="right")
    is_end = mask_of(pc.is_null(changes["next_due_time"]))
    ends, moves = np.sort(numbers[is_end]), np.sort(numbers[~is_end])
    end = np.append(ends, _MOST)[np.searchsorted(ends, base + first)]
    is_ended = end < base + count
    move = np.append(moves, -1)[np.searchsorted(moves, np.where(is_ended, end, base + count)) - 1]
    is_moved = move >= base + first
    chosen = changes.take(pa.array(np.concatenate([(end - base)[is_ended], (move - base)[is_moved]])))
    return _pair_table(
        chosen.append_column("removable", pa.repeat(False, chosen.num_rows)),
        np.concatenate([message[is_ended], message[is_moved]]),
        is_end=pc.is_null(chosen["next_due_time"]),
        next=chosen["next_due_time"],
    )


def _alike(origins: pa.Table, messages: _Messages, claims: pa.Table) -> pa.Table:
    """Return the pairs of copies without a valid mark that name a message, and are equal to it."""
    message = messages.index_of(integers(claims["mark_identity"]))
    claims, message = where(claims, message >= 0), message[message >= 0]
    origin = origins.take(pa.array(messages.holder[message]))
    fits = mask_of(pc.greater(claims["physical_offset"], claims["mark_identity"]))
    for ours, theirs in (
        ("topic", "real_topic"), ("queue_id", "real_queue_id"), ("match_key", "match_key"),
        ("reconsume_times", "reconsume_times"), ("body_crc", "body_crc"),
    ):  # fmt: skip
        fits &= mask_of(pc.equal(claims[ours], origin[theirs]))
    return _foreign(where(claims, fits), message[fits], messages)


def _recalled(origins: pa.Table, holders: Integers, messages: _Messages, recalls: pa.Table) -> pa.Table:
    """Return the pairs of recalls by RocketMQ 5, each of which ends all equal messages before it."""
    held = origins.take(pa.array(holders))
    targets = pa.table(
        {
            "message": pa.array(messages.of_record[holders], pa.int64()),
            "topic": held["real_topic"],
            "match_key": held["match_key"],
            "before": held["physical_offset"],
        }
    )
    both = recalls.select(["topic", "match_key", *_TAKEN]).join(
        targets, ["topic", "match_key"], join_type="inner", use_threads=False
    )
    both = where(both, mask_of(pc.less(both["before"], both["physical_offset"])))
    return _pair_table(both, integers(both["message"]), is_end=pa.repeat(True, both.num_rows))


def _foreign(claims: pa.Table, message: Integers, messages: _Messages) -> pa.Table:
    """Return the pairs of copies without a valid mark. Each ends its message, unless that one repeats."""
    yes, repeats = pa.repeat(True, len(message)), messages.repeats[message]
    return _pair_table(
        claims, message, is_end=pa.array(~repeats), is_delivery=yes, is_copy=yes, is_run=pa.array(repeats),
        run_time=_run_times(claims),
    )  # fmt: skip


def _with_outcome(origins: pa.Table, is_copied: Mask, messages: _Messages, taken: Mask, pairs: pa.Table) -> pa.Table:
    count = len(messages.identity)
    pending_due = _newest_due(origins, is_copied, messages, pairs)
    ends = where(pairs, mask_of(pairs["is_end"]))
    copies = where(ends, mask_of(ends["is_copy"]))
    # Ascending by offset: the first occurrence of a message is its first end.
    copied, first_copy = np.unique(integers(copies["message"]), return_index=True)
    ended, first_end = np.unique(integers(ends["message"]), return_index=True)
    due = pending_due.copy()
    for settled, rows, table in ((ended, first_end, ends), (copied, first_copy, copies)):
        stated = table["due"].take(pa.array(rows))
        due[settled] = np.where(mask_of(pc.is_valid(stated)), integers(stated), due[settled])
    outcome = np.full(count, 0)
    outcome[ended] = np.where(mask_of(ends["is_delivery"].take(pa.array(first_end))), 1, 2)
    outcome[copied] = 1
    copy_time, copy_offset = np.full(count, _MOST), np.full(count, _MOST)
    copy_time[copied] = integers(copies["store_time"], _MOST)[first_copy]
    copy_offset[copied] = integers(copies["physical_offset"])[first_copy]
    number = np.bincount(integers(copies["message"]), minlength=count)
    holds = np.zeros(origins.num_rows, np.bool_)
    holds[messages.holder[(messages.holder >= 0) & ~taken]] = True
    # The last run stands for a repeating message that has ended with it.
    by_run = mask_of(pc.and_(ends["is_delivery"], pc.is_valid(ends["run"])))[first_end]
    last_holders = messages.holder[ended[by_run]]
    holds[last_holders[last_holders >= 0]] = False
    of_record = messages.of_record
    # What RocketMQ 5 stored again without DelayMQ's statement may be all that remains of the message.
    is_replaced = (
        ~holds & (outcome[of_record] == 0) & (is_copied | taken[of_record] | _is_carried_by(origins, messages))
    )
    is_recall = mask_of(pc.equal(origins["timer_record"], "recall"))
    number_of = np.where(is_recall, 4, np.where(is_replaced, 3, outcome[of_record]))
    names = pa.array([PENDING, DELIVERED, WITHDRAWN, REPLACED, NEEDED])
    due_time = np.where(is_copied, _MOST, due[of_record])
    return (
        origins.set_column(origins.column_names.index("due_time"), "due_time", _times(due_time))
        .append_column("outcome", names.take(pa.array(number_of)))
        .append_column("copies", pa.array(number[of_record], pa.int64()))
        .append_column("copy_time", _times(copy_time[of_record]))
        .append_column("copy_offset", pa.array(copy_offset[of_record], mask=copy_offset[of_record] == _MOST))
        .append_column("holds", pa.array(holds))
    )


def _is_carried_by(origins: pa.Table, messages: _Messages) -> Mask:
    """Return whether a record of DelayMQ holds the message of each record."""
    holder = messages.holder[messages.of_record]
    mask: Mask = (holder >= 0) & _has_identity(origins)[holder]
    return mask


def _has_identity(origins: pa.Table) -> Mask:
    return mask_of(pc.is_in(origins["timer_record"], pa.array(["stated", "carried"])))


def _newest_due(origins: pa.Table, is_copied: Mask, messages: _Messages, pairs: pa.Table) -> Integers:
    """Return the due time (µs) of each message by the newest statement that is not an end; _MOST: unknown."""
    moves = where(pairs, mask_of(pc.is_valid(pairs["next"])))
    holders = where(origins, ~is_copied)
    message = np.concatenate([messages.of_record[~is_copied], integers(moves["message"])])
    offset = np.concatenate([integers(each["physical_offset"]) for each in (holders, moves)])
    due = np.concatenate([integers(holders["due_time"], _MOST), integers(moves["next"])])
    found = np.full(len(messages.identity), _MOST)
    order = np.argsort(offset, kind="stable")
    found[message[order]] = due[order]
    return found


def _runs(known: pa.Table, messages: _Messages, taken: Mask, pairs: pa.Table) -> pa.Table:
    """Return a row for each run of repeating messages: the record that holds the message, with the outcome of the run.

    A run that is stated by a mark alone, because the mark of its copy is damaged beyond recognition, has no copy.
    """
    runs = where(pairs, mask_of(pairs["is_run"]))
    runs = where(runs, ~taken[integers(runs["message"])]).combine_chunks()
    number, times = integers(runs["run"], -1), integers(runs["run_time"], _MOST)
    # RocketMQ 5 does not number runs.
    keys = np.stack([integers(runs["message"]), number, np.where(number < 0, times, 0)])
    _, first, run = np.unique(keys, axis=1, return_index=True, return_inverse=True)
    run = run.reshape(-1)
    is_copy = mask_of(runs["is_copy"])
    # Ascending by offset: the first occurrence is the first copy.
    copied, first_copy = np.unique(run[is_copy], return_index=True)
    first_copy = np.flatnonzero(is_copy)[first_copy]
    first[copied] = first_copy
    copy_time, copy_offset = np.full(len(first), _MOST), np.full(len(first), _MOST)
    copy_time[copied] = integers(runs["store_time"], _MOST)[first_copy]
    copy_offset[copied] = integers(runs["physical_offset"])[first_copy]
    values = {
        "due_time": _times(times[first]),
        "outcome": pa.repeat(DELIVERED, len(first)),
        "copies": pa.array(np.bincount(run[is_copy], minlength=len(first)), pa.int64()),
        "copy_time": _times(copy_time),
        "copy_offset": pa.array(copy_offset, mask=copy_offset == _MOST),
        "holds": pa.repeat(True, len(first)),
        "run": runs["run"].take(pa.array(first)),
    }
    rows = known.take(pa.array(messages.holder[integers(runs["message"])[first]]))
    return pa.table({name: values.get(name, rows[name]) for name in rows.column_names})


def _is_needed(pairs: pa.Table) -> Mask:
    """Return whether each statement is an end, or the newest one or the newest run of its message: it states what
    follows, and the number of the last run.
    """
    message = integers(pairs["message"])
    needed: Mask = mask_of(pairs["is_end"])
    for rows in (np.arange(len(message)), np.flatnonzero(mask_of(pairs["is_run"]))):
        # Ascending by offset: the last occurrence is the newest.
        _, newest = np.unique(message[rows][::-1], return_index=True)
        needed[rows[::-1][newest]] = True
    return needed


def _proofs(holders: pa.Table, of_record: Integers, pairs: pa.Table) -> pa.Table:
    """Return the removable statements about each message, once for each segment that has an older record of it."""
    removable = where(pairs, mask_of(pairs["removable"]) & _is_needed(pairs))
    records = pa.table(
        {
            "message": pa.array(of_record, pa.int64()),
            "origin_segment": holders["segment"],
            "origin_offset": holders["physical_offset"],
        }
    )
    both = removable.join(records, "message", join_type="inner", use_threads=False)
    both = where(both, mask_of(pc.less(both["origin_offset"], both["physical_offset"])))
    once = both.group_by(["physical_offset", "segment", "origin_segment", "size"], use_threads=False).aggregate([])
    return pa.table(
        {
            "segment": once["segment"],
            "origin_segment": once["origin_segment"],
            "messages": pa.array(np.ones(once.num_rows, np.int64)),
            "bytes": once["size"].cast(pa.int64()),
        }
    )


def _times(micros: Integers) -> pa.Array:
    return pa.array(micros, pa.int64(), mask=micros == _MOST).cast(TIME)
