"""Plain records in the body of a pull response."""

from __future__ import annotations

from typing import Final, TypeAlias
from zlib import crc32

from delaymq import kernels
from delaymq.message import flags
from delaymq.message.record import (
    BODY_CRC_MASK,
    FIXED_BYTES,
    HEAD_BYTES,
    MESSAGE_MAGIC,
    PROPERTIES_LENGTH,
    PROPERTIES_LENGTH_BYTES,
    QUEUE_OUTLINE,
)

PlainRecord: TypeAlias = tuple[bytes, int, int, bytes, bytes]
"""Head, queue offset, sys flag, body as stored, encoded properties."""

_unpack_outline = QUEUE_OUTLINE.unpack_from
_unpack_length = PROPERTIES_LENGTH.unpack_from


def split_plain_twin(data: bytes, at: int, topic: bytes, queue_id: int) -> tuple[list[PlainRecord], int]:
    """Return the plain records of a queue from a position of `data` on, and the position after them.

    `topic` is the queue's, after its length (`encoded_topic`). The first record that is damaged, incomplete, of another
    queue or with an IPv6 host ends them. Twin of the kernel `split_plain`.
    """
    records: list[PlainRecord] = []
    end, topic_bytes = len(data), len(topic)
    while end - at >= FIXED_BYTES:
        size, magic, body_crc, there, queue_offset, sys_flag, body_length = _unpack_outline(data, at)
        body_at = at + HEAD_BYTES
        topic_at = body_at + body_length
        properties_at = topic_at + topic_bytes + PROPERTIES_LENGTH_BYTES
        next_at = at + size
        if (
            magic != MESSAGE_MAGIC
            or sys_flag & flags.HOST_MASK
            or there != queue_id
            or body_length < 0
            or not properties_at <= next_at <= end
            or not data.startswith(topic, topic_at)
            or _unpack_length(data, properties_at - PROPERTIES_LENGTH_BYTES)[0] != next_at - properties_at
            or crc32(body := data[body_at:topic_at]) & BODY_CRC_MASK != body_crc
        ):
            break
        records.append((data[at:body_at], queue_offset, sys_flag, body, data[properties_at:next_at]))
        at = next_at
    return records, at


split_plain: Final = kernels.choose("split_plain", split_plain_twin)
