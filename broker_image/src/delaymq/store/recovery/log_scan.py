"""Walk over the valid records of the log, up to the first invalid one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from mmap import mmap
from typing import Final, NamedTuple, Protocol
from zlib import crc32

from delaymq.message.errors import RecordError
from delaymq.message.flags import HOST_MASK
from delaymq.message.levels import DelayLevels
from delaymq.message.names import MAX_TOPIC_LENGTH
from delaymq.message.properties import MAX_PROPERTIES_BYTES, decode_properties
from delaymq.message.record import (
    BLANK_BYTES,
    BLANK_MAGIC,
    BODY_CRC_MASK,
    FIXED_BYTES,
    HEAD,
    MESSAGE_MAGIC,
    PROPERTIES_LENGTH,
    PROPERTIES_LENGTH_BYTES,
    SIZE_AND_MAGIC,
    TAIL_LENGTHS_BYTES,
    TOPIC_LENGTH_BYTES,
    UP_TO_PHYSICAL_OFFSET,
    decode_record,
    possible_starts,
)
from delaymq.store.disk.files import Files
from delaymq.store.dispatch import due_or_tags_code
from delaymq.store.model import Dispatched
from delaymq.store.reader import is_torn

_new = tuple.__new__
_ALL: Final = 1 << 62
_MAX_TOPIC_END = TOPIC_LENGTH_BYTES + MAX_TOPIC_LENGTH
_MAX_TAIL_BYTES = _MAX_TOPIC_END + PROPERTIES_LENGTH_BYTES + MAX_PROPERTIES_BYTES
"""Maximum size of a record's topic and properties with their lengths."""
_CARRIED_BYTES = SIZE_AND_MAGIC.size - 1
"""Bytes of a piece that are searched again with the next one: size and magic of a record may be split."""


@dataclass(slots=True)
class ScanPosition:
    """Position of a walk, and the last record that it read."""

    offset: int
    """Physical offset of the next record."""
    last_offset: int = -1
    last_crc: int = 0
    last_store_timestamp_ms: int = 0
    records: int = 0
    before_last_ms: int = 0
    """Store time of the record before the last one."""
    third_last_ms: int = 0

    @property
    def not_before_ms(self) -> int:
        """Lower bound of the next record's store time: the smallest of the last three.

        No checksum covers the store time: if only the last one is damaged, it may be in the future.
        """
        return min(self.third_last_ms, self.before_last_ms, self.last_store_timestamp_ms)


class HeadTaker(Protocol):
    """Callback for a valid record, with the fields of `Head`; cheaper than an object."""

    def __call__(
        self,
        physical_offset: int,
        size: int,
        body_crc: int,
        queue_id: int,
        queue_offset: int,
        sys_flag: int,
        born_timestamp_ms: int,
        store_timestamp_ms: int,
        reconsume_times: int,
        prepared_transaction_offset: int,
        topic: bytes,
        raw_properties: bytes,
        /,
    ) -> None: ...


class Head(NamedTuple):
    """Fields that a walk reads from a valid record without decoding its properties."""

    physical_offset: int
    size: int
    body_crc: int
    queue_id: int
    queue_offset: int
    sys_flag: int
    born_timestamp_ms: int
    store_timestamp_ms: int
    reconsume_times: int
    prepared_transaction_offset: int
    topic: bytes
    raw_properties: bytes


def scan_segment(
    data: mmap | memoryview,
    base: int,
    at: ScanPosition,
    levels: DelayLevels,
    dispatch: Callable[[Dispatched], None],
    *,
    check_crc: bool,
) -> bool:
    """Dispatch each record of a segment from `at` on and advance `at`; return True at the end of the segment.

    False: the bytes at `at.offset` are not a valid record, for example zeroes after the log's end.
    """
    return bool(walk_segment(data, base, at, decoding(levels, dispatch), check_crc=check_crc))


def decoding(levels: DelayLevels, dispatch: Callable[[Dispatched], None]) -> HeadTaker:
    """Return a callback that decodes each record and dispatches it."""

    def take(
        physical_offset: int, size: int, body_crc: int, queue_id: int, queue_offset: int, sys_flag: int, born_ms: int,
        store_ms: int, reconsume_times: int, prepared_offset: int, raw_topic: bytes, raw_properties: bytes,
    ) -> None:  # fmt: skip
        topic = str(raw_topic, "utf-8", "surrogateescape")
        properties = decode_properties(raw_properties)
        code = due_or_tags_code(topic, queue_id, queue_offset, physical_offset, properties, store_ms, levels)
        fields = (
            topic, queue_id, queue_offset, physical_offset, size, sys_flag, store_ms, born_ms, body_crc,
            reconsume_times, prepared_offset, properties, code,
        )  # fmt: skip
        dispatch(_new(Dispatched, fields))  # faster than Dispatched(…)

    return take


def walk_segment(
    data: mmap | memoryview, base: int, at: ScanPosition, take: HeadTaker, *, check_crc: bool, most: int = _ALL
) -> bool | None:
    """Walk like `scan_segment`, but read only the fields at fixed positions of a record; None after `most` records."""
    end = len(data)
    position = at.offset - base
    last_offset, last_crc, records = at.last_offset, at.last_crc, at.records
    third_last_ms, before_last_ms, last_ms = at.third_last_ms, at.before_last_ms, at.last_store_timestamp_ms
    until = records + most
    view = memoryview(data)
    try:
        while end - position >= BLANK_BYTES:
            if records == until:
                return None
            if end - position < HEAD.size:
                if SIZE_AND_MAGIC.unpack_from(view, position) == (end - position, BLANK_MAGIC):
                    break
                return False
            (
                size, magic, body_crc, queue_id, _, queue_offset, physical_offset, sys_flag, born_ms,
                _, store_ms, _, reconsume_times, prepared_offset, body_length,
            ) = HEAD.unpack_from(view, position)  # fmt: skip
            if magic != MESSAGE_MAGIC:
                if magic == BLANK_MAGIC and size == end - position:
                    break
                return False
            if physical_offset != base + position or not FIXED_BYTES <= size <= end - position:
                return False
            if sys_flag & HOST_MASK:
                head = _wide_head(view, position, base, check_crc=check_crc)
                if head is None:
                    return False
                store_ms = head.store_timestamp_ms
                take(*head)
            else:
                topic_at = position + HEAD.size + body_length
                stop = position + size
                if body_length < 0 or not TAIL_LENGTHS_BYTES <= stop - topic_at <= _MAX_TAIL_BYTES:
                    return False
                tail = bytes(view[topic_at:stop])
                topic_end = TOPIC_LENGTH_BYTES + tail[0]
                properties_at = topic_end + PROPERTIES_LENGTH_BYTES
                if topic_end > _MAX_TOPIC_END or properties_at > len(tail):
                    return False
                if properties_at + PROPERTIES_LENGTH.unpack_from(tail, topic_end)[0] != len(tail):
                    return False
                if check_crc and crc32(view[position + HEAD.size : topic_at]) & BODY_CRC_MASK != body_crc:
                    return False
                raw_properties = tail[properties_at:]
                if b"\0" in raw_properties and is_torn(raw_properties, topic_at + properties_at):
                    return False
                take(
                    physical_offset, size, body_crc, queue_id, queue_offset, sys_flag, born_ms, store_ms,
                    reconsume_times, prepared_offset, tail[TOPIC_LENGTH_BYTES:topic_end], raw_properties,
                )  # fmt: skip
            last_offset, last_crc = physical_offset, body_crc
            third_last_ms, before_last_ms, last_ms = before_last_ms, last_ms, store_ms
            records += 1
            position += size
        position = end
    finally:
        view.release()
        at.offset, at.last_offset, at.last_crc, at.records = base + position, last_offset, last_crc, records
        at.third_last_ms, at.before_last_ms, at.last_store_timestamp_ms = third_last_ms, before_last_ms, last_ms
    return True


def _wide_head(view: memoryview, position: int, base: int, *, check_crc: bool) -> Head | None:
    """Read the head of a record with an IPv6 address, which is rare."""
    try:
        record = decode_record(view, position, check_crc=check_crc)
    except RecordError:
        return None
    if is_torn(record.raw_properties, position + record.size - len(record.raw_properties)):
        return None
    return Head(
        base + position, record.size, record.body_crc, record.queue_id, record.queue_offset, record.sys_flag,
        record.born_timestamp_ms, record.store_timestamp_ms, record.reconsume_times,
        record.prepared_transaction_offset, record.topic.encode("utf-8", "surrogateescape"), record.raw_properties,
    )  # fmt: skip


def is_sound(data: mmap, position: int, base: int, not_before_ms: int) -> bool:
    """Return whether a whole record at `position` states this position as its own.

    A record embedded in another's body states another position. A record stored before `not_before_ms` is a remnant of
    an older log, which must not reappear after the log's end.
    """
    if len(data) - position < FIXED_BYTES:
        return False
    size, magic, _, _, _, _, physical_offset = UP_TO_PHYSICAL_OFFSET.unpack_from(data, position)
    if magic != MESSAGE_MAGIC or physical_offset != base + position or not FIXED_BYTES <= size <= len(data) - position:
        return False
    try:
        record = decode_record(data[position : position + size])
    except RecordError:
        return False
    torn = is_torn(record.raw_properties, position + size - len(record.raw_properties))
    return record.store_timestamp_ms >= not_before_ms and not torn


def find_sound(files: Files, descriptor: int, data: mmap, start: int, base: int, not_before_ms: int) -> int | None:
    """Return the position of the first valid record at or after `start`; None if there is none.

    Searches bytes read from the file: reading holes of the mapping would fill the page cache with zeroes.
    """
    carried = b""
    expected = -1
    for position, piece in files.nonzero_pieces(descriptor, start, len(data)):
        if position == expected:
            piece, position = carried + piece, position - len(carried)
        for candidate in possible_starts(piece, position):
            if candidate >= start and is_sound(data, candidate, base, not_before_ms):
                return candidate
        carried, expected = piece[-_CARRIED_BYTES:], position + len(piece)
    return None
