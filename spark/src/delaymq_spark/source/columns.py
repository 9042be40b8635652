"""Columns of a window's records as Arrow arrays, each computed on first use."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Final
from zlib import crc32

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from delaymq.message.flags import BORN_HOST_IPV6, STORE_HOST_IPV6, TRANSACTION_MASK, TRANSACTION_ROLLBACK
from delaymq.message.group_marks import GroupMark
from delaymq.message.ids import unpack_host
from delaymq.message.levels import DelayLevels
from delaymq.message.names import (
    DELAY,
    DELAY_GROUP,
    DELAY_RUN,
    DELAY_SCHEDULE_ID,
    DLQ_PREFIX,
    DUE,
    HALF_TOPIC,
    KEYS,
    MARK,
    OP_HALF_TOPIC,
    REAL_QUEUE_ID,
    REAL_TOPIC,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    TAGS,
    TIMER_DELETE_UNIQUE_KEY,
    TIMER_OUT_MS,
    TIMER_ROLL_TIMES,
    TIMER_TOPIC,
    UNIQUE_KEY,
    is_system_topic,
)
from delaymq.message.record import (
    BODY_CRC_AT,
    BODY_CRC_MASK,
    BORN_HOST_AT,
    BORN_TIMESTAMP_AT,
    FLAG_AT,
    IPV4_HOST_BYTES,
    IPV6_HOST_BYTES,
    PREPARED_OFFSET_BEHIND_STORE_HOST,
    QUEUE_ID_AT,
    QUEUE_OFFSET_AT,
    STORE_TIMESTAMP_BYTES,
)
from delaymq.message.run_ids import run_id
from delaymq.message.timed_marks import TimedMarkKind

from delaymq_spark.scan.frames import Frames, Window, gather
from delaymq_spark.scan.properties import Properties, digits, mark_parts, numbers, text
from delaymq_spark.scan.statements import KINDS as TIMED_KINDS
from delaymq_spark.scan.statements import NONE, DueStatements, MarkStatements
from delaymq_spark.source.schema import SKIPPED, TYPES

KINDS: Final = ("normal", "delayed", "delivered", "half", "op", "retry", "dead_letter", "system")
_NORMAL, _DELAYED, _DELIVERED, _HALF, _OP, _RETRY, _DEAD_LETTER, _SYSTEM = range(len(KINDS))
_KIND_OF_TOPIC: Final = {SCHEDULE_TOPIC: _DELAYED, TIMER_TOPIC: _DELAYED, HALF_TOPIC: _HALF, OP_HALF_TOPIC: _OP}
TIMER_RECORDS: Final = ("stated", "carried", "rolled", "unstated", "recall")
"""Records of the timer topic: the first one of a message; one that carries it forward; one that RocketMQ 5 stored
again; one that does not state its due time, because RocketMQ 5 wrote it or because the statement is damaged; and one
by which RocketMQ 5 recalls a message.
"""
_STATED, _CARRIED, _ROLLED, _UNSTATED, _RECALL = range(len(TIMER_RECORDS))
_CANCELLED: Final = str(TimedMarkKind.CANCELLED)
_MARGIN_MS: Final = 2 * 86_400_000
"""A producer's clock may have any value. Spark and Python can display the years 1 to 9999. Two days at either end are
excluded: one for the time zone of the machine, one because Python looks that far back for a change of the UTC offset.
"""
_MIN_MS: Final = -62_135_596_800_000 + _MARGIN_MS
_MAX_MS: Final = 253_402_300_799_999 - _MARGIN_MS
_DUE_BYTES: Final = 16 + 1 + 4 + 1 + 20
_OFFSET: Final = "^[0-9]{1,18}$"
"""Pattern of a queue offset that fits 64 bits."""

Mask = npt.NDArray[np.bool_]


def topic_kind(topic: str) -> int:
    """Return the index of the kind of all records of a topic; 0 (normal) if it depends on the properties."""
    if topic in _KIND_OF_TOPIC:
        return _KIND_OF_TOPIC[topic]
    if topic.startswith(RETRY_PREFIX):
        return _RETRY
    if topic.startswith(DLQ_PREFIX):
        return _DEAD_LETTER
    return _SYSTEM if is_system_topic(topic) else _NORMAL


class Rows:
    """Records of one window, with cached intermediate results that several columns share."""

    def __init__(self, window: Window, frames: Frames, levels: DelayLevels, *, verify: bool) -> None:
        self.window = window
        self.frames = frames
        self.levels = levels
        self.verify = verify

    def column(self, name: str) -> pa.Array:
        """Return the values of a column, in the type of the schema."""
        return _BUILDERS[name](self)

    # -- fields at fixed positions -----------------------------------------------------------------------------------

    @cached_property
    def queue_id(self) -> npt.NDArray[np.int32]:
        return self.window.i4[self.frames.position + QUEUE_ID_AT].astype(np.int32)

    @cached_property
    def queue_offset(self) -> npt.NDArray[np.int64]:
        return self.window.i8[self.frames.position + QUEUE_OFFSET_AT].astype(np.int64)

    @cached_property
    def store_ms(self) -> npt.NDArray[np.int64]:
        return self.window.i8[self.frames.store_time_at].astype(np.int64)

    @cached_property
    def store_host_bytes(self) -> npt.NDArray[np.int64]:
        return np.where(self.frames.sys_flag & STORE_HOST_IPV6, IPV6_HOST_BYTES, IPV4_HOST_BYTES)

    @cached_property
    def topics(self) -> pa.DictionaryArray:
        """Topics, dictionary-encoded."""
        raw = gather(self.window.data, self.frames.topic_at, self.frames.topic_bytes).dictionary_encode()
        return pa.DictionaryArray.from_arrays(raw.indices, text(raw.dictionary))

    @cached_property
    def topic_kinds(self) -> npt.NDArray[np.int8]:
        """Kinds by topic alone, as indexes of KINDS; records that recovery wrote over damage are of kind system."""
        by_topic = np.array([topic_kind(topic) for topic in self.topics.dictionary.to_pylist()], np.int8)
        kinds: npt.NDArray[np.int8] = by_topic[self.topics.indices.to_numpy()]
        kinds[(self.frames.sys_flag & TRANSACTION_MASK) == TRANSACTION_ROLLBACK] = _SYSTEM
        return kinds

    def int_after_store_host(self, skip: int) -> npt.NDArray[np.int64]:
        """Return the positions of the field `skip` bytes after the store host."""
        return self.frames.store_time_at + STORE_TIMESTAMP_BYTES + self.store_host_bytes + skip

    # -- properties ----------------------------------------------------------------------------------------------------

    @cached_property
    def properties(self) -> Properties:
        return Properties(gather(self.window.data, self.frames.properties_at, self.frames.properties_bytes))

    @cached_property
    def marks(self) -> tuple[pa.Array, pa.Array, pa.Array]:
        """Kind, queue id and queue offset of marks, of both forms; the latter two only for the schedule topic.

        A message that replaces another one cancels that one.
        """
        kind, queue_id, queue_offset = mark_parts(self.properties.values(MARK))
        stated = self.timed_marks
        if np.any(stated.kind != NONE):
            timed = pa.array(TIMED_KINDS).take(_known(stated.kind))
            kind = pc.coalesce(kind, timed)
            queue_id = pc.coalesce(queue_id, _known(stated.queue_id).cast(pa.int32()))
            queue_offset = pc.coalesce(queue_offset, _known(stated.queue_offset))
        if stated.many:
            kind = self._with_many(kind, lambda mark: str(mark.kind))
        replacing = self.timed_dues.replaced != NONE
        if replacing.any():
            kind = pc.if_else(pa.array(replacing), _CANCELLED, kind)
        return kind, queue_id, queue_offset

    def _with_many(self, values: pa.StringArray, text_of: Callable[[GroupMark], str]) -> pa.StringArray:
        """Replace the values of records with statements about many messages."""
        replaced = values.to_pylist()
        for row, mark in self.timed_marks.many:
            replaced[row] = text_of(mark)
        return pa.array(replaced, pa.string())

    @cached_property
    def delay_group(self) -> pa.StringArray:
        """Group of a timed message, or of those that a statement about many messages concerns."""
        values = self.properties.values(DELAY_GROUP)
        return self._with_many(values, lambda mark: _shown(mark.group)) if self.timed_marks.many else values

    @cached_property
    def next_due_ms(self) -> npt.NDArray[np.int64]:
        """Due time from a mark on; NONE without one."""
        found = self.timed_marks.next_ms.copy()
        for row, mark in self.timed_marks.many:
            found[row] = NONE if mark.next_due_ms is None else mark.next_due_ms
        return found

    @cached_property
    def physical_offset(self) -> npt.NDArray[np.int64]:
        return self.frames.position + self.window.offset

    @cached_property
    def readable(self) -> Mask:
        """Mask of records that are not fillers."""
        mask: Mask = (self.frames.sys_flag & TRANSACTION_MASK) != TRANSACTION_ROLLBACK
        return mask

    @cached_property
    def timed_dues(self) -> DueStatements:
        return DueStatements.of(self.properties, self.physical_offset, self.readable)

    @cached_property
    def timed_marks(self) -> MarkStatements:
        return MarkStatements.of(self.properties, self.physical_offset, self.readable)

    @cached_property
    def timer_out_ms(self) -> pa.Int64Array:
        return digits(self.properties.values(TIMER_OUT_MS))

    @cached_property
    def of_timer(self) -> Mask:
        """Mask of records of the timer topic."""
        of_topic = np.array([topic == TIMER_TOPIC for topic in self.topics.dictionary.to_pylist()], np.bool_)
        mask: Mask = of_topic[self.topics.indices.to_numpy()] & self.readable
        return mask

    @cached_property
    def timer_records(self) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.int64]]:
        """Index in TIMER_RECORDS and identity of each record of the timer topic; -1 and NONE in other topics."""
        timer, dues = self.of_timer, self.timed_dues
        kind, identity = np.full(len(self.frames), -1, np.int8), np.full(len(self.frames), NONE, np.int64)
        if timer.any():
            unstated = dues.identity == NONE
            named = np.where(unstated, self.physical_offset, dues.identity)
            rolled = np.where(unstated, self.properties.pairs_of(TIMER_ROLL_TIMES) >= 0, dues.due_ms == NONE)
            first = named == self.physical_offset
            recall = unstated & (self.properties.pairs_of(TIMER_DELETE_UNIQUE_KEY) >= 0)
            kinds = [_RECALL, _ROLLED, _UNSTATED, _STATED]
            found = np.select([recall, rolled, unstated, first], kinds, _CARRIED)
            kind[timer], identity[timer] = found[timer], named[timer]
        return kind, identity

    @cached_property
    def mark_identity(self) -> npt.NDArray[np.int64]:
        """Identity of the message that a mark of form 2 concerns, or that the message of the record replaces.

        NONE for a record of the schedule topic.

        If the record has no valid mark, it is a hint from a damaged one, or from the due time of a record of DelayMQ
        that RocketMQ 5 copied.
        """
        marks, dues = self.timed_marks, self.timed_dues
        identity = np.where(marks.queue_id != NONE, NONE, marks.identity)
        copied = (identity == NONE) & (marks.kind == NONE) & (dues.due_ms == NONE) & ~self.of_timer
        identity = np.where(dues.replaced != NONE, dues.replaced, identity)
        return np.where(copied, dues.identity, identity)

    @cached_property
    def mark_due_ms(self) -> npt.NDArray[np.int64]:
        """Due time of the message of `mark_identity` until the statement; NONE without a valid one."""
        dues = self.timed_dues
        return np.where(dues.replaced != NONE, dues.replaced_due_ms, self.timed_marks.due_ms)

    @cached_property
    def run(self) -> npt.NDArray[np.int64]:
        """Number of the run that a record delivers or states, or of the last one before a record of the timer topic.

        A copy whose mark is damaged names its run: its unique id is the hash of schedule, identity and number.
        """
        marks = self.timed_marks
        found = np.where(self.of_timer, self.timed_dues.run, marks.run)
        hinted = (marks.kind == NONE) & (marks.identity != NONE) & ~self.of_timer
        if hinted.any() and (self.properties.pairs_of(DELAY_RUN)[hinted] >= 0).any():
            stated = digits(self.properties.values(DELAY_RUN)).fill_null(NONE).to_numpy()
            unique_keys, schedules = self.properties.values(UNIQUE_KEY), self.properties.values(DELAY_SCHEDULE_ID)
            for row in np.flatnonzero(hinted & (stated != NONE)).tolist():
                number, schedule = int(stated[row]), schedules[row].as_py() or ""
                if unique_keys[row].as_py() == run_id(schedule, int(marks.identity[row]), number):
                    found[row] = number
        return found

    @cached_property
    def delay_level(self) -> pa.Int32Array:
        return numbers(self.properties.values(DELAY), bits=32)

    @cached_property
    def real_topic(self) -> pa.StringArray:
        """Topic for which a delayed or half message is intended; copies made by RocketMQ's broker also have it."""
        values = self.properties.values(REAL_TOPIC)
        return self._with_many(values, lambda mark: _shown(mark.topic)) if self.timed_marks.many else values

    @cached_property
    def real_queue_id(self) -> pa.Int32Array:
        return numbers(self.properties.values(REAL_QUEUE_ID), bits=32, whole=True)

    @cached_property
    def kinds(self) -> npt.NDArray[np.int8]:
        """Kinds as in `delaymq.store.tools.record_kinds`; marks, fillers and system topics are of kind system."""
        kinds = self.topic_kinds
        normal = kinds == _NORMAL
        # Due times are parsed even if they are not requested: one of an unknown form must not be ignored.
        dues = self.timed_dues
        delivered = _true(pc.equal(self.marks[0], "delivered"))
        # RocketMQ 5 copies the due time that a record of DelayMQ states.
        copied = (dues.identity != NONE) & (dues.due_ms == NONE)
        if copied.any():
            delivered |= copied & (self.properties.pairs_of(MARK) < 0)
        # RocketMQ's broker writes no marks: its copies keep the properties of the delayed message.
        delayed = (self.properties.pairs_of(DELAY) >= 0) | (self.properties.pairs_of(TIMER_OUT_MS) >= 0)
        if np.any(delayed & normal & ~delivered):
            same_topic = _true(pc.equal(self.real_topic, self.topics.dictionary_decode()))
            same_queue = _true(pc.equal(self.real_queue_id, pa.array(self.queue_id)))
            delivered |= delayed & same_topic & same_queue
        return np.where(normal & delivered, np.int8(_DELIVERED), kinds)

    @cached_property
    def due_ms(self) -> tuple[npt.NDArray[np.int64], Mask]:
        """Due times of delayed records, and a mask of records that have one."""
        level = self.delay_level.fill_null(0).to_numpy().astype(np.int64)
        has = (self.topic_kinds == _DELAYED) & (level > 0) & ~self.of_timer
        delays = np.array((0, *self.levels.delays_ms), np.int64)
        due = self.store_ms + delays[np.clip(level, 0, len(delays) - 1)]
        own, believed = self._own_due()
        due = np.where(believed, own, due)
        if self.of_timer.any():
            requested = self.timer_out_ms.fill_null(NONE).to_numpy()
            due = np.where(self.of_timer, requested, due)
            has |= self.of_timer & (requested != NONE)
        stated = (self.timed_dues.due_ms != NONE) & (self.topic_kinds == _DELAYED)
        return np.where(stated, self.timed_dues.due_ms, due), has | stated

    def _own_due(self) -> tuple[npt.NDArray[np.int64], Mask]:
        """Return values of `__DMQ_DUE`, and the mask of those that match their record's queue and offset."""
        properties = self.properties
        pairs = properties.pairs_of(DUE)
        rows = np.flatnonzero(pairs >= 0)
        rows = rows[properties.value_bytes[pairs[rows]] == _DUE_BYTES]
        due = np.zeros(len(self.frames), np.int64)
        believed = np.zeros(len(self.frames), np.bool_)
        if len(rows):
            digits = properties.bytes_at(properties.value_at[pairs[rows]], _DUE_BYTES).astype(np.int64) - ord("0")
            colons = digits[:, [16, 21]] == ord(":") - ord("0")
            digits = np.delete(digits, [16, 21], axis=1)
            sound = colons.all(axis=1) & ((digits >= 0) & (digits <= 9)).all(axis=1) & (digits[:, 20] == 0)
            tens = 10 ** np.arange(18, -1, -1, dtype=np.int64)
            sound &= (digits[:, 16:20] @ tens[-4:] == self.queue_id[rows]) & (
                digits[:, 21:] @ tens == self.queue_offset[rows]
            )
            due[rows] = digits[:, :16] @ tens[-16:]
            believed[rows] = sound
        return due, believed


def _shown(name: str) -> str:
    """Return a name with U+FFFD in place of invalid UTF-8."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _known(numbers: npt.NDArray[np.int64]) -> pa.Int64Array:
    """Return numbers, with null in place of NONE."""
    missing = numbers == NONE
    return pa.array(numbers, mask=missing if missing.any() else None)


def _timer_record(rows: Rows) -> pa.Array:
    kind = rows.timer_records[0]
    if not rows.of_timer.any():
        return pa.nulls(len(kind), pa.string())
    return pa.array(TIMER_RECORDS).take(pa.array(kind, mask=kind < 0))


def _time_or_none(ms: npt.NDArray[np.int64]) -> pa.Array:
    return _time(ms, ms != NONE)


def _true(array: pa.BooleanArray) -> Mask:
    mask: Mask = array.fill_null(False).to_numpy(zero_copy_only=False)
    return mask


def _int32(rows: Rows, at: npt.NDArray[np.int64]) -> pa.Array:
    return pa.array(rows.window.i4[at].astype(np.int32))


def _int64(rows: Rows, at: npt.NDArray[np.int64]) -> pa.Array:
    return pa.array(rows.window.i8[at].astype(np.int64))


def _time(ms: npt.NDArray[np.int64], there: Mask | None = None) -> pa.Array:
    fits = (ms >= _MIN_MS) & (ms <= _MAX_MS)
    missing = ~fits if there is None else ~(fits & there)
    micros = np.where(fits, ms, 0) * 1000
    return pa.array(micros, pa.timestamp("us", tz="UTC"), mask=missing if missing.any() else None)


def _hosts(rows: Rows, at: npt.NDArray[np.int64], ipv6_flag: int) -> pa.Array:
    """Return `address:port`, with brackets around an IPv6 address; each distinct host is formatted once."""
    widths = np.where(rows.frames.sys_flag & ipv6_flag, IPV6_HOST_BYTES, IPV4_HOST_BYTES)
    encoded = gather(rows.window.data, at, widths).dictionary_encode()
    shown = []
    for packed in encoded.dictionary.to_pylist():
        address, port = unpack_host(packed)
        shown.append(f"[{address}]:{port}" if ":" in address else f"{address}:{port}")
    return pa.array(shown, pa.string()).take(encoded.indices)


def _kind(rows: Rows) -> pa.Array:
    return pa.array(KINDS, pa.string()).take(pa.array(rows.kinds))


def _half_offset(rows: Rows) -> pa.Array:
    """Return the queue offset of the half message that the body of an op mark names; null if it is not a number."""
    frames = rows.frames
    of_topic = np.array([topic == OP_HALF_TOPIC for topic in rows.topics.dictionary.to_pylist()], np.bool_)
    if not of_topic.any():
        return pa.nulls(len(frames), pa.int64())
    there = of_topic[rows.topics.indices.to_numpy()]
    bodies = text(gather(rows.window.data, frames.body_at[there], frames.body_bytes[there]))
    is_number = pc.match_substring_regex(bodies, _OFFSET)
    found = pc.if_else(is_number, bodies, pa.scalar(None, pa.string())).cast(pa.int64())
    return found.take(pa.array(np.cumsum(there, dtype=np.int64) - 1, mask=~there))


def _crc_ok(rows: Rows) -> pa.Array:
    if not rows.verify:
        return pa.nulls(len(rows.frames), pa.bool_())
    data, frames = memoryview(rows.window.data), rows.frames
    stored = rows.window.u4[frames.position + BODY_CRC_AT].astype(np.int64)
    ends = frames.body_at + frames.body_bytes
    computed = [crc32(data[a:b]) & BODY_CRC_MASK for a, b in zip(frames.body_at.tolist(), ends.tolist(), strict=True)]
    return pa.array(np.array(computed, np.int64) == stored)


_BUILDERS: Final[dict[str, Callable[[Rows], pa.Array]]] = {
    "topic": lambda rows: rows.topics.dictionary_decode(),
    "queue_id": lambda rows: pa.array(rows.queue_id),
    "queue_offset": lambda rows: pa.array(rows.queue_offset),
    "physical_offset": lambda rows: pa.array(rows.physical_offset),
    "segment": lambda rows: pa.array(np.full(len(rows.frames), rows.window.segment_base)),
    "size": lambda rows: pa.array(rows.frames.size.astype(np.int32)),
    "store_time": lambda rows: _time(rows.store_ms),
    "born_time": lambda rows: _time(rows.window.i8[rows.frames.position + BORN_TIMESTAMP_AT].astype(np.int64)),
    "flag": lambda rows: _int32(rows, rows.frames.position + FLAG_AT),
    "sys_flag": lambda rows: pa.array(rows.frames.sys_flag.astype(np.int32)),
    "reconsume_times": lambda rows: _int32(rows, rows.int_after_store_host(0)),
    "prepared_offset": lambda rows: _int64(rows, rows.int_after_store_host(PREPARED_OFFSET_BEHIND_STORE_HOST)),
    "born_host": lambda rows: _hosts(rows, rows.frames.position + BORN_HOST_AT, BORN_HOST_IPV6),
    "store_host": lambda rows: _hosts(rows, rows.frames.store_time_at + STORE_TIMESTAMP_BYTES, STORE_HOST_IPV6),
    "body_bytes": lambda rows: pa.array(rows.frames.body_bytes.astype(np.int32)),
    "body_crc": lambda rows: _int32(rows, rows.frames.position + BODY_CRC_AT),
    "kind": _kind,
    "real_topic": lambda rows: rows.real_topic,
    "real_queue_id": lambda rows: rows.real_queue_id,
    "delay_level": lambda rows: rows.delay_level,
    "due_time": lambda rows: _time(*rows.due_ms),
    "keys": lambda rows: rows.properties.values(KEYS),
    "tags": lambda rows: rows.properties.values(TAGS),
    "unique_key": lambda rows: rows.properties.values(UNIQUE_KEY),
    "mark": lambda rows: rows.marks[0],
    "origin_queue_id": lambda rows: rows.marks[1],
    "origin_offset": lambda rows: rows.marks[2],
    "timer_record": _timer_record,
    "timer_out_ms": lambda rows: rows.timer_out_ms,
    "recalled_key": lambda rows: rows.properties.values(TIMER_DELETE_UNIQUE_KEY),
    "identity": lambda rows: _known(rows.timer_records[1]),
    "mark_identity": lambda rows: _known(rows.mark_identity),
    "mark_due_time": lambda rows: _time_or_none(rows.mark_due_ms),
    "next_due_time": lambda rows: _time_or_none(rows.next_due_ms),
    "delay_group": lambda rows: rows.delay_group,
    "run": lambda rows: _known(rows.run),
    "schedule_id": lambda rows: rows.properties.values(DELAY_SCHEDULE_ID),
    "half_offset": _half_offset,
    "crc_ok": _crc_ok,
    "properties": lambda rows: rows.properties.maps(),
    "body": lambda rows: gather(rows.window.data, rows.frames.body_at, rows.frames.body_bytes),
    SKIPPED: lambda rows: pa.nulls(len(rows.frames), pa.string()),
}
assert _BUILDERS.keys() == TYPES.keys()
