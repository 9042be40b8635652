"""Codec for the body of a batch send (code 320): consecutive messages of one topic. Layout: docs/formats/wire.md."""

from collections.abc import Iterable
from struct import Struct as Layout
from typing import Final, NamedTuple

from delaymq.protocol.codes import ResponseCode
from delaymq.protocol.errors import RequestError

MAX_PROPERTIES_BYTES: Final = 32767
"""A record stores this length in 16 signed bits."""

_HEAD = Layout(
    ">"
    "I"  # bytes of the whole entry
    "I"  # magic, 0 or ignored
    "I"  # CRC of the body, 0 or ignored
    "i"  # flag
    "I"  # bytes of the body
)
assert _HEAD.size == 20
_PROPERTIES_LENGTH = Layout(">H")
_pack_head = _HEAD.pack
_pack_properties_length = _PROPERTIES_LENGTH.pack
_unpack_head = _HEAD.unpack_from
_unpack_properties_length = _PROPERTIES_LENGTH.unpack_from


class BatchMessage(NamedTuple):
    """One message: flag, body, and properties as text in UTF-8."""

    flag: int
    body: bytes
    properties: bytes


def decode_batch(body: bytes) -> list[BatchMessage]:
    """Decode the messages in order. RequestError (MESSAGE_ILLEGAL) for a body that is empty or not a batch."""
    return read_batch(body, 0, len(body))[0]


def read_batch(body: bytes, at: int, most: int, before: int = 0) -> tuple[list[BatchMessage], int]:
    """Decode up to `most` messages from position `at`, after `before` others; return them and the next position.

    Errors as in `decode_batch`.
    """
    messages: list[BatchMessage] = []
    end = len(body)
    while at < end and len(messages) < most:
        number = before + len(messages)
        if end - at < 22:
            raise _illegal(f"ends within message {number}")
        total, _magic, _crc, flag, body_bytes = _unpack_head(body, at)
        body_end = at + 20 + body_bytes
        if at + total > end or body_end + 2 > at + total:
            raise _illegal(f"states wrong lengths for message {number}")
        (properties_bytes,) = _unpack_properties_length(body, body_end)
        entry_end = body_end + 2 + properties_bytes
        if entry_end != at + total:
            raise _illegal(f"states wrong lengths for message {number}")
        if properties_bytes > MAX_PROPERTIES_BYTES:
            raise _illegal(f"has {properties_bytes} bytes of properties in message {number}, and the maximum is 32767")
        messages.append(BatchMessage(flag, body[at + 20 : body_end], body[body_end + 2 : entry_end]))
        at = entry_end
    if not end:
        raise _illegal("is empty")
    return messages, at


def encode_batch(messages: Iterable[tuple[int, bytes, bytes]]) -> bytes:
    """Return the body that `decode_batch` reads, for flags, bodies and properties.

    ValueError for properties that exceed a record's limit.
    """
    pieces: list[bytes] = []
    for flag, body, properties in messages:
        if len(properties) > MAX_PROPERTIES_BYTES:
            raise ValueError(f"{len(properties)} bytes of properties, the maximum is {MAX_PROPERTIES_BYTES}")
        head = entry_head(flag, len(body), len(properties))
        pieces += (head, body, properties_length(len(properties)), properties)
    return b"".join(pieces)


def entry_head(flag: int, body_bytes: int, properties_bytes: int) -> bytes:
    """Return the part of a message that precedes its body."""
    return _pack_head(22 + body_bytes + properties_bytes, 0, 0, flag, body_bytes)


def properties_length(properties_bytes: int) -> bytes:
    """Return the part of a message between body and properties."""
    return _pack_properties_length(properties_bytes)


def _illegal(problem: str) -> RequestError:
    return RequestError(ResponseCode.MESSAGE_ILLEGAL, f"the batch {problem}")
