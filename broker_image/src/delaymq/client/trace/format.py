"""Traces of messages in the form of RocketMQ's clients: fields joined by \\x01, traces ended by \\x02.

Readers split each trace at every \\x01 and lose empty fields at its end; absent values are therefore written as
Java writes them: `null`.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import Final, NamedTuple

from delaymq.message.properties import NAME_VALUE_SEPARATOR, PAIR_SEPARATOR

ABSENT: Final = "null"
DEFAULT_REGION: Final = "DefaultRegion"


class MessageKind(IntEnum):
    """Kind of a sent message."""

    NORMAL = 0
    HALF = 1
    COMMIT = 2
    DELAYED = 3


class ConsumeEnd(IntEnum):
    """Outcome of a handler."""

    SUCCESS = 0
    TOO_LATE = 1
    ERROR = 2
    NOTHING = 3
    FAILED = 4


class Trace(NamedTuple):
    """A trace, and the unique ids and keys by which it is found."""

    text: str
    keys: tuple[str, ...]


def published(
    *,
    at_ms: int,
    region: str,
    group: str,
    topic: str,
    message_id: str,
    tags: str,
    keys: str,
    store_host: str,
    body_bytes: int,
    cost_ms: int,
    kind: MessageKind,
    offset_message_id: str,
    success: bool,
) -> Trace:
    """Return the trace of a send with a response; `keys` separated by spaces."""
    text = _joined(
        "Pub", at_ms, region, group, topic, message_id, tags or ABSENT, keys or ABSENT, store_host, body_bytes, cost_ms,
        kind.value, offset_message_id, _boolean(success),
    )  # fmt: skip
    return Trace(text, _keys(message_id, keys))


def before_consuming(
    *, at_ms: int, region: str, group: str, request_id: str, message_id: str, retry_times: int, keys: str
) -> Trace:
    """Return the trace of a message before its handler."""
    text = _joined(
        "SubBefore", at_ms, region or ABSENT, group, request_id, message_id, retry_times, keys or ABSENT,
    )  # fmt: skip
    return Trace(text, _keys(message_id, keys))


def after_consuming(
    *, at_ms: int, group: str, request_id: str, message_id: str, cost_ms: int, success: bool, keys: str, end: ConsumeEnd
) -> Trace:
    """Return the trace of a message after its handler; `request_id` is that of the previous trace."""
    text = _joined(
        "SubAfter", request_id, message_id, cost_ms, _boolean(success), keys or ABSENT, end.value, at_ms, group,
    )  # fmt: skip
    return Trace(text, _keys(message_id, keys))


def transaction_ended(
    *,
    at_ms: int,
    region: str,
    group: str,
    topic: str,
    message_id: str,
    tags: str,
    keys: str,
    store_host: str,
    transaction_id: str,
    state: str,
    from_check: bool,
) -> Trace:
    """Return the trace of a transaction's outcome."""
    text = _joined(
        "EndTransaction", at_ms, region, group, topic, message_id, tags or ABSENT, keys or ABSENT, store_host,
        MessageKind.COMMIT.value, transaction_id, state, _boolean(from_check),
    )  # fmt: skip
    return Trace(text, _keys(message_id, keys))


def _joined(*fields: object) -> str:
    return NAME_VALUE_SEPARATOR.join(map(str, fields)) + PAIR_SEPARATOR


def _boolean(value: bool) -> str:
    return "true" if value else "false"


def _keys(message_id: str, keys: str) -> tuple[str, ...]:
    return (message_id, *keys.split())


def batches(traces: Iterable[Trace], max_characters: int, max_key_characters: int) -> list[tuple[str, tuple[str, ...]]]:
    """Yield texts and keys of messages that contain these traces, in order; a trace above the limit is sent alone."""
    found: list[tuple[str, tuple[str, ...]]] = []
    texts: list[str] = []
    keys: dict[str, None] = {}
    characters = key_characters = 0
    for trace in traces:
        more = sum(len(key) + 1 for key in trace.keys if key not in keys)
        if texts and (characters + len(trace.text) > max_characters or key_characters + more > max_key_characters):
            found.append(("".join(texts), tuple(keys)))
            texts, keys, characters, key_characters = [], {}, 0, 0
            more = sum(len(key) + 1 for key in trace.keys)
        texts.append(trace.text)
        keys |= dict.fromkeys(trace.keys)
        characters += len(trace.text)
        key_characters += more
    if texts:
        found.append(("".join(texts), tuple(keys)))
    return found
