"""Messages as sent by producers and received by consumers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from copy import copy
from datetime import datetime
from enum import IntEnum
from operator import attrgetter
from typing import Final

import msgspec
from msgspec.structs import force_setattr

from delaymq.client.due_times import Delay, Schedule, delay_in_ms, due_in_ms, due_of_handle
from delaymq.client.errors import NoSuchDelayError
from delaymq.client.message_fields import check_flag, checked_body, checked_keys, wrong_kind
from delaymq.message import names
from delaymq.message.errors import IllegalMessageError, NewerFormError
from delaymq.message.ids import offset_message_id
from delaymq.message.marks import DUE_WIDTH
from delaymq.message.properties import decode_properties
from delaymq.message.record import HEAD, MESSAGE_MAGIC, RecordHead
from delaymq.message.timed_marks import parse_own_due, parse_own_mark
from delaymq.protocol.bodies import MessageQueue

KEY_SEPARATOR: Final = " "


class Message(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A message to send. A field of the wrong type raises IllegalMessageError, a ValueError.

    The garbage collector ignores messages, which halves the cost of creating many. A subclass with a field that may
    refer back to the message needs `gc=True`.
    """

    topic: str
    body: bytes
    """A bytearray or memoryview is copied."""
    tags: str = ""
    """A single tag, by which consumers can filter."""
    keys: Sequence[str] = ()
    """Keys by which the message can be searched, without spaces, as a tuple. A string is one key."""
    properties: dict[str, str] = msgspec.field(default_factory=dict)
    delay_level: int = 0
    """Delay level; 0: no delay. The broker's table defines the levels. Excludes `delay` and `at`."""
    wait_stored: bool = True
    """Whether the response waits until the message is on disk, if the broker flushes synchronously."""
    flag: int = 0
    """Free for the application, 32 bits with sign; brokers store it unchanged."""
    delay: Delay | None = None
    """Delay by the broker's clock, such as `1500ms`, a number of seconds or a timedelta, rounded up to milliseconds."""
    at: datetime | None = None
    """Due time with a time zone, rounded up to milliseconds. Excludes `delay`."""

    def __post_init__(self) -> None:
        properties: object = self.properties
        if properties is None:
            force_setattr(self, "properties", {})
        if not (
            isinstance(self.topic, str)
            and isinstance(self.tags, str)
            and isinstance(self.properties, dict)
            and isinstance(self.delay_level, int)
            and isinstance(self.flag, int)
        ):
            raise wrong_kind(self.topic, self.tags, self.properties, self.delay_level, self.flag)
        if self.flag:
            check_flag(self.flag)
        if type(self.body) is not bytes:
            force_setattr(self, "body", checked_body(self.body))
        if self.keys != ():
            force_setattr(self, "keys", checked_keys(self.keys))
        if self.delay is not None or self.at is not None:
            try:
                schedule_for(self)
            except NoSuchDelayError as error:
                raise IllegalMessageError(str(error)) from error


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


class ReceivedMessage:
    """A message received from a queue. Its attributes cannot be assigned."""

    # Most consumers read few attributes: what a record contains is decoded when it is first read.
    __slots__ = (
        "_body", "_head", "_message_id", "_offset_message_id", "_properties", "_queue", "_queue_offset", "_sys_flag",
        "_topic",
    )  # fmt: skip

    _head: RecordHead | bytes
    _properties: dict[str, str] | bytes
    _message_id: str | None
    _offset_message_id: str | None

    def __init__(
        self,
        *,
        topic: str,
        body: bytes,
        queue: MessageQueue,
        queue_offset: int,
        physical_offset: int,
        message_id: str,
        offset_message_id: str,
        properties: dict[str, str],
        born_timestamp_ms: int,
        store_timestamp_ms: int,
        reconsume_times: int,
        flag: int = 0,
        sys_flag: int = 0,
    ) -> None:
        self._head = (
            0, MESSAGE_MAGIC, 0, queue.queue_id, flag, queue_offset, physical_offset, sys_flag, born_timestamp_ms, b"",
            store_timestamp_ms, b"", reconsume_times, 0, len(body),
        )  # fmt: skip
        self._topic, self._body, self._queue = topic, body, queue
        self._queue_offset, self._sys_flag = queue_offset, sys_flag
        self._properties, self._message_id, self._offset_message_id = properties, message_id, offset_message_id

    @property
    def topic(self) -> str:
        """Topic of the message; for a retry, the topic to which it was first sent."""
        return self._topic

    @property
    def body(self) -> bytes:
        """Body as sent; a compressed body that cannot be decompressed is returned as stored."""
        return self._body

    @property
    def queue(self) -> MessageQueue:
        """Queue from which it was received; for a retry, a queue of the group's retry topic."""
        return self._queue

    @property
    def queue_offset(self) -> int:
        return self._queue_offset

    @property
    def sys_flag(self) -> int:
        return self._sys_flag

    @property
    def _fields(self) -> RecordHead:
        head = self._head
        if isinstance(head, bytes):
            head = self._head = HEAD.unpack(head)
        return head

    @property
    def flag(self) -> int:
        return self._fields[4]

    @property
    def physical_offset(self) -> int:
        return self._fields[6]

    @property
    def born_timestamp_ms(self) -> int:
        """Time of the send, by the producer's clock."""
        return self._fields[8]

    @property
    def store_timestamp_ms(self) -> int:
        """Time when this record was written, by the broker's clock; for a delayed message, the time of its
        delivery.
        """
        return self._fields[10]

    @property
    def reconsume_times(self) -> int:
        return self._fields[12]

    @property
    def properties(self) -> dict[str, str]:
        properties = self._properties
        if isinstance(properties, bytes):
            properties = self._properties = decode_properties(properties)
        return properties

    @property
    def message_id(self) -> str:
        """The unique id; for a message without one, the offset message id."""
        if self._message_id is None:
            self._message_id = self.properties.get(names.UNIQUE_KEY) or self.offset_message_id
        return self._message_id

    @property
    def offset_message_id(self) -> str:
        if self._offset_message_id is None:
            self._offset_message_id = offset_message_id(self._fields[11], self.physical_offset)
        return self._offset_message_id

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

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ReceivedMessage):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in _RECEIVED_FIELDS)

    def __repr__(self) -> str:
        return f"ReceivedMessage({', '.join(f'{name}={getattr(self, name)!r}' for name in _RECEIVED_FIELDS)})"


_RECEIVED_FIELDS: Final = (
    "topic", "body", "queue", "queue_offset", "physical_offset", "message_id", "offset_message_id", "properties",
    "born_timestamp_ms", "store_timestamp_ms", "reconsume_times", "flag", "sys_flag",
)  # fmt: skip
_body_of = attrgetter("_body")
_queue_offset_of = attrgetter("_queue_offset")


def queue_offsets(messages: Iterable[ReceivedMessage]) -> list[int]:
    """Return the offsets of messages in their queue."""
    return list(map(_queue_offset_of, messages))


def body_sizes(messages: Iterable[ReceivedMessage]) -> list[int]:
    """Return the sizes of bodies in bytes."""
    return list(map(len, map(_body_of, messages)))


topic_of: Final[Callable[[ReceivedMessage], str]] = attrgetter("_topic")
"""Function that returns `message.topic`, for calls by `map` and `Counter`."""


def next_attempt(message: ReceivedMessage) -> ReceivedMessage:
    """Return the message with its number of retries increased by one."""
    again = copy(message)
    head = message._fields
    again._head = (*head[:12], head[12] + 1, *head[13:])
    return again


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
