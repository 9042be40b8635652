"""Batches: many messages of a topic in one request, and the division of messages into batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from delaymq.client.messages import Message, schedule_for
from delaymq.client.sending.properties import (
    caller_properties,
    check_properties_size,
    check_topic,
    is_plain,
    plain_parts,
)
from delaymq.message import names
from delaymq.message.errors import IllegalMessageError
from delaymq.message.properties import encode_properties, format_properties
from delaymq.protocol.batch import encode_batch

ENTRY_BYTES = 4 + 4 + 4 + 4 + 4 + 2
"""Size of a message in a batch in addition to body and properties: size, magic, checksum, flag and two lengths."""
OWN_PROPERTIES_BYTES = 96
"""Maximum size that the unique id and the wait flag add to a message's properties."""
TIMER_PROPERTY_BYTES = 40
"""Maximum size that a delay or a due time adds to them."""
DEFAULT_BATCH_BYTES = 1024 * 1024
"""Default size, as recommended by RocketMQ: larger batches gain nothing and delay subsequent requests."""
MAX_BATCH_MESSAGES = 4_096
"""Maximum number of messages: the response contains an ID of 33 characters or more for each."""


def check_batch(messages: Sequence[Message]) -> None:
    """Raise IllegalMessageError for a batch that is empty or to a topic to which no batch can be sent."""
    if not messages:
        raise IllegalMessageError("a batch must contain at least one message")
    check_topic(messages[0].topic)
    _check_no_retry(messages[0].topic)


def batch_body(messages: Sequence[Message], unique_ids: Sequence[str]) -> tuple[bytes, bool]:
    """Return the body of a batch send, and whether one of the messages has a delay or a due time.

    IllegalMessageError for messages that cannot be in one batch.
    """
    topic, wait = messages[0].topic, messages[0].wait_stored
    entries: list[tuple[int, bytes, bytes]] = []
    has_timed = False
    before, after = plain_parts(messages[0])
    for message, unique_id in zip(messages, unique_ids, strict=True):
        if message.topic != topic or message.wait_stored != wait:
            raise IllegalMessageError(
                "the messages of a batch must have the same topic and wait_stored: see split_batches"
            )
        text = f"{before}{unique_id}{after}"
        if not is_plain(message):
            _check_level(message)
            text = f"{format_properties(caller_properties(message))}\x02{text}"
        if message.delay is not None or message.at is not None:
            schedule = schedule_for(message)
            if schedule is not None:
                has_timed = True
                name, value = schedule.timer_property
                text = f"{text}\x02{name}\x01{value}"
        properties = text.encode("utf-8", "surrogateescape")
        check_properties_size(len(properties))
        entries.append((message.flag, message.body, properties))
    return encode_batch(entries), has_timed


def split_batches(
    messages: Iterable[Message], *, max_bytes: int = DEFAULT_BATCH_BYTES, max_messages: int = MAX_BATCH_MESSAGES
) -> Iterator[list[Message]]:
    """Yield batches for `Producer.send_batch`, limited in bytes and messages, each of one topic and one
    `wait_stored`.

    Messages of a topic keep their order; only incomplete batches are held in memory. A message above `max_bytes` gets
    its own batch. IllegalMessageError for a message that cannot be in a batch, such as one with a delay level.
    """
    if max_bytes <= 0 or max_messages <= 0:
        raise ValueError("max_bytes and max_messages must be more than 0")
    open_batches: dict[tuple[str, bool], tuple[list[Message], int]] = {}
    for message in messages:
        _check_no_retry(message.topic)
        _check_level(message)
        kind = message.topic, message.wait_stored
        batch, size = open_batches.get(kind, ([], 0))
        own = batched_bytes(message)
        if batch and (size + own > max_bytes or len(batch) >= max_messages):
            yield batch
            batch, size = [], 0
        batch.append(message)
        open_batches[kind] = batch, size + own
    for batch, _ in open_batches.values():
        yield batch


def batched_bytes(message: Message) -> int:
    """Return the maximum size of `message` in a batch's body."""
    size = ENTRY_BYTES + OWN_PROPERTIES_BYTES + len(message.body) + len(encode_properties(message.properties))
    if message.tags:
        size += len(names.TAGS) + len(message.tags.encode()) + 2
    if message.delay is not None or message.at is not None:
        size += TIMER_PROPERTY_BYTES
    if message.keys:
        size += len(names.KEYS) + len(" ".join(message.keys).encode()) + 2
    return size


def _check_no_retry(topic: str) -> None:
    if topic.startswith(names.RETRY_PREFIX):
        raise IllegalMessageError("messages to a retry topic cannot be in a batch: send them individually")


def _check_level(message: Message) -> None:
    if message.delay_level or names.DELAY in message.properties:
        raise IllegalMessageError(
            "messages with a delay level cannot be in a batch: send them individually, or use delay or at"
        )
