"""Access to records at untrusted offsets: an offset is accepted only if a queue names the record too.

A sender chooses the body of a message, which may contain a whole record with a valid checksum. Senders cannot forge
queue entries: the store creates them, and each states the offset and size of its record.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from delaymq.message.names import MAX_TOPIC_LENGTH
from delaymq.message.record import (
    BODY_LENGTH_BYTES,
    FIXED_BYTES,
    HEAD,
    MAX_HEAD_BYTES,
    MESSAGE_MAGIC,
    PROPERTIES_LENGTH,
    TAIL_LENGTHS_BYTES,
    TOPIC_LENGTH_BYTES,
    body_at,
)
from delaymq.store.commit_log import CommitLog
from delaymq.store.consume_queue import ConsumeQueues

MAX_REFERENCED_BYTES: Final = (16 << 20) + (64 << 10)
"""Size of the largest frame's body plus the head, topic and properties of a record."""
_TOPIC_AND_LENGTHS: Final = TAIL_LENGTHS_BYTES + MAX_TOPIC_LENGTH


class ReferencedHead(NamedTuple):
    """Fields around the body of a record that its queue names."""

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
    """Return the head of the record that starts at an offset; None if there is none or its queue does not name it.

    Reads at most 262 bytes and one queue entry.
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
    if len(data) < head_bytes or body_bytes < 0 or topic_at + TAIL_LENGTHS_BYTES > size:
        return None
    tail = log.read_bytes(offset + topic_at, min(_TOPIC_AND_LENGTHS, size - topic_at))
    topic_end = TOPIC_LENGTH_BYTES + tail[0]
    properties_at = topic_at + TAIL_LENGTHS_BYTES + tail[0]
    properties_bytes = size - properties_at
    if tail[0] > MAX_TOPIC_LENGTH or properties_bytes < 0:
        return None
    if PROPERTIES_LENGTH.unpack_from(tail, topic_end)[0] != properties_bytes:
        return None
    topic = str(tail[TOPIC_LENGTH_BYTES:topic_end], "utf-8", "surrogateescape")
    return ReferencedHead(topic, queue_id, queue_offset, offset, size, offset + properties_at, properties_bytes)
