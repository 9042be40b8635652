"""What every body class can do: read itself from JSON as RocketMQ's clients send it, and write itself.

A class declares its fields with their types; names follow the wire's by rule (`topic_name` ↔ `topicName`) unless a
field states its own. Reading ignores unknown fields and takes a null for absent. Writing leaves absent (None) fields
out and writes all others: a default given by `written` is written too, since readers of other makes may lack it.
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
"""A JSON body of a peer. A table of 10,000 topics has 2 MiB; who reads larger files of its own states its limit."""
BYTES_PER_VALUE: Final = 4
"""How densely a body may be packed with values; bounds what parsing it can allocate."""
BYTES_PER_TOLERANT_VALUE: Final = 16
"""The same for what is not standard JSON: that parser takes a second for a million values, and all wait for it."""
REQUEST_DIALECT_BYTES: Final = 64 * 1024
"""For bodies of clients' requests that are not standard JSON: a broker's event loop parses them, in 10 ms at most."""

T = TypeVar("T")


def written(factory: Callable[[], T], *, name: str | None = None) -> T:
    """A default that reading fills in and writing does not leave out; `name` where the wire's follows no rule."""

    # Not the factory itself: for list and dict that would count as a default to be left out.
    def default() -> T:
        return factory()

    return field(default_factory=default, name=name)


class MessageQueue(msgspec.Struct, frozen=True, rename="camel"):
    """One queue of a topic on one broker; a key of tables, written as an object."""

    broker_name: str
    queue_id: Int32
    topic: str


class Body(msgspec.Struct, rename="camel", omit_defaults=True):
    """Base of all JSON bodies."""

    MAX_BYTES: ClassVar[int] = MAX_BODY_BYTES
    MAX_DIALECT_BYTES: ClassVar[int] = MAX_TEXT_BYTES
    """The same for one that is not standard JSON."""

    @classmethod
    def decode(cls, data: bytes | str, *, max_bytes: int | None = None) -> Self:
        """Raises RequestError, whose remark says what is wrong, for a body that cannot be read."""
        max_bytes = max_bytes or cls.MAX_BYTES
        max_values = max(max_bytes // BYTES_PER_VALUE, 1)
        try:
            check_size(data, max_bytes, max_values)
        except FastJsonError as error:
            raise bad_body(cls.__name__, error) from error
        try:
            return _decoder(cls).decode(data)  # type: ignore[no-any-return]
        except (msgspec.MsgspecError, ValueError, RecursionError):
            pass  # not standard JSON, or with nulls: the tolerant way
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
        """JSON as fastjson and standard parsers read it; with objects as keys only fastjson does."""
        return dumps(self)

    @classmethod
    def _adapted(cls, tree: Any) -> Any:
        """Where a class turns other clients' dialects into its own fields."""
        return tree


@functools.cache
def _decoder(body: type[Body]) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(body, strict=False)


def _message_queue(fields: dict[Any, Any]) -> MessageQueue | ObjectKey:
    try:
        return convert(fields, MessageQueue, strict=False)
    except msgspec.ValidationError:
        # Perhaps within something that the body's class does not know; in a table of queues it is refused later.
        return ObjectKey.of(fields)


def _without_nulls(value: Any) -> Any:
    # Clients in Go write null for an empty list or map.
    if isinstance(value, dict):
        return {key: _without_nulls(each) for key, each in value.items() if each is not None}
    if isinstance(value, list):
        return [_without_nulls(each) for each in value if each is not None]
    return value


def bad_body(name: str, problem: object) -> RequestError:
    """The answer to a body that is not what `name` says."""
    return RequestError(ResponseCode.SYSTEM_ERROR, f"the body is no {name}: {problem}")
