"""Classification of records for the tools' counts."""

from __future__ import annotations

from enum import StrEnum

from delaymq.message.flags import TRANSACTION_ROLLBACK, transaction_type
from delaymq.message.marks import MarkKind, parse_mark
from delaymq.message.names import (
    DELAY,
    DLQ_PREFIX,
    HALF_TOPIC,
    MARK,
    MARKS_TOPIC,
    OP_HALF_TOPIC,
    REAL_QUEUE_ID,
    REAL_TOPIC,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
)
from delaymq.message.record import Record
from delaymq.message.timed_marks import TimedMarkKind
from delaymq.store.tools.timed_messages import delivered_by_rocketmq, own_group_mark, own_mark


class Kind(StrEnum):
    """Kinds of records; each record has one."""

    NORMAL = "normal"
    DELAYED = "delayed"
    DELIVERED = "delivered copy"
    HALF = "half"
    OP = "op"
    RETRY = "retry"
    DEAD_LETTER = "dead letter"
    MARK = "mark"
    TIMED = "timed"
    TIMED_COPY = "timed copy"
    TIMED_MARK = "timed mark"
    GROUP_MARK = "group mark"
    """Statement about a group of timed messages, or about a pause."""
    FILLER = "filler"


_BY_TOPIC = {SCHEDULE_TOPIC: Kind.DELAYED, TIMER_TOPIC: Kind.TIMED, HALF_TOPIC: Kind.HALF, OP_HALF_TOPIC: Kind.OP}


def kind_of(record: Record) -> Kind:
    """Return a record's kind. The topic takes precedence: a delivered copy in a retry topic counts as a retry.

    NewerFormError: the record has a mark that only a newer program knows.
    """
    if transaction_type(record.sys_flag) == TRANSACTION_ROLLBACK:
        return Kind.FILLER
    by_topic = _BY_TOPIC.get(record.topic)
    if by_topic is not None:
        return by_topic
    if record.topic.startswith(RETRY_PREFIX):
        return Kind.RETRY
    if record.topic.startswith(DLQ_PREFIX):
        return Kind.DEAD_LETTER
    timed_mark = own_mark(record)
    is_timed = timed_mark is not None and timed_mark.queue is None
    if record.topic == MARKS_TOPIC:
        if own_group_mark(record) is not None:
            return Kind.GROUP_MARK
        return Kind.TIMED_MARK if is_timed else Kind.MARK
    if timed_mark is not None and timed_mark.kind is TimedMarkKind.DELIVERED:
        return Kind.TIMED_COPY if is_timed else Kind.DELIVERED
    if delivered_by_rocketmq(record) is not None:
        return Kind.TIMED_COPY
    properties = record.properties
    mark = parse_mark(properties.get(MARK, ""))
    if mark is not None and mark.kind == MarkKind.DELIVERED:
        return Kind.DELIVERED
    # RocketMQ's broker adds no marks: its copies keep the properties of the schedule record.
    if (
        DELAY in properties
        and properties.get(REAL_TOPIC) == record.topic
        and properties.get(REAL_QUEUE_ID) == str(record.queue_id)
    ):
        return Kind.DELIVERED
    return Kind.NORMAL
