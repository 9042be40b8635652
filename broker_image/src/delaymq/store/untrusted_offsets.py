"""Records at offsets that come from outside: no such offset is believed before a queue names the record too.

The body of a message is its sender's, so there may be a record in it, whole and with a sound checksum. Only queues are
beyond reach: their entries are made by the store, and each states where its record begins and how large it is.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from delaymq.message.names import MAX_TOPIC_LENGTH
from delaymq.message.properties import MAX_PROPERTIES_BYTES
from delaymq.message.record import (
    BODY_LENGTH_BYTES,
    FIXED_BYTES,
    HEAD,
    MAX_HEAD_BYTES,
    MESSAGE_MAGIC,
    body_at,
)
from delaymq.store.commit_log import CommitLog
from delaymq.store.consume_queue import ConsumeQueues

MAX_REFERENCED_BYTES: Final = (16 << 20) + (64 << 10)
"""The body of the largest frame, with the head, topic and properties of a record around it."""
MAX_TAIL_BYTES: Final = 1 + MAX_TOPIC_LENGTH + 2 + MAX_PROPERTIES_BYTES
"""What a record has behind its body."""
_TOPIC_AND_LENGTHS: Final = 1 + MAX_TOPIC_LENGTH + 2


class ReferencedHead(NamedTuple):
    """What surrounds the body of a record that its queue names."""

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    size: int
    """Bytes of the whole record."""
    properties_at: int
    """Physical offset of its raw properties."""
    properties_bytes: int


def referenced_head(log: CommitLog, queues: ConsumeQueues, physical_offset: int) -> ReferencedHead | None:
    """The head of the record that begins there; None when none does, or when its queue does not name it.

    Reads 262 bytes at most, and one queue entry.
    """
    head = _head_at(log, physical_offset)
    if head is None:
        return None
    queue = queues.table.get((head.topic, head.queue_id))
    entry = None if queue is None else queues.entry(queue, head.queue_offset)
    return head if entry is not None and entry[:2] == (physical_offset, head.size) else None


def _head_at(log: CommitLog, offset: int) -> ReferencedHead | None:
    segment = log.segment_of(offset) if offset >= 0 else None
    if segment is None:
        return None
    left = min(segment.base + log.file_bytes, log.end_offset) - offset
    data = log.read_bytes(offset, min(MAX_HEAD_BYTES, left))
    if len(data) < FIXED_BYTES:
        return None
    size, magic, _, queue_id, _, queue_offset, stated_offset, sys_flag = HEAD.unpack_from(data)[:8]
    if magic != MESSAGE_MAGIC or stated_offset != offset or not FIXED_BYTES <= size <= min(left, MAX_REFERENCED_BYTES):
        return None
    head_bytes = body_at(sys_flag)
    body_bytes = int.from_bytes(data[head_bytes - BODY_LENGTH_BYTES : head_bytes], "big", signed=True)
    topic_at = head_bytes + body_bytes
    if len(data) < head_bytes or body_bytes < 0 or topic_at + 3 > size:
        return None
    tail = log.read_bytes(offset + topic_at, min(_TOPIC_AND_LENGTHS, size - topic_at))
    properties_at = topic_at + 3 + tail[0]
    properties_bytes = size - properties_at
    if tail[0] > MAX_TOPIC_LENGTH or properties_bytes < 0:
        return None
    if int.from_bytes(tail[1 + tail[0] : 3 + tail[0]], "big") != properties_bytes:
        return None
    topic = str(tail[1 : 1 + tail[0]], "utf-8", "surrogateescape")
    return ReferencedHead(topic, queue_id, queue_offset, offset, size, offset + properties_at, properties_bytes)
