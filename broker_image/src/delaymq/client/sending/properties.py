"""Properties of messages to send: validation and encoding."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from delaymq.client.message_fields import check_property
from delaymq.client.messages import KEY_SEPARATOR, Message
from delaymq.message import names
from delaymq.message.errors import IllegalMessageError
from delaymq.message.names import topic_problem
from delaymq.message.properties import MAX_PROPERTIES_BYTES, format_properties, is_storable

_RESERVED: Final = frozenset(
    {
        names.KEYS, names.TAGS, names.DELAY, names.WAIT, names.UNIQUE_KEY, names.REAL_TOPIC, names.REAL_QUEUE_ID,
        names.TRANSACTION_PREPARED, names.PRODUCER_GROUP, names.RETRY_TOPIC, names.ORIGIN_MESSAGE_ID,
        *names.TIMER_PROPERTIES,
    }
)  # fmt: skip
"""Properties that only brokers and this client may set."""

_UNIQUE_START: Final = f"{names.UNIQUE_KEY}\x01"
_WAIT_TRUE: Final = f"\x02{names.WAIT}\x01true"
_WAIT_FALSE: Final = f"\x02{names.WAIT}\x01false"

_topic_problem = lru_cache(maxsize=1_024)(topic_problem)
"""Cached, since each send validates its topic and topics are few."""


def check_topic(topic: str) -> None:
    """Raise IllegalMessageError if no message can be sent to `topic`."""
    problem = _topic_problem(topic)
    if problem is not None:
        raise IllegalMessageError(problem)


def is_plain(message: Message) -> bool:
    """Return whether a message has only the properties that this client adds to each one."""
    return not (message.properties or message.tags or message.keys or message.delay_level)


def plain_parts(message: Message) -> tuple[str, str]:
    """Return what precedes and follows the unique id in `plain_text`."""
    return _UNIQUE_START, _WAIT_TRUE if message.wait_stored else _WAIT_FALSE


def plain_text(message: Message, unique_id: str) -> str:
    """Return the encoded properties that this client adds to each message, in the form of `outgoing_properties`."""
    before, after = plain_parts(message)
    return f"{before}{unique_id}{after}"


def caller_properties(message: Message) -> dict[str, str]:
    """Return the properties, the tag and the keys that the caller has set. IllegalMessageError if one is invalid."""
    properties = dict(message.properties)
    for name, value in properties.items():
        check_property(name, value)
        if name in _RESERVED or name.startswith(names.OWN_PREFIX):
            raise IllegalMessageError(
                f"property {name} is reserved: use the corresponding field of the message, or another name"
            )
        if not is_storable(name, value):
            raise IllegalMessageError(
                f"property {name!r}: name and value must not be empty or contain \\x00, \\x01 or \\x02"
            )
    if message.tags:
        properties[names.TAGS] = _plain(message.tags, "the tag")
    if message.keys:
        for key in message.keys:
            if not key or KEY_SEPARATOR in key:
                raise IllegalMessageError(f"key {key!r}: keys must not be empty or contain spaces")
        properties[names.KEYS] = _plain(KEY_SEPARATOR.join(message.keys), "a key")
    return properties


def outgoing_properties(message: Message, unique_id: str, delay_level: int = 0) -> dict[str, str]:
    """Return the properties sent with `message`. IllegalMessageError if one of its fields is invalid."""
    check_topic(message.topic)
    properties = caller_properties(message)
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
    check_properties_size(len(text) if text.isascii() else len(text.encode("utf-8", "surrogateescape")))
    return text


def check_properties_size(size_bytes: int) -> None:
    """Raise IllegalMessageError if no record can contain encoded properties of this size."""
    if size_bytes > MAX_PROPERTIES_BYTES:
        raise IllegalMessageError(
            f"the properties have {size_bytes} bytes, and the maximum is {MAX_PROPERTIES_BYTES}: send fewer or shorter"
            " ones"
        )


def _plain(text: str, what: str) -> str:
    if not is_storable("x", text):
        raise IllegalMessageError(f"{what} {text!r} must not contain \\x00, \\x01 or \\x02")
    return text
