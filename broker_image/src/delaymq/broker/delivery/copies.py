"""Outcome of a due message: its copy, its dead letter, or a mark alone."""

from __future__ import annotations

from enum import Enum, auto
from functools import lru_cache

from delaymq.broker.delivery.settlement import real_queue_id
from delaymq.message import names
from delaymq.message.marks import MarkKind
from delaymq.message.properties import MAX_PROPERTIES_BYTES
from delaymq.message.record import Record
from delaymq.message.timed_marks import Statement, TimedMark, TimedMarkKind
from delaymq.schedule.timeline import Pending
from delaymq.store.model import NewRecord

_CLOSED = frozenset({names.SCHEDULE_TOPIC, names.TIMER_TOPIC, names.OP_HALF_TOPIC, names.MARKS_TOPIC})
"""Topics that only the broker writes to. Delayed messages must not be delivered to them. The half topic is RocketMQ's
special case."""


class Fate(Enum):
    """Outcome of a due message."""

    DELIVERED = auto()
    DEAD = auto()
    """It has no valid real topic and is moved to the dead-letter topic."""
    DROPPED = auto()
    """Its real topic is the half topic: it is dropped, as in RocketMQ."""
    REFUSED = auto()
    """It is overdue, and the delivery policy drops such messages."""


@lru_cache(maxsize=4096)
def _fate_of_topic(topic: str) -> Fate:
    if topic == names.HALF_TOPIC:
        return Fate.DROPPED
    if topic in _CLOSED or names.topic_problem(topic) is not None:
        return Fate.DEAD
    return Fate.DELIVERED


def copy_of(record: Record, properties: dict[str, str], *, refused: bool = False) -> tuple[Fate, NewRecord]:
    """Return the outcome of a due `record`, and the record to append.

    `properties` are those of `record`, parsed; the mark is added to them. With `refused`, the message is not delivered:
    the record to append belongs to the topic of marks, and keeps the body as evidence.

    Body, flags, birth time and host, store host, reconsume times and properties are kept. These include DELAY,
    REAL_TOPIC, REAL_QID and the due time, so that lateness can be computed from the log alone.
    """
    fate, topic, queue_id = _destination(properties, refused=refused)
    kind = MarkKind.DELIVERED if fate is Fate.DELIVERED else MarkKind.DROPPED
    mark = f"{kind.value}:{record.queue_id}:{record.queue_offset}:{record.physical_offset}"
    # Ingress reserves space for the mark. A foreign record may lack space; its copy is then identified without a mark.
    if len(record.raw_properties) + len(names.MARK) + len(mark) + 2 <= MAX_PROPERTIES_BYTES:
        properties[names.MARK] = mark
    else:
        properties.pop(names.MARK, None)
    return fate, _copy(record, topic, queue_id, properties, None)


def timed_copy_of(
    record: Record, properties: dict[str, str], pending: Pending, now_ms: int, *, refused: bool = False
) -> tuple[Fate, NewRecord]:
    """Return the outcome of a due timed message, and the record to append, like `copy_of`.

    The copy states its mark, which names the due time, and not the due time again; it does not name the account.
    """
    fate, topic, queue_id = _destination(properties, refused=refused)
    kind = TimedMarkKind.DELIVERED if fate is Fate.DELIVERED else TimedMarkKind.DROPPED
    properties.pop(names.DUE, None)
    properties.pop(names.ACCOUNT, None)
    properties.pop(names.MARK, None)
    statement = _timed_mark(pending, kind, now_ms)
    if len(record.raw_properties) + statement.property_bytes > MAX_PROPERTIES_BYTES:
        return fate, _copy(record, topic, queue_id, properties, None)
    return fate, _copy(record, topic, queue_id, properties, statement)


def mark_of_unreadable_timed(pending: Pending, topic: str, now_ms: int, host: bytes) -> NewRecord:
    """Return the record to append for a timed message whose record cannot be read: a mark alone."""
    properties = {names.REAL_TOPIC: topic} if topic else {}
    statement = _timed_mark(pending, TimedMarkKind.DROPPED, now_ms)
    return NewRecord(names.MARKS_TOPIC, 0, b"", properties, 0, 0, now_ms, host, host, statement=statement)


def _timed_mark(pending: Pending, kind: TimedMarkKind, now_ms: int) -> Statement:
    return TimedMark(
        place=0,
        kind=kind,
        decided_ms=now_ms,
        identity=pending.identity,
        record=pending.record,
        due_ms=pending.due_ms,
    ).statement()


def _destination(properties: dict[str, str], *, refused: bool) -> tuple[Fate, str, int]:
    """Return the outcome of a message, and topic and queue of the record to append."""
    topic = properties.get(names.REAL_TOPIC, "")
    queue_id = real_queue_id(properties)
    fate = _fate_of_topic(topic) if queue_id >= 0 else Fate.DEAD
    if refused:
        fate = Fate.REFUSED
    if fate is Fate.DEAD:
        return fate, names.SCHEDULE_DLQ_TOPIC, 0
    return (fate, topic, queue_id) if fate is Fate.DELIVERED else (fate, names.MARKS_TOPIC, 0)


def _copy(
    record: Record, topic: str, queue_id: int, properties: dict[str, str], statement: Statement | None
) -> NewRecord:
    return NewRecord(
        topic,
        queue_id,
        record.body,
        properties,
        record.flag,
        record.sys_flag,
        record.born_timestamp_ms,
        record.born_host,
        record.store_host,
        record.reconsume_times,
        record.prepared_transaction_offset,
        is_copy=True,
        statement=statement,
    )


def mark_of_unreadable(queue_id: int, offset: int, physical_offset: int, now_ms: int, host: bytes) -> NewRecord:
    """Return the record to append for an entry whose record cannot be read: a mark alone."""
    mark = f"{MarkKind.DROPPED.value}:{queue_id}:{offset}:{physical_offset}"
    return NewRecord(names.MARKS_TOPIC, 0, b"", {names.MARK: mark}, 0, 0, now_ms, host, host)
