"""Batches of messages that are alike except for their bodies, encoded together (docs/kernels.md)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from msgspec.structs import astuple

from delaymq import kernels
from delaymq.client.messages import Message
from delaymq.client.sending.properties import is_plain, plain_parts
from delaymq.message.ids import MAX_RESERVED, UniqueIds, digits_of_ids
from delaymq.protocol.batch import entry_head, properties_length

_MESSAGES: Final = {Message}
_PIECES: Final = 5
"""Pieces of an encoded message: head, body, start of the properties, unique id, end of the properties."""


def plain_batch(messages: Sequence[Message], ids: UniqueIds) -> tuple[bytes, str] | None:
    """Return the body of a batch send, and the unique ids of the messages joined by commas.

    None: there are no or many messages, or they are not plain and alike. A subclass may have other fields.
    """
    if not 0 < len(messages) <= MAX_RESERVED or not is_plain(messages[0]) or {*map(type, messages)} != _MESSAGES:
        return None
    return _encode([*map(astuple, messages)], *plain_parts(messages[0]), *ids.reserve(len(messages)))


def encode_plain_batch_twin(
    rows: list[tuple[Any, ...]], before: str, after: str, id_start: str, first_number: int
) -> tuple[bytes, str] | None:
    """Return what `plain_batch` returns, for the fields of each message.

    The properties of a message are `before`, its id and `after`; the ids are as `UniqueIds.reserve` returns them. Twin
    of the kernel `encode_plain_batch`.
    """
    count = len(rows)
    topics, bodies, tags, keys, properties, levels, waits, flags, delays, dues = zip(*rows, strict=True)
    is_plain = (
        not (any(tags) or any(keys) or any(properties) or any(levels))
        and delays.count(None) == dues.count(None) == count
        and topics.count(topics[0]) == waits.count(waits[0]) == flags.count(flags[0]) == count
    )
    if not is_plain:
        return None
    # Few calls for all messages take less time than a loop, which would run with cold caches after each response.
    digits = digits_of_ids(first_number, count)
    ids = f"{id_start}{f',{id_start}'.join(digits)}"
    properties_bytes = len(before) + len(id_start) + len(digits[0]) + len(after)
    pieces: list[bytes] = [after.encode()] * (_PIECES * count)
    pieces[0::_PIECES] = [entry_head(flags[0], len(body), properties_bytes) for body in bodies]
    pieces[1::_PIECES] = bodies
    pieces[2::_PIECES] = [properties_length(properties_bytes) + before.encode()] * count
    pieces[3::_PIECES] = ids.encode().split(b",")
    return b"".join(pieces), ids


_encode: Final = kernels.choose("encode_plain_batch", encode_plain_batch_twin)
