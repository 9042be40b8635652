"""What becomes of a delayed message when it is due: its copy, its dead letter, or a mark alone."""

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
"""Topics that the broker itself keeps; a delayed message must not get in (the half topic is RocketMQ's special
case).
"""


class Fate(Enum):
    """How a due message ends."""

    DELIVERED = auto()
    DEAD = auto()
    """It has no real topic, or one that cannot be: it goes to the dead letters."""
    DROPPED = auto()
    """It is for the half topic: RocketMQ drops it, and so do we."""
    REFUSED = auto()
    """Overdue, and whoever restored the store said that such messages are dropped."""


@lru_cache(maxsize=4096)
def _fate_of_topic(topic: str) -> Fate:
    if topic == names.HALF_TOPIC:
        return Fate.DROPPED
    if topic in _CLOSED or names.topic_problem(topic) is not None:
        return Fate.DEAD
    return Fate.DELIVERED


def copy_of(record: Record, properties: dict[str, str], *, refused: bool = False) -> tuple[Fate, NewRecord]:
    """What is appended for a due `record`; `properties` are its own, parsed, and get the mark.

    `refused`: it is not delivered, and what is appended stands among the marks: with its body, as evidence.

    Body, flags, born time and host, store host, reconsume times and properties stay, DELAY, REAL_TOPIC, REAL_QID and
    the due time among them: so lateness can be computed from the log alone.
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
    # Ingress keeps room for the mark; a foreign record may have none, and its copy is then found without.
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
    """What is appended for an entry whose record cannot be read: a mark alone."""
    mark = f"{MarkKind.DROPPED.value}:{queue_id}:{offset}:{physical_offset}"
    return NewRecord(names.MARKS_TOPIC, 0, b"", {names.MARK: mark}, 0, 0, now_ms, host, host)
