"""Messages as sent by producers and received by consumers."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import IntEnum
from functools import lru_cache
from typing import Final

import msgspec

from delaymq.client.due_times import Delay, Schedule, delay_in_ms, due_in_ms, due_of_handle
from delaymq.client.errors import NoSuchDelayError
from delaymq.client.message_fields import check_kinds, check_property, checked_body, checked_keys
from delaymq.message import flags, names
from delaymq.message.compression import inflate
from delaymq.message.errors import IllegalMessageError, NewerFormError, RecordError
from delaymq.message.ids import offset_message_id
from delaymq.message.marks import DUE_WIDTH
from delaymq.message.names import topic_problem
from delaymq.message.properties import MAX_PROPERTIES_BYTES, format_properties, is_storable
from delaymq.message.record import (
    ENCODED_MAGIC,
    FIXED_BYTES,
    MAGIC_AT,
    MESSAGE_MAGIC,
    OUTLINE,
    SIZE_AND_MAGIC,
    Record,
    decode_record,
)
from delaymq.message.timed_marks import parse_own_due, parse_own_mark
from delaymq.protocol.bodies import MessageQueue

_logger = logging.getLogger(__name__)

INFLATED_HERE_BYTES: Final = 8 * 1024
"""Size in bytes above which the compressed bodies of a response are decompressed in a thread: 8 KiB can expand to 8
MiB.
"""
KEY_SEPARATOR: Final = " "
_RESERVED: Final = frozenset(
    {
        names.KEYS, names.TAGS, names.DELAY, names.WAIT, names.UNIQUE_KEY, names.REAL_TOPIC, names.REAL_QUEUE_ID,
        names.TRANSACTION_PREPARED, names.PRODUCER_GROUP, names.RETRY_TOPIC, names.ORIGIN_MESSAGE_ID,
        *names.TIMER_PROPERTIES,
    }
)  # fmt: skip
"""Properties that only brokers and this client may set."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Message:
    """A message to send. A field of the wrong type raises IllegalMessageError, a ValueError."""

    topic: str
    body: bytes
    """A bytearray or memoryview is copied."""
    tags: str = ""
    """A single tag, by which consumers can filter."""
    keys: Sequence[str] = ()
    """Keys by which the message can be searched, without spaces, as a tuple. A string is one key."""
    properties: dict[str, str] = field(default_factory=dict)
    delay_level: int = 0
    """Delay level; 0: no delay. The broker's table defines the levels. Excludes `delay` and `at`."""
    wait_stored: bool = True
    """Whether the response waits until the message is on disk, if the broker flushes synchronously."""
    flag: int = 0
    """Free for the application; brokers store it unchanged."""
    delay: Delay | None = None
    """Delay by the broker's clock, such as `1500ms`, a number of seconds or a timedelta, rounded up to milliseconds."""
    at: datetime | None = None
    """Due time with a time zone, rounded up to milliseconds. Excludes `delay`."""

    def __post_init__(self) -> None:
        check_kinds(self)
        try:
            schedule_for(self)
        except NoSuchDelayError as error:
            raise IllegalMessageError(str(error)) from error
        object.__setattr__(self, "body", checked_body(self.body))
        object.__setattr__(self, "keys", checked_keys(self.keys))


class SendStatus(IntEnum):
    """Result of a send whose message is in the broker's log; with any value but OK, it may be lost if the machine
    fails.
    """

    OK = 0
    FLUSH_DISK_TIMEOUT = 10
    SLAVE_NOT_AVAILABLE = 11
    FLUSH_SLAVE_TIMEOUT = 12


class SendResult(msgspec.Struct, frozen=True):
    """Location of a sent message. For a batch, IDs are joined by commas, and `queue_offset` is that of the first
    message.
    """

    status: SendStatus
    message_id: str
    """The unique id, which the producer assigned."""
    offset_message_id: str
    """ID by which the broker finds the message in its log; for a delayed message, that of the pending record."""
    queue: MessageQueue
    queue_offset: int
    region: str = ""
    """Region of the broker (its regionId)."""
    trace_on: bool = True
    """Whether the broker requests that sends be traced."""
    recall_handle: str | None = None
    """Identifies a pending timed message; None for all other messages, and for a timed one that was due immediately."""
    is_kept: bool = False
    """Whether nothing was stored because a message with the same key is pending, which this result then describes."""

    @property
    def due_ms(self) -> int | None:
        """Due time of a pending timed message in ms since 1970, from its recall handle."""
        return due_of_handle(self.recall_handle)


class ReceivedMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message received from a queue."""

    topic: str
    """Topic of the message; for a retry, the topic to which it was first sent."""
    body: bytes
    """Body as sent; a compressed body that cannot be decompressed is returned as stored."""
    queue: MessageQueue
    """Queue from which it was received; for a retry, a queue of the group's retry topic."""
    queue_offset: int
    physical_offset: int
    message_id: str
    """The unique id; for a message without one, the offset message id."""
    offset_message_id: str
    properties: dict[str, str]
    born_timestamp_ms: int
    """Time of the send, by the producer's clock."""
    store_timestamp_ms: int
    """Time when this record was written, by the broker's clock; for a delayed message, the time of its delivery."""
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
        """Delay level of the message; 0 if it was not delayed."""
        text = self.properties.get(names.DELAY, "0")
        return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0

    @property
    def due_ms(self) -> int | None:
        """Due time of a delayed or timed message in ms since 1970, if the broker provides it; otherwise None.

        For a message that was retried, it is that of its last retry.
        """
        text = self.properties.get(names.DUE, "")
        head = text.partition(":")[0]
        if len(text) == DUE_WIDTH and head.isascii() and head.isdigit():
            return int(head)
        try:
            timed = parse_own_due(text, self.physical_offset) or parse_own_mark(
                self.properties.get(names.MARK, ""), self.physical_offset
            )
        except NewerFormError:
            return None
        return None if timed is None else timed.due_ms


def schedule_for(message: Message, delay: object = None, at: object = None) -> Schedule | None:
    """Return when `message` is due, with the arguments of its send; None: immediately, or after its delay level.

    IllegalMessageError if more than one of delay, due time and delay level is given, or the due time is invalid;
    NoSuchDelayError for an invalid delay.
    """
    if delay is None and at is None and message.delay is None and message.at is None:
        return None
    given = {
        "the send's delay": delay,
        "the send's at": at,
        "the message's delay": message.delay,
        "the message's at": message.at,
        "the message's delay_level": message.delay_level or None,
    }
    stated = [name for name, value in given.items() if value is not None]
    if len(stated) > 1:
        raise IllegalMessageError(f"{' and '.join(stated)} exclude each other: give one of them")
    due = message.at if at is None else at
    if due is not None:
        return Schedule(due_ms=due_in_ms(due))
    delay_ms = delay_in_ms(message.delay if delay is None else delay)
    return Schedule(delay_ms=delay_ms) if delay_ms else None


_topic_problem = lru_cache(maxsize=1_024)(topic_problem)
"""Cached, since each send validates its topic and topics are few."""


def outgoing_properties(message: Message, unique_id: str, delay_level: int = 0) -> dict[str, str]:
    """Return the properties sent with `message`. IllegalMessageError if one of its fields is invalid."""
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
    """Return the encoded properties. IllegalMessageError if no record can contain them."""
    text = format_properties(properties)
    size = len(text) if text.isascii() else len(text.encode("utf-8", "surrogateescape"))
    if size > MAX_PROPERTIES_BYTES:
        raise IllegalMessageError(
            f"the properties have {size} bytes, and the maximum is {MAX_PROPERTIES_BYTES}: send fewer or shorter ones"
        )
    return text


def _plain(text: str, what: str) -> str:
    if not is_storable("x", text):
        raise IllegalMessageError(f"{what} {text!r} must not contain \\x01 or \\x02")
    return text


def decode_messages(
    data: bytes, broker_name: str, *, retry_topic: str = "", enough_bytes: int = sys.maxsize
) -> list[ReceivedMessage]:
    """Return the messages in the body of a pull or query response.

    Messages in `retry_topic` have their original topic. Decoding stops after the message with which the bodies have
    `enough_bytes`. A record that is damaged on the broker's disk is skipped, since it would block all messages after
    it. RecordError if the end of such a record cannot be determined.
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
    """Return the number of bytes of records with compressed bodies in a pull response; unreadable records count as
    0.
    """
    total = at = 0
    while at + FIXED_BYTES <= len(data):
        size, _, sys_flag, _ = OUTLINE.unpack_from(data, at)
        if size < FIXED_BYTES:
            break
        if sys_flag & flags.COMPRESSED:
            total += size
        at += size
    return total


def _bytes_of_damaged(data: bytes, at: int) -> int | None:
    """Return the size of the damaged record at `at`, if its header states it and another record or the end follows."""
    if len(data) - at < FIXED_BYTES:
        return None
    size, magic = SIZE_AND_MAGIC.unpack_from(data, at)
    end = at + size
    if magic != MESSAGE_MAGIC or size < FIXED_BYTES or end > len(data):
        return None
    if end < len(data) and not data.startswith(ENCODED_MAGIC, end + MAGIC_AT):
        return None
    return int(size)


async def received_in_thread(record: Record, broker_name: str, retry_topic: str = "") -> ReceivedMessage:
    """Return `received(record)` without blocking the event loop for a large compressed body."""
    if record.sys_flag & flags.COMPRESSED and len(record.body) > INFLATED_HERE_BYTES:
        return await asyncio.to_thread(received, record, broker_name, retry_topic)
    return received(record, broker_name, retry_topic)


def received(record: Record, broker_name: str, retry_topic: str = "") -> ReceivedMessage:
    """Return `record` as consumers receive it."""
    properties = record.properties
    body = record.body
    if record.sys_flag & flags.COMPRESSED:
        # One unreadable message must not block those after it.
        try:
            body = inflate(body, record.sys_flag)
        except RecordError as error:
            text = "the body at physical offset %d of %s is returned as stored, because it cannot be decompressed: %s"
            _logger.warning(text, record.physical_offset, broker_name, error)
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
