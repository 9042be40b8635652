"""Codec of commit log records (docs/formats/store.md, "Commit-log record")."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final
from zlib import crc32

from delaymq.message import flags
from delaymq.message.errors import IllegalMessageError, RecordError
from delaymq.message.names import MAX_TOPIC_LENGTH
from delaymq.message.properties import MAX_PROPERTIES_BYTES, decode_properties

MESSAGE_MAGIC: Final = 0xDAA320A7
BLANK_MAGIC: Final = 0xCBD43194
BLANK_BYTES: Final = 8
"""Size and magic of a blank record; a message leaves at least this much at the end of a segment."""
FIXED_BYTES: Final = 91
"""Size of a record without body, topic and properties, with IPv4 hosts."""
IPV4_HOST_BYTES: Final = 8
IPV6_EXTRA_BYTES: Final = 12
"""Additional size of an IPv6 host."""

HEAD = struct.Struct(
    ">i"  # total size
    "I"  # magic
    "I"  # body CRC32 & 0x7FFFFFFF
    "i"  # queue id
    "i"  # flag
    "q"  # queue offset
    "q"  # physical offset
    "i"  # sys flag
    "q"  # born timestamp, ms
    "8s"  # born host
    "q"  # store timestamp, ms
    "8s"  # store host
    "i"  # reconsume times
    "q"  # prepared transaction offset
    "i"  # body length
)
"""All fields before the body if both hosts are IPv4, the common case."""
assert HEAD.size == 88
# The same fields in three parts, for hosts of any width:
_UP_TO_BORN = struct.Struct(">iIIiiqqiq")
_STORE_TIMESTAMP = struct.Struct(">q")
_AFTER_STORE = struct.Struct(">iqi")
assert _UP_TO_BORN.size + 8 + _STORE_TIMESTAMP.size + 8 + _AFTER_STORE.size == HEAD.size

# Positions of fields in a record, in bytes; independent of the width of the hosts:
MAGIC_AT: Final = struct.calcsize(">i")
BODY_CRC_AT: Final = struct.calcsize(">iI")
QUEUE_ID_AT: Final = struct.calcsize(">iII")
FLAG_AT: Final = struct.calcsize(">iIIi")
QUEUE_OFFSET_AT: Final = struct.calcsize(">iIIii")
PHYSICAL_OFFSET_AT: Final = struct.calcsize(">iIIiiq")
SYS_FLAG_AT: Final = struct.calcsize(">iIIiiqq")
BORN_TIMESTAMP_AT: Final = struct.calcsize(">iIIiiqqi")
BORN_HOST_AT: Final = _UP_TO_BORN.size
# Distances from the end of the born host to that of the store timestamp, and from the end of the store host to the
# body:
STORE_TIMESTAMP_BYTES: Final = _STORE_TIMESTAMP.size
AFTER_STORE_HOST_BYTES: Final = _AFTER_STORE.size
BODY_LENGTH_BYTES: Final = struct.calcsize(">i")
"""The last field before the body."""
PREPARED_OFFSET_BEHIND_STORE_HOST: Final = struct.calcsize(">i")

# Some fields of a head, for scans of many records:
SIZE_AND_MAGIC = struct.Struct(">iI")
BODY_CRC = struct.Struct(f">{BODY_CRC_AT}xI")
PLACE = struct.Struct(f">iI{QUEUE_OFFSET_AT - SIZE_AND_MAGIC.size}xq")
"""Size, magic, queue offset."""
UP_TO_PHYSICAL_OFFSET = struct.Struct(">iIIiiqq")
"""Size, magic, CRC, queue id, flag, queue offset, physical offset."""
OUTLINE = struct.Struct(f">iI{SYS_FLAG_AT - SIZE_AND_MAGIC.size}xi{HEAD.size - SYS_FLAG_AT - 8}xi")
"""Size, magic, sys flag and, if both hosts are IPv4, the length of the body."""
assert OUTLINE.size == HEAD.size
MAX_HEAD_BYTES: Final = HEAD.size + 2 * IPV6_EXTRA_BYTES
"""Maximum size of the fields before the body."""
PROPERTIES_LENGTH = struct.Struct(">h")


@dataclass(slots=True, kw_only=True)
class Record:
    """One message in the commit log."""

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    flag: int
    sys_flag: int
    born_timestamp_ms: int
    born_host: bytes
    """Packed in 8 or 20 bytes (ids.unpack_host)."""
    store_timestamp_ms: int
    store_host: bytes
    reconsume_times: int
    prepared_transaction_offset: int
    body: bytes
    body_crc: int
    """zlib's crc32 of the body & 0x7FFFFFFF."""
    raw_properties: bytes
    size: int
    """Size of the whole record, in bytes."""

    @property
    def properties(self) -> dict[str, str]:
        """Properties, parsed at each access."""
        return decode_properties(self.raw_properties)

    def encoded(self) -> bytes:
        """Return the bytes of the record."""
        return encode_record(
            topic=self.topic.encode("utf-8", "surrogateescape"),
            queue_id=self.queue_id,
            queue_offset=self.queue_offset,
            physical_offset=self.physical_offset,
            flag=self.flag,
            sys_flag=self.sys_flag,
            born_timestamp_ms=self.born_timestamp_ms,
            born_host=self.born_host,
            store_timestamp_ms=self.store_timestamp_ms,
            store_host=self.store_host,
            reconsume_times=self.reconsume_times,
            prepared_transaction_offset=self.prepared_transaction_offset,
            body=self.body,
            properties=self.raw_properties,
        )


def record_bytes(topic_bytes: int, body_bytes: int, properties_bytes: int, born_host: bytes, store_host: bytes) -> int:
    """Return the size of a record with parts of these sizes."""
    return FIXED_BYTES - 16 + len(born_host) + len(store_host) + topic_bytes + body_bytes + properties_bytes


def check_record_parts(topic_length: int, properties_length: int) -> None:
    """Raise IllegalMessageError if the topic or the properties exceed the format's length fields."""
    if topic_length > MAX_TOPIC_LENGTH:
        raise IllegalMessageError(
            f"the topic has {topic_length} bytes, and the maximum is {MAX_TOPIC_LENGTH}: use a shorter name"
        )
    if properties_length > MAX_PROPERTIES_BYTES:
        raise IllegalMessageError(
            f"the properties have {properties_length} bytes, and the maximum is {MAX_PROPERTIES_BYTES}: send fewer or "
            "shorter properties"
        )


def encode_record(
    topic: bytes,
    queue_id: int,
    queue_offset: int,
    physical_offset: int,
    flag: int,
    sys_flag: int,
    born_timestamp_ms: int,
    born_host: bytes,
    store_timestamp_ms: int,
    store_host: bytes,
    reconsume_times: int,
    prepared_transaction_offset: int,
    body: bytes,
    properties: bytes,
) -> bytes:
    """Return the bytes of a record. The IPv6 bits of `sys_flag` are set by the hosts, as in RocketMQ's broker.

    The parameters are in the order of a record's fields; the hot path passes them by position.
    IllegalMessageError if the topic or the properties exceed the format's length fields.
    """
    topic_length, body_length, properties_length = len(topic), len(body), len(properties)
    if topic_length > MAX_TOPIC_LENGTH or properties_length > MAX_PROPERTIES_BYTES:
        check_record_parts(topic_length, properties_length)
    body_crc = crc32(body) & 0x7FFFFFFF
    if len(born_host) == 8 and len(store_host) == 8:
        head = HEAD.pack(
            FIXED_BYTES + topic_length + body_length + properties_length,
            MESSAGE_MAGIC,
            body_crc,
            queue_id,
            flag,
            queue_offset,
            physical_offset,
            sys_flag & ~flags.HOST_MASK,
            born_timestamp_ms,
            born_host,
            store_timestamp_ms,
            store_host,
            reconsume_times,
            prepared_transaction_offset,
            body_length,
        )
    else:
        head = _wide_head(
            record_bytes(topic_length, body_length, properties_length, born_host, store_host),
            body_crc,
            (queue_id, flag, queue_offset, physical_offset),
            sys_flag,
            born_timestamp_ms,
            born_host,
            store_timestamp_ms,
            store_host,
            (reconsume_times, prepared_transaction_offset, body_length),
        )
    return b"".join(
        (head, body, topic_length.to_bytes(1, "big"), topic, PROPERTIES_LENGTH.pack(properties_length), properties)
    )


def _wide_head(
    size: int,
    body_crc: int,
    place: tuple[int, int, int, int],
    sys_flag: int,
    born_timestamp_ms: int,
    born_host: bytes,
    store_timestamp_ms: int,
    store_host: bytes,
    rest: tuple[int, int, int],
) -> bytes:
    sys_flag &= ~flags.HOST_MASK
    if len(born_host) == 20:
        sys_flag |= flags.BORN_HOST_IPV6
    if len(store_host) == 20:
        sys_flag |= flags.STORE_HOST_IPV6
    return b"".join(
        (
            _UP_TO_BORN.pack(size, MESSAGE_MAGIC, body_crc, *place, sys_flag, born_timestamp_ms),
            born_host,
            _STORE_TIMESTAMP.pack(store_timestamp_ms),
            store_host,
            _AFTER_STORE.pack(*rest),
        )
    )


def body_at(sys_flag: int) -> int:
    """Return the position of the body in a record with this sys flag, which is the size of its head."""
    wide = bool(sys_flag & flags.BORN_HOST_IPV6) + bool(sys_flag & flags.STORE_HOST_IPV6)
    return HEAD.size + wide * IPV6_EXTRA_BYTES


def decode_store_timestamp(head: bytes) -> int | None:
    """Return the store timestamp in ms of the record that begins with `head`; None if it is not one, or too short."""
    if len(head) < FIXED_BYTES or SIZE_AND_MAGIC.unpack_from(head)[1] != MESSAGE_MAGIC:
        return None
    sys_flag = _UP_TO_BORN.unpack_from(head)[7]
    at = BORN_HOST_AT + (20 if sys_flag & flags.BORN_HOST_IPV6 else 8)
    timestamp_ms: int = _STORE_TIMESTAMP.unpack_from(head, at)[0]
    return timestamp_ms


def decode_transaction(head: bytes) -> tuple[int, int, int]:
    """Return the CRC of the body, the sys flag and the prepared transaction offset of a record from its `head`.

    RecordError if it is not that of a message, or too short; MAX_HEAD_BYTES suffice.
    """
    if len(head) < HEAD.size or SIZE_AND_MAGIC.unpack_from(head)[1] != MESSAGE_MAGIC:
        raise RecordError("the bytes are not the start of a message")
    fields = _UP_TO_BORN.unpack_from(head)
    body_crc, sys_flag = fields[2], fields[7]
    at = body_at(sys_flag) - _AFTER_STORE.size
    if len(head) < at + _AFTER_STORE.size:
        raise RecordError("the bytes are too few for a message with IPv6 addresses")
    return body_crc, sys_flag, _AFTER_STORE.unpack_from(head, at)[1]


def decode_record(data: bytes | bytearray | memoryview, position: int = 0, *, check_crc: bool = True) -> Record:
    """Decode the message record at `position` of `data`, which may extend beyond it.

    RecordError if the record is invalid, or blank (see `SIZE_AND_MAGIC`).
    """
    available = len(data) - position
    if available < FIXED_BYTES:
        raise RecordError(f"a record has at least {FIXED_BYTES} bytes, but {available} are left")
    size, magic = SIZE_AND_MAGIC.unpack_from(data, position)
    if magic != MESSAGE_MAGIC:
        raise RecordError(f"the magic number is {magic:#010x}; that of a message is {MESSAGE_MAGIC:#010x}")
    if not FIXED_BYTES <= size <= available:
        raise RecordError(f"the record states a size of {size} bytes: {FIXED_BYTES} to {available} are possible here")
    (
        _, _, body_crc, queue_id, flag, queue_offset, physical_offset, sys_flag, born_timestamp_ms,
        born_host, store_timestamp_ms, store_host, reconsume_times, prepared_offset, body_length,
    ) = HEAD.unpack_from(data, position)  # fmt: skip
    at = position + HEAD.size
    if sys_flag & flags.HOST_MASK:
        at = position + _UP_TO_BORN.size
        born_bytes = 20 if sys_flag & flags.BORN_HOST_IPV6 else 8
        store_bytes = 20 if sys_flag & flags.STORE_HOST_IPV6 else 8
        if size < FIXED_BYTES - 16 + born_bytes + store_bytes:
            raise RecordError(f"the record states a size of {size} bytes, too few for its IPv6 addresses")
        born_host = bytes(data[at : at + born_bytes])
        at += born_bytes
        (store_timestamp_ms,) = _STORE_TIMESTAMP.unpack_from(data, at)
        at += _STORE_TIMESTAMP.size
        store_host = bytes(data[at : at + store_bytes])
        at += store_bytes
        reconsume_times, prepared_offset, body_length = _AFTER_STORE.unpack_from(data, at)
        at += _AFTER_STORE.size
    end = position + size
    topic_at = at + body_length
    if body_length < 0 or topic_at + 3 > end:
        raise RecordError(f"the body length {body_length} does not fit in a record of {size} bytes")
    topic_length = data[topic_at]
    properties_at = topic_at + 1 + topic_length
    if topic_length > MAX_TOPIC_LENGTH or properties_at + 2 > end:
        raise RecordError(f"the topic length {topic_length} does not fit in a record of {size} bytes")
    (properties_length,) = PROPERTIES_LENGTH.unpack_from(data, properties_at)
    if properties_length < 0 or properties_at + 2 + properties_length != end:
        raise RecordError(f"the properties length {properties_length} does not fit in a record of {size} bytes")
    body = bytes(data[at:topic_at])
    if check_crc and crc32(body) & 0x7FFFFFFF != body_crc:
        raise RecordError("the body's checksum does not match")
    return Record(
        topic=str(data[topic_at + 1 : properties_at], "utf-8", "surrogateescape"),
        queue_id=queue_id,
        queue_offset=queue_offset,
        physical_offset=physical_offset,
        flag=flag,
        sys_flag=sys_flag,
        born_timestamp_ms=born_timestamp_ms,
        born_host=born_host,
        store_timestamp_ms=store_timestamp_ms,
        store_host=store_host,
        reconsume_times=reconsume_times,
        prepared_transaction_offset=prepared_offset,
        body=body,
        body_crc=body_crc,
        raw_properties=bytes(data[properties_at + 2 : end]),
        size=size,
    )
