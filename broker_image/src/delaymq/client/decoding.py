"""Decoding of records into received messages."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Iterable
from functools import partial
from typing import Final

from delaymq.client.messages import ReceivedMessage
from delaymq.client.plain_records import split_plain
from delaymq.message import flags, names
from delaymq.message.compression import inflate
from delaymq.message.errors import RecordError
from delaymq.message.record import (
    ENCODED_MAGIC,
    FIXED_BYTES,
    MAGIC_AT,
    MESSAGE_MAGIC,
    SIZE_AND_MAGIC,
    Record,
    RecordHead,
    encoded_topic,
    split_record,
)
from delaymq.protocol.bodies import MessageQueue

INFLATED_HERE_BYTES: Final = 8 * 1024
"""Size in bytes above which the compressed bodies of a response are decompressed in a thread: 8 KiB can expand to 8
MiB.
"""

_logger = logging.getLogger(__name__)
_new_received = partial(object.__new__, ReceivedMessage)


def decode_messages(data: bytes, broker_name: str) -> list[ReceivedMessage]:
    """Return the messages in the body of a query response. Errors as `stored_messages`."""
    return inflated(stored_messages(data, broker_name), broker_name)


def stored_messages(
    data: bytes, broker_name: str, *, retry_topic: str = "", source: MessageQueue | None = None
) -> list[ReceivedMessage]:
    """Return the messages in the body of a pull or query response, with bodies as stored: see `inflated`.

    Messages in `retry_topic` have their original topic. `source` is the queue from which they were pulled, if any. A
    record that is damaged on the broker's disk is skipped, since it would block all messages after it. RecordError if
    the end of such a record cannot be determined.
    """
    messages: list[ReceivedMessage] = []
    queue = source or MessageQueue(broker_name, 0, "")
    topic = encoded_topic(queue.topic)
    at, end = 0, len(data)
    while at < end:
        # The usual case, whose time determines the rate of a consumer. `split_record` reads all other records.
        plain, at = split_plain(data, at, topic, queue.queue_id)
        for head, queue_offset, sys_flag, body, properties in plain:
            messages.append(_received(head, queue_offset, sys_flag, queue, body, properties, retry_topic))
        if at == end:
            break
        try:
            fields, topic_there, body, properties = split_record(data, at)
        except RecordError as error:
            bytes_of_damaged = _bytes_of_damaged(data, at)
            if bytes_of_damaged is None:
                raise
            _logger.error("skipped a damaged message from %s: %s", broker_name, error)
            at += bytes_of_damaged
            continue
        queue = MessageQueue(broker_name, fields[3], topic_there.decode("utf-8", "surrogateescape"))
        topic = encoded_topic(queue.topic)
        messages.append(_received(fields, fields[5], fields[7], queue, body, properties, retry_topic))
        at += fields[0]
    return messages


def compressed_bytes(messages: Iterable[ReceivedMessage]) -> int:
    """Return the total size of compressed bodies as stored."""
    return sum([len(each._body) for each in messages if each._sys_flag & flags.COMPRESSED])


def inflated(
    messages: list[ReceivedMessage], broker_name: str, enough_bytes: int = sys.maxsize
) -> list[ReceivedMessage]:
    """Decompress the compressed bodies of `messages`, up to the message with which all bodies have `enough_bytes`.

    Return the messages up to that one.
    """
    taken_bytes = 0
    for number, message in enumerate(messages):
        if message._sys_flag & flags.COMPRESSED:
            # One unreadable message must not block those after it.
            try:
                message._body = inflate(message._body, message._sys_flag)
            except RecordError as error:
                _logger.warning(
                    "the body at physical offset %d of %s is returned as stored, because it cannot be decompressed: %s",
                    message.physical_offset, broker_name, error,
                )  # fmt: skip
        taken_bytes += len(message._body)
        if taken_bytes >= enough_bytes:
            return messages[: number + 1]
    return messages


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
    head = (
        record.size, MESSAGE_MAGIC, record.body_crc, record.queue_id, record.flag, record.queue_offset,
        record.physical_offset, record.sys_flag, record.born_timestamp_ms, record.born_host, record.store_timestamp_ms,
        record.store_host, record.reconsume_times, record.prepared_transaction_offset, len(record.body),
    )  # fmt: skip
    queue = MessageQueue(broker_name, record.queue_id, record.topic)
    message = _received(
        head, record.queue_offset, record.sys_flag, queue, record.body, record.raw_properties, retry_topic
    )
    return inflated([message], broker_name)[0]


def _received(
    head: RecordHead | bytes,
    queue_offset: int,
    sys_flag: int,
    queue: MessageQueue,
    body: bytes,
    properties: bytes,
    retry_topic: str,
) -> ReceivedMessage:
    message = _new_received()
    message._head = head
    message._queue_offset = queue_offset
    message._sys_flag = sys_flag
    message._queue = queue
    message._body = body
    message._properties = properties
    message._message_id = message._offset_message_id = None
    message._topic = queue.topic
    if queue.topic == retry_topic:
        message._topic = message.properties.get(names.RETRY_TOPIC, queue.topic)
    return message
