"""Outcome of a due message: its copy, its dead letter, or a mark alone."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from functools import lru_cache
from typing import Final, NamedTuple

from delaymq.broker.delivery.settlement import real_queue_id
from delaymq.message import names
from delaymq.message.marks import MarkKind
from delaymq.message.properties import MAX_PROPERTIES_BYTES
from delaymq.message.record import Record
from delaymq.message.timed_marks import Statement, TimedMarkKind, end_of
from delaymq.schedule.timeline import Pending
from delaymq.store.model import NewRecord, Reserve, again

_CLOSED = frozenset({names.SCHEDULE_TOPIC, names.TIMER_TOPIC, names.OP_HALF_TOPIC, names.MARKS_TOPIC})
"""Topics that only the broker writes to. Delayed messages must not be delivered to them. The half topic is RocketMQ's
special case."""


_IDENTIFYING: Final = (names.UNIQUE_KEY, names.REAL_TOPIC, names.REAL_QUEUE_ID, names.DELAY_KEY, names.DELAY_GROUP)
"""Properties of a message that a mark alone has as well, by which it is found."""
_DUE_BEGINNING: Final = f"\x02{names.DUE}\x01".encode()
"""Start of a due time in encoded properties, unless it is the first one."""
_ACCOUNT_BEGINNING: Final = f"\x02{names.ACCOUNT}\x01".encode()
"""The same of an account."""


class Fate(Enum):
    """Outcome of a due message."""

    DELIVERED = auto()
    DEAD = auto()
    """It has no valid real topic and is moved to the dead-letter topic."""
    DROPPED = auto()
    """Its real topic is the half topic: it is dropped, as in RocketMQ."""
    EXPIRED = auto()
    """It is later than the producer allowed (DELAY_EXPIRE_MS)."""
    REFUSED = auto()
    """It is overdue, and the delivery policy drops such messages."""
    TOPIC_GONE = auto()
    """Its topic has been deleted, and the settings of the topic drop such messages."""


class Due(NamedTuple):
    """A due message and its outcome."""

    record: Record
    fate: Fate
    copy: NewRecord
    due_ms: int
    is_foreign: bool
    """Whether another broker delayed it."""


@lru_cache(maxsize=4096)
def fate_of_topic(topic: str) -> Fate:
    """Return the outcome of a message for this topic."""
    if topic == names.HALF_TOPIC:
        return Fate.DROPPED
    if topic in _CLOSED or names.topic_problem(topic) is not None:
        return Fate.DEAD
    return Fate.DELIVERED


def copy_of(
    record: Record, properties: dict[str, str], *, decided: Fate | None = None, has_own_due: bool = False
) -> tuple[Fate, NewRecord]:
    """Return the outcome of a due `record`, and the record to append.

    `properties` are those of `record`, parsed; the mark is added to them, and the account is removed. With
    `has_own_due`, nothing else is changed.
    `decided` is the outcome if it does not depend on the message. Of a dropped message, the record to append belongs to
    the topic of marks, and keeps the body as evidence.

    Body, flags, birth time and host, store host, reconsume times and properties are kept. These include DELAY,
    REAL_TOPIC, REAL_QID and the due time, so that lateness can be computed from the log alone.
    """
    fate, topic, queue_id = _destination(properties, decided)
    is_changed = properties.pop(names.ACCOUNT, None) is not None or names.MARK in properties
    kind = MarkKind.DELIVERED if fate is Fate.DELIVERED else MarkKind.DROPPED
    mark = f"{kind.value}:{record.queue_id}:{record.queue_offset}:{record.physical_offset}"
    # Ingress reserves space for the mark. A foreign record may lack space; its copy is then identified without a mark.
    if len(record.raw_properties) + len(names.MARK) + len(mark) + 2 > MAX_PROPERTIES_BYTES:
        properties.pop(names.MARK, None)
        return fate, _copy(record, topic, queue_id, properties, None)
    encoded = None
    if has_own_due and not is_changed:
        encoded = record.raw_properties + f"\x02{names.MARK}\x01{mark}".encode()
    properties[names.MARK] = mark
    return fate, _copy(record, topic, queue_id, properties, None, encoded)


def timed_copy_of(
    record: Record, properties: dict[str, str], pending: Pending, now_ms: int, *, decided: Fate | None = None
) -> tuple[Fate, NewRecord]:
    """Return the outcome of a due timed message, and the record to append, like `copy_of`.

    The copy states its mark, which names the due time, and not the due time again; it does not name the account.
    """
    fate, topic, queue_id = _destination(properties, decided)
    kind = TimedMarkKind.DELIVERED if fate is Fate.DELIVERED else TimedMarkKind.DROPPED
    is_changed = names.MARK in properties or names.ACCOUNT in properties
    properties.pop(names.MARK, None)
    properties.pop(names.ACCOUNT, None)
    if properties.get(names.TIMER_OUT_MS) != str(pending.due_ms):
        is_changed = True
        properties[names.TIMER_OUT_MS] = str(pending.due_ms)
    statement = _timed_mark(pending, kind, now_ms)
    if len(record.raw_properties) + statement.property_bytes > MAX_PROPERTIES_BYTES:
        # Only an adopted timer may lack space for the mark: its copy is then identified by the due time.
        return fate, _copy(record, topic, queue_id, properties, None)
    properties.pop(names.DUE, None)
    encoded = None if is_changed else without_due(record.raw_properties)
    return fate, _copy(record, topic, queue_id, properties, statement, encoded)


def without_due(raw_properties: bytes) -> bytes | None:
    """Return encoded properties without the statement that the store appended to them; None if it is not the last."""
    at = raw_properties.rfind(_DUE_BEGINNING)
    return raw_properties[:at] if at > 0 and raw_properties.find(b"\x02", at + 1) < 0 else None


def without_account(raw_properties: bytes) -> bytes | None:
    """Return encoded properties without the account; None if it is the first of them, or not there."""
    at = raw_properties.find(_ACCOUNT_BEGINNING)
    if at < 0:
        return None
    end = raw_properties.find(b"\x02", at + 1)
    return raw_properties[:at] if end < 0 else raw_properties[:at] + raw_properties[end:]


def mark_of_unreadable_timed(pending: Pending, topic: str, now_ms: int, host: bytes) -> NewRecord:
    """Return the record to append for a timed message whose record cannot be read: a mark alone."""
    properties = {names.REAL_TOPIC: topic} if topic else {}
    return mark_alone(pending.identity, properties, _timed_mark(pending, TimedMarkKind.DROPPED, now_ms), now_ms, host)


def mark_of_expired(record: Record, pending: Pending, now_ms: int) -> NewRecord:
    """Return the record to append for a timed message that is later than its producer allowed: a mark alone."""
    statement = _timed_mark(pending, TimedMarkKind.EXPIRED, now_ms)
    return mark_alone(pending.identity, record.properties, statement, now_ms, record.store_host)


def mark_alone(
    identity: int,
    properties: Mapping[str, str],
    statement: Statement,
    now_ms: int,
    host: bytes,
    by: str = "",
    reconsume_times: int = 0,
    *,
    reserve: Reserve = Reserve.NONE,
) -> NewRecord:
    """Return a record that consists of a mark, and of what is needed to find the message of which it is.

    `properties` and `reconsume_times` are those of the message. `host` is that of the client or broker that made the
    change, and `by` the account, if any.
    """
    kept = {name: properties[name] for name in _IDENTIFYING if name in properties}
    kept[names.KEYS] = str(identity)
    if by:
        kept[names.BY] = by
    return NewRecord(
        names.MARKS_TOPIC, 0, b"", kept, 0, 0, now_ms, host, host, reconsume_times, statement=statement, reserve=reserve
    )


def _timed_mark(pending: Pending, kind: TimedMarkKind, now_ms: int) -> Statement:
    return end_of(kind, now_ms, pending.identity, pending.record, pending.due_ms)


def _destination(properties: dict[str, str], decided: Fate | None) -> tuple[Fate, str, int]:
    """Return the outcome of a message, and topic and queue of the record to append."""
    topic = properties.get(names.REAL_TOPIC, "")
    queue_id = real_queue_id(properties)
    fate = fate_of_topic(topic) if queue_id >= 0 else Fate.DEAD
    if decided is not None:
        fate = decided
    if fate is Fate.DEAD:
        return fate, names.SCHEDULE_DLQ_TOPIC, 0
    return (fate, topic, queue_id) if fate is Fate.DELIVERED else (fate, names.MARKS_TOPIC, 0)


def _copy(
    record: Record,
    topic: str,
    queue_id: int,
    properties: dict[str, str],
    statement: Statement | None,
    property_bytes: bytes | None = None,
) -> NewRecord:
    crc = record.body_crc
    return again(record, topic, queue_id, properties, statement, property_bytes=property_bytes, body_crc=crc)


def mark_of_unreadable(queue_id: int, offset: int, physical_offset: int, now_ms: int, host: bytes) -> NewRecord:
    """Return the record to append for an entry whose record cannot be read: a mark alone."""
    mark = f"{MarkKind.DROPPED.value}:{queue_id}:{offset}:{physical_offset}"
    return NewRecord(names.MARKS_TOPIC, 0, b"", {names.MARK: mark}, 0, 0, now_ms, host, host)
