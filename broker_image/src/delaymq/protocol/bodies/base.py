"""Base class of bodies, which reads the JSON of RocketMQ's clients and writes JSON.

A class declares its fields with their types. Names on the wire follow a rule (`topic_name` ↔ `topicName`) unless a
field states another. Reading ignores unknown fields and treats null as absent. Writing omits fields that are None and
includes defaults given by `written`, since other readers may lack them.
"""

import functools
from collections.abc import Callable
from typing import Any, ClassVar, Final, Self, TypeVar

import msgspec
from msgspec import convert, field

from delaymq.protocol.codes import ResponseCode
from delaymq.protocol.errors import FastJsonError, RequestError
from delaymq.protocol.fastjson import MAX_TEXT_BYTES, ObjectKey, check_size, dumps, loads
from delaymq.protocol.integers import Int32

MAX_BODY_BYTES: Final = 4 * 1024 * 1024
"""Default limit of a JSON body: a table of 10,000 topics has 2 MiB. Readers of larger local files state a limit."""
BYTES_PER_VALUE: Final = 4
"""Minimum average size of a value in a body, which bounds the memory for parsing it."""
BYTES_PER_TOLERANT_VALUE: Final = 16
"""The minimum for text that is not standard JSON, whose parser blocks for a second per million values."""
REQUEST_DIALECT_BYTES: Final = 64 * 1024
"""Limit for clients' request bodies that are not standard JSON, which block a broker's event loop for up to 10 ms."""

T = TypeVar("T")


def written(factory: Callable[[], T], *, name: str | None = None) -> T:
    """Declare a default that is also written; `name` is the name on the wire if it does not follow the rule."""

    # Not the factory itself: msgspec would recognise list and dict as defaults, and omit them.
    def default() -> T:
        return factory()

    return field(default_factory=default, name=name)


class MessageQueue(msgspec.Struct, frozen=True, rename="camel"):
    """One queue of a topic on one broker; as the key of a table, it is written as an object."""

    broker_name: str
    queue_id: Int32
    topic: str


class Body(msgspec.Struct, rename="camel", omit_defaults=True):
    """Base of all JSON bodies."""

    MAX_BYTES: ClassVar[int] = MAX_BODY_BYTES
    MAX_DIALECT_BYTES: ClassVar[int] = MAX_TEXT_BYTES
    """The limit for text that is not standard JSON."""

    @classmethod
    def decode(cls, data: bytes | str, *, max_bytes: int | None = None) -> Self:
        """Decode a body. RequestError, with the reason in its remark, if it is unreadable."""
        max_bytes = max_bytes or cls.MAX_BYTES
        max_values = max(max_bytes // BYTES_PER_VALUE, 1)
        try:
            check_size(data, max_bytes, max_values)
        except FastJsonError as error:
            raise bad_body(cls.__name__, error) from error
        try:
            return _decoder(cls).decode(data)  # type: ignore[no-any-return]
        except (msgspec.MsgspecError, ValueError, RecursionError):
            pass  # not standard JSON, or with nulls: use the tolerant parser
        try:
            max_values = max(max_bytes // BYTES_PER_TOLERANT_VALUE, 1)
            tree = loads(
                data,
                object_key=_message_queue,
                max_bytes=max_bytes,
                max_values=max_values,
                max_dialect_bytes=cls.MAX_DIALECT_BYTES,
            )
            return convert(cls._adapted(_without_nulls(tree)), cls, strict=False, str_keys=True)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise bad_body(cls.__name__, error) from error

    def encode(self) -> bytes:
        """Return JSON; only fastjson can read it if it has objects as keys."""
        return dumps(self)

    @classmethod
    def _adapted(cls, tree: Any) -> Any:
        """Convert other clients' dialects; subclasses override this."""
        return tree


@functools.cache
def _decoder(body: type[Body]) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(body, strict=False)


def _message_queue(fields: dict[Any, Any]) -> MessageQueue | ObjectKey:
    try:
        return convert(fields, MessageQueue, strict=False)
    except msgspec.ValidationError:
        # It may be part of an unknown field; in a table of queues, it is rejected later.
        return ObjectKey.of(fields)


def _without_nulls(value: Any) -> Any:
    # Go clients write null for an empty list or map.
    if isinstance(value, dict):
        return {key: _without_nulls(each) for key, each in value.items() if each is not None}
    if isinstance(value, list):
        return [_without_nulls(each) for each in value if each is not None]
    return value


def bad_body(name: str, problem: object) -> RequestError:
    """Return the error for a body that is not a `name`."""
    return RequestError(ResponseCode.SYSTEM_ERROR, f"the body is not a valid {name}: {problem}")
