"""Messages as producers make them and consumers get them."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import lru_cache
from typing import Final

import msgspec

from delaymq.client.message_fields import check_kinds, check_property, checked_body, checked_keys
from delaymq.message import flags, names
from delaymq.message.compression import inflate
from delaymq.message.errors import IllegalMessageError, RecordError
from delaymq.message.ids import offset_message_id
from delaymq.message.marks import DUE_WIDTH
from delaymq.message.names import topic_problem
from delaymq.message.properties import MAX_PROPERTIES_BYTES, format_properties, is_storable
from delaymq.message.record import FIXED_BYTES, MESSAGE_MAGIC, SIZE_AND_MAGIC, SYS_FLAG_AT, Record, decode_record
from delaymq.protocol.bodies import MessageQueue

_logger = logging.getLogger(__name__)

INFLATED_HERE_BYTES: Final = 8 * 1024
"""Compressed bodies of more bytes than this, in one answer, are inflated in a thread: 8 KiB may become 8 MiB."""
KEY_SEPARATOR: Final = " "
# What only brokers and this client may set.
_RESERVED: Final = frozenset(
    {
        names.KEYS, names.TAGS, names.DELAY, names.WAIT, names.UNIQUE_KEY, names.REAL_TOPIC, names.REAL_QUEUE_ID,
        names.TRANSACTION_PREPARED, names.PRODUCER_GROUP, names.RETRY_TOPIC, names.ORIGIN_MESSAGE_ID,
    }
)  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Message:
    """A message to send. IllegalMessageError, a ValueError, for a field that has a value of the wrong type."""

    topic: str
    body: bytes
    """A bytearray or memoryview is copied."""
    tags: str = ""
    """One tag, by which consumers can choose."""
    keys: Sequence[str] = ()
    """Keys by which it can be found, without blanks, as a tuple. A string is one key."""
    properties: dict[str, str] = field(default_factory=dict)
    delay_level: int = 0
    """0: at once. The broker's table says what the others mean; `delay=` of a send finds the level."""
    wait_stored: bool = True
    """Whether the answer waits for the disk, where the broker flushes synchronously."""
    flag: int = 0
    """For the application; brokers keep it and do not look at it."""

    def __post_init__(self) -> None:
        check_kinds(self)
        object.__setattr__(self, "body", checked_body(self.body))
        object.__setattr__(self, "keys", checked_keys(self.keys))


class SendStatus(IntEnum):
    """How a send ended that the broker has in its log; all but OK: it may be lost if the machine fails now."""

    OK = 0
    FLUSH_DISK_TIMEOUT = 10
    SLAVE_NOT_AVAILABLE = 11
    FLUSH_SLAVE_TIMEOUT = 12


class SendResult(msgspec.Struct, frozen=True):
    """Where a message went. For a batch ids are joined by commas and `queue_offset` is the first one's."""

    status: SendStatus
    message_id: str
    """The unique id, given by the producer."""
    offset_message_id: str
    """The id by which the broker finds it in its log; of a delayed message that is its waiting record."""
    queue: MessageQueue
    queue_offset: int
    region: str = ""
    """The broker's (its regionId)."""
    trace_on: bool = True
    """Whether the broker wants sends to be traced."""


class ReceivedMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message as it was taken from a queue."""

    topic: str
    """For a retry the topic that it was first sent to."""
    body: bytes
    """As it was sent; a compressed one that cannot be read is given as it is stored."""
    queue: MessageQueue
    """Where it was taken from: for a retry a queue of the group's retry topic."""
    queue_offset: int
    physical_offset: int
    message_id: str
    """The unique id of the producer, or the offset message id if there is none."""
    offset_message_id: str
    properties: dict[str, str]
    born_timestamp_ms: int
    """When it was sent, by the producer's clock."""
    store_timestamp_ms: int
    """When this record was written, by the broker's clock; for a delayed one when it was handed over."""
    reconsume_times: int
    flag: int = 0
    sys_flag: int = 0

    @property
    def tags(self) -> str:
        return self.properties.get(names.TAGS, "")

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(self.properties.get(names.KEYS, "").split(KEY_SEPARATOR)) if names.KEYS in self.properties else ()

    @property
    def delay_level(self) -> int:
        """0 if it was not delayed."""
        text = self.properties.get(names.DELAY, "0")
        return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0

    @property
    def due_ms(self) -> int | None:
        """When it was due, where the broker tells it; None otherwise."""
        text = self.properties.get(names.DUE, "")
        head = text.partition(":")[0]
        return int(head) if len(text) == DUE_WIDTH and head.isascii() and head.isdigit() else None


_topic_problem = lru_cache(maxsize=1_024)(topic_problem)
"""Each send asks, mostly for the same few topics."""


def outgoing_properties(message: Message, unique_id: str, delay_level: int = 0) -> dict[str, str]:
    """The properties that travel with `message`; IllegalMessageError when something in it cannot."""
    problem = _topic_problem(message.topic)
    if problem is not None:
        raise IllegalMessageError(problem)
    properties = dict(message.properties)
    for name, value in properties.items():
        check_property(name, value)
        if name in _RESERVED or name.startswith(names.OWN_PREFIX):
            raise IllegalMessageError(
                f"property {name} is reserved: use the corresponding field of the message, or another name"
            )
        if not is_storable(name, value):
            raise IllegalMessageError(f"property {name!r}: name and value must not be empty or contain \\x01 or \\x02")
    if message.tags:
        properties[names.TAGS] = _plain(message.tags, "the tag")
    if message.keys:
        for key in message.keys:
            if not key or KEY_SEPARATOR in key:
                raise IllegalMessageError(f"key {key!r}: keys must not be empty or contain spaces")
        properties[names.KEYS] = _plain(KEY_SEPARATOR.join(message.keys), "a key")
    properties[names.UNIQUE_KEY] = unique_id
    properties[names.WAIT] = "true" if message.wait_stored else "false"
    level = delay_level or message.delay_level
    if level < 0:
        raise IllegalMessageError(f"delay level {level}: a level must be 0 (no delay) or more")
    if level:
        properties[names.DELAY] = str(level)
    return properties


def properties_text(properties: dict[str, str]) -> str:
    """The form in which they travel; IllegalMessageError when no record can hold them."""
    text = format_properties(properties)
    size = len(text) if text.isascii() else len(text.encode("utf-8", "surrogateescape"))
    if size > MAX_PROPERTIES_BYTES:
        raise IllegalMessageError(
            f"the properties have {size} bytes, and the maximum is {MAX_PROPERTIES_BYTES}: send fewer"
        )
    return text


def _plain(text: str, what: str) -> str:
    if not is_storable("x", text):
        raise IllegalMessageError(f"{what} {text!r} must not hold \\x01 or \\x02")
    return text


def decode_messages(
    data: bytes, broker_name: str, *, retry_topic: str = "", enough_bytes: int = sys.maxsize
) -> list[ReceivedMessage]:
    """The messages of a pull's or a query's body; messages in `retry_topic` show the topic that they came from. The
    last one is that with which their bodies have `enough_bytes`.

    A record that was damaged on the broker's disk is left out: it will not get better, and must not hold up all behind
    it. RecordError when it cannot even be told where it ends.
    """
    messages: list[ReceivedMessage] = []
    at = taken_bytes = 0
    while at < len(data) and taken_bytes < enough_bytes:
        try:
            record = decode_record(data, at)
        except RecordError as error:
            size = _bytes_of_damaged(data, at)
            if size is None:
                raise
            _logger.error("skipped a damaged message from %s: %s", broker_name, error)
            at += size
            continue
        message = received(record, broker_name, retry_topic)
        messages.append(message)
        taken_bytes += len(message.body)
        at += record.size
    return messages


def compressed_bytes(data: bytes) -> int:
    """How many bytes of a pull's body are records whose bodies are compressed; what cannot be read counts as none."""
    total = at = 0
    while at + FIXED_BYTES <= len(data):
        size = int.from_bytes(data[at : at + 4], "big", signed=True)
        if size < FIXED_BYTES:
            break
        if data[at + SYS_FLAG_AT + 3] & flags.COMPRESSED:
            total += size
        at += size
    return total


def _bytes_of_damaged(data: bytes, at: int) -> int | None:
    """The size of the record at `at`, if its head still tells it and another record or the end follows."""
    if len(data) - at < FIXED_BYTES:
        return None
    size, magic = SIZE_AND_MAGIC.unpack_from(data, at)
    end = at + size
    if magic != MESSAGE_MAGIC or size < FIXED_BYTES or end > len(data):
        return None
    if end < len(data) and data[end + 4 : end + 8] != MESSAGE_MAGIC.to_bytes(4, "big"):
        return None
    return int(size)


async def received_beside(record: Record, broker_name: str, retry_topic: str = "") -> ReceivedMessage:
    """As `received`, without holding up the loop for a large body that is compressed."""
    if record.sys_flag & flags.COMPRESSED and len(record.body) > INFLATED_HERE_BYTES:
        return await asyncio.to_thread(received, record, broker_name, retry_topic)
    return received(record, broker_name, retry_topic)


def received(record: Record, broker_name: str, retry_topic: str = "") -> ReceivedMessage:
    """`record` as a consumer sees it."""
    properties = record.properties
    body = record.body
    if record.sys_flag & flags.COMPRESSED:
        # One message that nobody can read must not hold up all behind it.
        try:
            body = inflate(body, record.sys_flag)
        except RecordError as error:
            _logger.warning("message at %d of %s: %s", record.physical_offset, broker_name, error)
    own_id = offset_message_id(record.store_host, record.physical_offset)
    topic = record.topic
    if topic == retry_topic:
        topic = properties.get(names.RETRY_TOPIC, topic)
    return ReceivedMessage(
        topic=topic,
        body=body,
        queue=MessageQueue(broker_name, record.queue_id, record.topic),
        queue_offset=record.queue_offset,
        physical_offset=record.physical_offset,
        message_id=properties.get(names.UNIQUE_KEY, own_id),
        offset_message_id=own_id,
        properties=properties,
        born_timestamp_ms=record.born_timestamp_ms,
        store_timestamp_ms=record.store_timestamp_ms,
        reconsume_times=record.reconsume_times,
        flag=record.flag,
        sys_flag=record.sys_flag,
    )
