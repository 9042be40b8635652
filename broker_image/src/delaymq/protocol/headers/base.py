"""Base class of headers, which converts from and to the fields of a command.

A class declares its fields with their types. Their names on the wire follow a rule (`queue_id` ↔ `queueId`) unless a
field states another. Unknown fields are ignored, as in RocketMQ.
"""

import functools
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, Final, Self, get_args

import msgspec
from msgspec import convert

from delaymq.protocol.codes import ResponseCode
from delaymq.protocol.errors import RequestError
from delaymq.protocol.integers import Int32, Int64

SHOWN_CHARACTERS: Final = 64
"""Length of an invalid value in a remark, so that a peer does not determine the size of logs and responses."""


class Header(msgspec.Struct, rename="camel", gc=False):
    """Base of all headers. Optional fields are None when they are absent."""

    @classmethod
    def from_fields(cls, fields: dict[str, str]) -> Self:
        """Convert fields. RequestError if a required field is missing or a value has another type."""
        try:
            return convert(fields, cls, strict=False)
        except msgspec.ValidationError as error:
            raise RequestError(ResponseCode.SYSTEM_ERROR, _problem(cls, fields, error)) from error

    @classmethod
    def field_names(cls) -> frozenset[str]:
        """Return the names of all fields on the wire."""
        return frozenset(name for _, name in _names(cls))

    def to_fields(self) -> dict[str, str]:
        """Return all fields that have a value, as strings."""
        attributes, names = _written(type(self))
        return {
            name: value if type(value) is str else _WORDS[value] if type(value) is bool else str(value)
            for name, value in zip(names, attributes(self), strict=True)
            if value is not None
        }


_WORDS: Final = {True: "true", False: "false"}


@functools.cache
def _written(header: type[Header]) -> tuple[Callable[[Header], Sequence[Any]], tuple[str, ...]]:
    """Return a function that returns the values of all fields, and their names on the wire."""
    attributes, names = zip(*_names(header), strict=True)
    if len(attributes) == 1:
        return lambda written: (getattr(written, attributes[0]),), names
    return attrgetter(*attributes), names


@functools.cache
def _names(header: type[Header]) -> tuple[tuple[str, str], ...]:
    return tuple((each.name, each.encode_name) for each in msgspec.structs.fields(header))


def _problem(header: type[Header], fields: dict[str, str], error: msgspec.ValidationError) -> str:
    for each in msgspec.structs.fields(header):
        value = fields.get(each.encode_name)
        if value is None:
            if each.required:
                return f"the request lacks field {each.encode_name}"
            continue
        try:
            convert(value, each.type, strict=False)
        except msgspec.ValidationError:
            shown = value if len(value) <= SHOWN_CHARACTERS else value[:SHOWN_CHARACTERS] + "…"
            return f"field {each.encode_name} of the request is {shown!r}, which is not {_type_text(each.type)}"
    return f"the request's fields cannot be read: {error}"


def _type_text(field_type: Any) -> str:
    texts = {str: "a string", bool: "true or false", Int32: "a 32-bit integer", Int64: "a 64-bit integer"}
    for kind in (field_type, *get_args(field_type)):
        if kind in texts:
            return texts[kind]
    return "of its type"
