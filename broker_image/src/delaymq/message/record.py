"""Codec of commit log records (docs/formats/store.md, "Commit-log record").

Other modules that read or change parts of a record use this module's names instead of numbers.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias
from zlib import crc32

from delaymq.message import flags
from delaymq.message.errors import IllegalMessageError, RecordError
from delaymq.message.names import MAX_TOPIC_LENGTH
from delaymq.message.properties import MAX_PROPERTIES_BYTES, decode_properties

MESSAGE_MAGIC: Final = 0xDAA320A7
"""Magic number of a message."""
MESSAGE_MAGIC_V2: Final = 0xDAA320AB
"""Magic number of a message of RocketMQ 5 whose topic may exceed 127 bytes; this module cannot decode it."""
BLANK_MAGIC: Final = 0xCBD43194
"""Magic number of the blank record that fills the end of a segment."""
BLANK_BYTES: Final = 8
"""Size and magic of a blank record; a message leaves at least this much at the end of a segment."""
FIXED_BYTES: Final = 91
"""Size of a record without body, topic and properties, with IPv4 hosts."""
IPV4_HOST_BYTES: Final = 8
"""Size of a host with an IPv4 address: the address and the port."""
IPV6_HOST_BYTES: Final = 20
"""Size of a host with an IPv6 address."""
IPV6_EXTRA_BYTES: Final = IPV6_HOST_BYTES - IPV4_HOST_BYTES
"""Additional size of an IPv6 host."""
_WITHOUT_HOSTS_BYTES: Final = FIXED_BYTES - 2 * IPV4_HOST_BYTES
BODY_CRC_MASK: Final = 0x7FFFFFFF
"""Bits of zlib's crc32 of the body that a record contains."""

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
HEAD_BYTES: Final = HEAD.size
"""Size of the fields before the body if both hosts are IPv4."""
assert HEAD_BYTES == 88
# The same fields in three parts, for hosts of any width:
_UP_TO_BORN = struct.Struct(">iIIiiqqiq")
_STORE_TIMESTAMP = struct.Struct(">q")
_AFTER_STORE = struct.Struct(">iqi")
assert _UP_TO_BORN.size + _STORE_TIMESTAMP.size + _AFTER_STORE.size + 2 * IPV4_HOST_BYTES == HEAD.size

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
PREPARED_OFFSET_BEHIND_STORE_HOST: Final = struct.calcsize(">i")
"""Position relative to the end of the store host."""

SIZE_BYTES: Final = struct.calcsize(">i")
"""Size of the first field, which states the size of the record."""
QUEUE_ID_BYTES: Final = struct.calcsize(">i")
"""Size of the queue id at QUEUE_ID_AT."""
QUEUE_OFFSET_BYTES: Final = struct.calcsize(">q")
"""Size of the queue offset at QUEUE_OFFSET_AT."""
PHYSICAL_OFFSET_BYTES: Final = struct.calcsize(">q")
"""Size of the physical offset at PHYSICAL_OFFSET_AT."""
SYS_FLAG_BYTES: Final = struct.calcsize(">i")
"""Size of the sys flag at SYS_FLAG_AT."""
STORE_TIMESTAMP_BYTES: Final = _STORE_TIMESTAMP.size
"""Size of the store timestamp, which is between the born host and the store host."""
AFTER_STORE_HOST_BYTES: Final = _AFTER_STORE.size
"""Size of the fields between the store host and the body."""
BODY_LENGTH = struct.Struct(">i")
"""The last field before the body."""
BODY_LENGTH_BYTES: Final = BODY_LENGTH.size
"""Size of the body's length."""

TOPIC_LENGTH_BYTES: Final = 1
"""Size of the topic's length, an unsigned byte at the start of the tail."""
PROPERTIES_LENGTH = struct.Struct(">h")
"""The length of the properties, which is between the topic and the properties."""
_unpack_properties_length = PROPERTIES_LENGTH.unpack_from
PROPERTIES_LENGTH_BYTES: Final = PROPERTIES_LENGTH.size
"""Size of the properties' length."""
TAIL_LENGTHS_BYTES: Final = TOPIC_LENGTH_BYTES + PROPERTIES_LENGTH_BYTES
"""Size of both lengths. The tail of a record, which follows the body, consists of the topic's length, the topic, the
properties' length and the properties.
"""
MAX_TAIL_BYTES: Final = TAIL_LENGTHS_BYTES + MAX_TOPIC_LENGTH + MAX_PROPERTIES_BYTES
"""Maximum size of a tail."""
assert HEAD.size + TAIL_LENGTHS_BYTES == FIXED_BYTES

ENCODED_MAGIC: Final = MESSAGE_MAGIC.to_bytes(struct.calcsize(">I"), "big")
"""Bytes of MESSAGE_MAGIC in a record; the record starts MAGIC_AT bytes before them."""
MAGIC_OVERLAP_BYTES: Final = len(ENCODED_MAGIC) - 1
"""Bytes that adjacent pieces of a search share, so that one of them contains every magic number completely."""

# Some fields of a head, for scans of many records:
SIZE_AND_MAGIC = struct.Struct(">iI")
BODY_CRC = struct.Struct(f">{BODY_CRC_AT}xI")
PLACE = struct.Struct(f">iI{QUEUE_OFFSET_AT - SIZE_AND_MAGIC.size}xq")
"""Size, magic, queue offset."""
UP_TO_PHYSICAL_OFFSET = struct.Struct(">iIIiiqq")
"""Size, magic, CRC, queue id, flag, queue offset, physical offset."""
OUTLINE = struct.Struct(
    f">iI{SYS_FLAG_AT - SIZE_AND_MAGIC.size}xi{HEAD.size - SYS_FLAG_AT - SYS_FLAG_BYTES - BODY_LENGTH_BYTES}xi"
)
"""Size, magic, sys flag and, if both hosts are IPv4, the length of the body."""
QUEUE_OUTLINE = struct.Struct(
    f">iIIi{QUEUE_OFFSET_AT - FLAG_AT}xq{SYS_FLAG_AT - PHYSICAL_OFFSET_AT}xi"
    f"{HEAD.size - SYS_FLAG_AT - SYS_FLAG_BYTES - BODY_LENGTH_BYTES}xi"
)
"""Size, magic, CRC, queue id, queue offset, sys flag and, if both hosts are IPv4, the length of the body."""
assert OUTLINE.size == QUEUE_OUTLINE.size == HEAD.size
MAX_HEAD_BYTES: Final = HEAD.size + 2 * IPV6_EXTRA_BYTES
"""Maximum size of the fields before the body."""


@dataclass(slots=True)
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
    """zlib's crc32 of the body & BODY_CRC_MASK."""
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
    return _WITHOUT_HOSTS_BYTES + len(born_host) + len(store_host) + topic_bytes + body_bytes + properties_bytes


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
    body_crc: int | None = None,
) -> bytes:
    """Return the bytes of a record. The IPv6 bits of `sys_flag` are set by the hosts, as in RocketMQ's broker.

    The parameters are in the order of a record's fields; the hot path passes them by position. `body_crc` is that of
    the body, if it is known from another record.
    IllegalMessageError if the topic or the properties exceed the format's length fields.
    """
    topic_length, body_length, properties_length = len(topic), len(body), len(properties)
    if topic_length > MAX_TOPIC_LENGTH or properties_length > MAX_PROPERTIES_BYTES:
        check_record_parts(topic_length, properties_length)
    if body_crc is None:
        body_crc = crc32(body) & BODY_CRC_MASK
    if len(born_host) == IPV4_HOST_BYTES and len(store_host) == IPV4_HOST_BYTES:
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
        (
            head,
            body,
            topic_length.to_bytes(TOPIC_LENGTH_BYTES, "big"),
            topic,
            PROPERTIES_LENGTH.pack(properties_length),
            properties,
        )
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
    if len(born_host) == IPV6_HOST_BYTES:
        sys_flag |= flags.BORN_HOST_IPV6
    if len(store_host) == IPV6_HOST_BYTES:
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
    at = BORN_HOST_AT + (IPV6_HOST_BYTES if sys_flag & flags.BORN_HOST_IPV6 else IPV4_HOST_BYTES)
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


def possible_starts(piece: bytes, position: int) -> Iterator[int]:
    """Yield the positions at which records may start, by their magic numbers in a piece of a file at `position`.

    The first may be up to MAGIC_AT bytes before the piece.
    """
    hit = piece.find(ENCODED_MAGIC)
    while hit >= 0:
        yield position + hit - MAGIC_AT
        hit = piece.find(ENCODED_MAGIC, hit + 1)


RecordHead: TypeAlias = tuple[int, int, int, int, int, int, int, int, int, bytes, int, bytes, int, int, int]
"""The fields of HEAD, with hosts of 8 or 20 bytes."""


def encoded_topic(topic: str) -> bytes:
    """Return a valid topic as in a record, after its length."""
    encoded = topic.encode("utf-8", "surrogateescape")
    return len(encoded).to_bytes(TOPIC_LENGTH_BYTES, "big") + encoded


def split_record(
    data: bytes | bytearray | memoryview, position: int = 0, *, check_crc: bool = True
) -> tuple[RecordHead, bytes, bytes, bytes]:
    """Return the head, the topic, the body and the properties of the message record at `position` of `data`.

    `data` may extend beyond the record. RecordError as `decode_record`.
    """
    available = len(data) - position
    if available < FIXED_BYTES:
        raise RecordError(f"a record has at least {FIXED_BYTES} bytes, but {available} are left")
    head: RecordHead = HEAD.unpack_from(data, position)
    size, magic, body_crc, _, _, _, _, sys_flag, _, _, _, _, _, _, body_length = head
    if magic != MESSAGE_MAGIC:
        raise RecordError(f"the magic number is {magic:#010x}; that of a message is {MESSAGE_MAGIC:#010x}")
    if not FIXED_BYTES <= size <= available:
        raise RecordError(f"the record states a size of {size} bytes: {FIXED_BYTES} to {available} are possible here")
    at = position + HEAD_BYTES
    if sys_flag & flags.HOST_MASK:
        head, at = _head_with_wide_hosts(data, position, head)
        body_length = head[-1]
    end = position + size
    topic_at = at + body_length
    if body_length < 0 or topic_at + TAIL_LENGTHS_BYTES > end:
        raise RecordError(f"the body length {body_length} does not fit in a record of {size} bytes")
    topic_length = data[topic_at]
    properties_at = topic_at + TOPIC_LENGTH_BYTES + topic_length
    if topic_length > MAX_TOPIC_LENGTH or properties_at + PROPERTIES_LENGTH_BYTES > end:
        raise RecordError(f"the topic length {topic_length} does not fit in a record of {size} bytes")
    (properties_length,) = _unpack_properties_length(data, properties_at)
    if properties_length < 0 or properties_at + PROPERTIES_LENGTH_BYTES + properties_length != end:
        raise RecordError(f"the properties length {properties_length} does not fit in a record of {size} bytes")
    body = bytes(data[at:topic_at])
    if check_crc and crc32(body) & BODY_CRC_MASK != body_crc:
        raise RecordError("the body's checksum does not match")
    return (
        head,
        bytes(data[topic_at + TOPIC_LENGTH_BYTES : properties_at]),
        body,
        bytes(data[properties_at + PROPERTIES_LENGTH_BYTES : end]),
    )


def _head_with_wide_hosts(
    data: bytes | bytearray | memoryview, position: int, head: RecordHead
) -> tuple[RecordHead, int]:
    """Return the head of a record with IPv6 hosts, and the position of its body."""
    size, sys_flag = head[0], head[7]
    at = position + _UP_TO_BORN.size
    born_bytes = IPV6_HOST_BYTES if sys_flag & flags.BORN_HOST_IPV6 else IPV4_HOST_BYTES
    store_bytes = IPV6_HOST_BYTES if sys_flag & flags.STORE_HOST_IPV6 else IPV4_HOST_BYTES
    if size < _WITHOUT_HOSTS_BYTES + born_bytes + store_bytes:
        raise RecordError(f"the record states a size of {size} bytes, too few for its IPv6 addresses")
    born_host = bytes(data[at : at + born_bytes])
    at += born_bytes
    (store_timestamp_ms,) = _STORE_TIMESTAMP.unpack_from(data, at)
    at += _STORE_TIMESTAMP.size
    store_host = bytes(data[at : at + store_bytes])
    at += store_bytes
    reconsume_times, prepared_offset, body_length = _AFTER_STORE.unpack_from(data, at)
    wide = (*head[:9], born_host, store_timestamp_ms, store_host, reconsume_times, prepared_offset, body_length)
    return wide, at + _AFTER_STORE.size


def decode_record(data: bytes | bytearray | memoryview, position: int = 0, *, check_crc: bool = True) -> Record:
    """Decode the message record at `position` of `data`, which may extend beyond it.

    RecordError if the record is invalid, or blank (see `SIZE_AND_MAGIC`).
    """
    head, topic, body, properties = split_record(data, position, check_crc=check_crc)
    (
        size, _, body_crc, queue_id, flag, queue_offset, physical_offset, sys_flag, born_timestamp_ms,
        born_host, store_timestamp_ms, store_host, reconsume_times, prepared_offset, _,
    ) = head  # fmt: skip
    return Record(
        topic.decode("utf-8", "surrogateescape"),
        queue_id, queue_offset, physical_offset, flag, sys_flag, born_timestamp_ms, born_host, store_timestamp_ms,
        store_host, reconsume_times, prepared_offset, body, body_crc, properties, size,
    )  # fmt: skip
