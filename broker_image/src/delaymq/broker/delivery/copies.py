"""Outcome of a due message: its copy, its dead letter, or a mark alone."""

from __future__ import annotations

from enum import Enum, auto
from functools import lru_cache

from delaymq.broker.delivery.settlement import real_queue_id
from delaymq.message import names
from delaymq.message.marks import MarkKind
from delaymq.message.properties import MAX_PROPERTIES_BYTES
from delaymq.message.record import Record
from delaymq.store.model import NewRecord

_CLOSED = frozenset({names.SCHEDULE_TOPIC, names.OP_HALF_TOPIC, names.MARKS_TOPIC})
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
    topic = properties.get(names.REAL_TOPIC, "")
    queue_id = real_queue_id(properties)
    fate = _fate_of_topic(topic) if queue_id >= 0 else Fate.DEAD
    if refused:
        fate = Fate.REFUSED
    kind = MarkKind.DELIVERED
    if fate is Fate.DEAD:
        topic, queue_id, kind = names.SCHEDULE_DLQ_TOPIC, 0, MarkKind.DROPPED
    elif fate is not Fate.DELIVERED:
        topic, queue_id, kind = names.MARKS_TOPIC, 0, MarkKind.DROPPED
    mark = f"{kind.value}:{record.queue_id}:{record.queue_offset}:{record.physical_offset}"
    # Ingress reserves space for the mark. A foreign record may lack space; its copy is then identified without a mark.
    if len(record.raw_properties) + len(names.MARK) + len(mark) + 2 <= MAX_PROPERTIES_BYTES:
        properties[names.MARK] = mark
    else:
        properties.pop(names.MARK, None)
    return fate, NewRecord(
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
    )


def mark_of_unreadable(queue_id: int, offset: int, physical_offset: int, now_ms: int, host: bytes) -> NewRecord:
    """Return the record to append for an entry whose record cannot be read: a mark alone."""
    mark = f"{MarkKind.DROPPED.value}:{queue_id}:{offset}:{physical_offset}"
    return NewRecord(names.MARKS_TOPIC, 0, b"", {names.MARK: mark}, 0, 0, now_ms, host, host)
