"""Copies of messages whose records are as DelayMQ wrote them, made without decoding more than necessary.

This runs for almost every message that is delivered, so each step is spelled out. Everything unusual is left to
`copies`, which also explains the copies.
"""

from __future__ import annotations

from typing import Final
from zlib import crc32

from delaymq.broker.delivery.copying.copies import Fate, fate_of_topic, without_account, without_due
from delaymq.message import names
from delaymq.message.flags import HOST_MASK, TRANSACTION_PREPARED
from delaymq.message.levels import queue_of_level
from delaymq.message.marks import MarkKind, format_due
from delaymq.message.properties import MAX_PROPERTIES_BYTES, decode_properties
from delaymq.message.record import BODY_CRC_MASK, HEAD, MESSAGE_MAGIC, PROPERTIES_LENGTH, TAIL_LENGTHS_BYTES
from delaymq.message.timed_marks import MAX_TEXT_BYTES, TimedMarkKind, end_of
from delaymq.schedule.timeline import Pending
from delaymq.store.model import NewRecord

_DELIVERED: Final = str(MarkKind.DELIVERED)
_TIMED_DELIVERED: Final = str(TimedMarkKind.DELIVERED)
_MARK_BEGINNING: Final = f"\x02{names.MARK}\x01"
_LEVEL_TAIL: Final = bytes([len(names.SCHEDULE_TOPIC)]) + names.SCHEDULE_TOPIC.encode()
_TIMED_TAIL: Final = bytes([len(names.TIMER_TOPIC)]) + names.TIMER_TOPIC.encode()
_TAIL_BYTES: Final = TAIL_LENGTHS_BYTES + len(names.SCHEDULE_TOPIC)
assert len(_LEVEL_TAIL) == len(_TIMED_TAIL)
_PROPERTIES_LENGTH_AT: Final = len(_LEVEL_TAIL)
_HEAD_BYTES: Final = HEAD.size
MAX_MARK_BYTES: Final = MAX_TEXT_BYTES + len(_MARK_BEGINNING)
"""Maximum size of a mark in the properties of a copy."""
_QUEUE_IDS: Final = {str(number): number for number in range(1_024)}
_UNUSUAL_FLAGS: Final = HOST_MASK | TRANSACTION_PREPARED
"""Bits of wide hosts, and of half messages and rolled back ones, which get no queue entry."""
_decode_head, _new = HEAD.unpack_from, tuple.__new__


def plain_copy(data: bytes, pending: Pending, topic: str, level: int, now_ms: int) -> tuple[NewRecord, int] | None:
    """Return the copy of a due message and the queue offset of its record; None if `copies` has to decide.

    `data` is the record that `pending` names; empty if it is not in the log. `topic` and `level` are those of the
    partition; level 0 stands for timed messages.
    """
    size = pending.size
    if len(data) != size or size <= _HEAD_BYTES:
        return None
    (
        stated_size, magic, body_crc, queue_id, flag, queue_offset, place, sys_flag, born_ms,
        born_host, _, store_host, reconsume_times, prepared_offset, body_bytes,
    ) = _decode_head(data)  # fmt: skip
    topic_at = _HEAD_BYTES + body_bytes
    raw_at = topic_at + _TAIL_BYTES
    if (
        stated_size != size
        or magic != MESSAGE_MAGIC
        or place != pending.record
        or sys_flag & _UNUSUAL_FLAGS
        or not _HEAD_BYTES <= topic_at < size - _TAIL_BYTES
        or data[topic_at : topic_at + _PROPERTIES_LENGTH_AT] != (_LEVEL_TAIL if level else _TIMED_TAIL)
        or PROPERTIES_LENGTH.unpack_from(data, topic_at + _PROPERTIES_LENGTH_AT)[0] != size - raw_at
    ):
        return None
    body, raw = data[_HEAD_BYTES:topic_at], data[raw_at:]
    if crc32(body) & BODY_CRC_MASK != body_crc or len(raw) + MAX_MARK_BYTES > MAX_PROPERTIES_BYTES:
        return None
    properties = decode_properties(raw)
    real_queue_id = _QUEUE_IDS.get(properties.get(names.REAL_QUEUE_ID, ""))
    if (
        real_queue_id is None
        or names.MARK in properties
        or properties.get(names.REAL_TOPIC) != topic
        or fate_of_topic(topic) is not Fate.DELIVERED
    ):
        return None
    if names.ACCOUNT in properties:
        without = without_account(raw)
        if without is None:
            return None
        raw = without
        del properties[names.ACCOUNT]
    if level:
        # Head and due time both state the entry, so it need not be read.
        if queue_id != queue_of_level(level) or properties.get(names.DUE) != format_due(
            pending.due_ms, queue_id, queue_offset
        ):
            return None
        mark = properties[names.MARK] = f"{_DELIVERED}:{queue_id}:{queue_offset}:{place}"
        statement, encoded = None, raw + f"{_MARK_BEGINNING}{mark}".encode()
    else:
        without = without_due(raw)
        if without is None or names.DELAY_EXPIRE_MS in properties:
            return None
        if names.DELAY_CRON in properties or names.DELAY_EVERY_MS in properties:
            return None  # it may repeat
        if properties.get(names.TIMER_OUT_MS) != str(pending.due_ms):
            return None  # it was moved
        del properties[names.DUE]
        encoded = without
        statement = end_of(_TIMED_DELIVERED, now_ms, pending.identity, place, pending.due_ms)
    fields = (
        topic, real_queue_id, body, properties, flag, sys_flag, born_ms, born_host, store_host, reconsume_times,
        prepared_offset, True, statement, encoded, body_crc, False,
    )  # fmt: skip
    return _new(NewRecord, fields), queue_offset  # faster than NewRecord(…)
