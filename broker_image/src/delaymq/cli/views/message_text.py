"""Formatting of messages as text and JSON."""

from __future__ import annotations

import base64
from typing import Any, Final

from delaymq.cli.terminal.output import duration
from delaymq.cli.terminal.sanitize import on_one_line
from delaymq.cli.terminal.times import format_moment, format_time
from delaymq.client import ReceivedMessage
from delaymq.clock import now_ms
from delaymq.message import names

SHOWN_CHARACTERS: Final = 200
MIN_SHOWN_LATENESS_MS: Final = 1_000
"""Minimum time between delivery and arrival that is shown; less is normal transfer time."""
PENDING_TOPICS: Final = (names.SCHEDULE_TOPIC, names.TIMER_TOPIC)
"""Topics that hold pending messages with delay levels, and timed ones."""


def body_text(message: ReceivedMessage, most: int = SHOWN_CHARACTERS) -> str:
    """Return the body as text, or in hex if it is not UTF-8, truncated to `most` characters."""
    try:
        text = message.body.decode()
    except UnicodeDecodeError:
        text = f"0x{message.body[:most].hex()}"
    return text if len(text) <= most else text[:most] + "…"


def as_line(message: ReceivedMessage, arrived_ms: int, due_ms: int | None) -> str:
    """Return one received message as a line of text."""
    parts = [format_moment(arrived_ms, now_ms()), body_text(message)]
    if message.tags:
        parts.append(f"tags {message.tags}")
    if message.keys:
        parts.append(f"keys {' '.join(message.keys)}")
    if message.reconsume_times:
        parts.append(f"retry {message.reconsume_times}")
    if due_ms is not None:
        parts.append(f"due {format_moment(due_ms, now_ms())}")
        parts.append(f"delayed {duration(due_ms - message.born_timestamp_ms)}")
        parts.append(f"late by {duration(message.store_timestamp_ms - due_ms)}")
        read_after_ms = arrived_ms - message.store_timestamp_ms
        if read_after_ms >= MIN_SHOWN_LATENESS_MS:
            parts.append(f"read {duration(read_after_ms)} later")
    parts.append(f"queue {message.queue.queue_id}, offset {message.queue_offset}")
    return on_one_line("  ".join(parts))


def as_data(message: ReceivedMessage, arrived_ms: int, due_ms: int | None) -> dict[str, Any]:
    """Return one received message as JSON; a binary body is in bodyBase64.

    `latenessMs` measures the broker's delivery, not the consumer's arrival time.
    """
    data = stored_data(message, due_ms)
    late_ms = None if due_ms is None else message.store_timestamp_ms - due_ms
    return data | {"arrivedMs": arrived_ms, "latenessMs": late_ms}


def stored_data(message: ReceivedMessage, due_ms: int | None = None) -> dict[str, Any]:
    """Return one stored message as JSON, with the field names of /api/v1/messages."""
    data: dict[str, Any] = {
        "messageId": message.message_id,
        "offsetMessageId": message.offset_message_id,
        "topic": real_topic(message),
        "tags": message.tags,
        "keys": list(message.keys),
        "broker": message.queue.broker_name,
        "queueId": message.queue.queue_id,
        "queueOffset": message.queue_offset,
        "physicalOffset": message.physical_offset,
        "reconsumeTimes": message.reconsume_times,
        "bornMs": message.born_timestamp_ms,
        "storedMs": message.store_timestamp_ms,
        "delayLevel": message.delay_level,
        "dueMs": message.due_ms if due_ms is None else due_ms,
        "state": state(message),
        "bytes": len(message.body),
        "properties": message.properties,
    }
    try:
        data["body"] = message.body.decode()
    except UnicodeDecodeError:
        data["bodyBase64"] = base64.b64encode(message.body).decode()
    return data


def real_topic(message: ReceivedMessage) -> str:
    """Return the real topic of a message; pending delayed messages are stored in a system topic."""
    if message.topic in PENDING_TOPICS:
        return message.properties.get(names.REAL_TOPIC, message.topic)
    return message.topic


def state(message: ReceivedMessage) -> str:
    """Return the state of a record: `waiting` (pending or already delivered), `deadLettered` or `stored`."""
    if message.topic in PENDING_TOPICS:
        return "waiting"
    return "deadLettered" if message.queue.topic.startswith(names.DLQ_PREFIX) else "stored"


def as_lines(message: ReceivedMessage) -> list[str]:
    """Return the full text of one message, as lines."""
    # Without a unique id, `message_id` is the offset message id.
    unique = [f"unique id:         {message.message_id}"] if message.message_id != message.offset_message_id else []
    lines = [
        *unique,
        f"offset message id: {message.offset_message_id}",
        f"topic:             {real_topic(message)}" + (" (pending delivery)" if state(message) == "waiting" else ""),
        f"queue:             {message.queue.queue_id}, offset {message.queue_offset},"
        f" physical offset {message.physical_offset}",
        f"sent:              {format_time(message.born_timestamp_ms)}",
        f"stored:            {format_time(message.store_timestamp_ms)}",
    ]
    if message.due_ms is not None:
        level = f", level {message.delay_level}" if message.delay_level else ""
        lines.append(f"due:               {format_time(message.due_ms)}{level}")
        if state(message) != "waiting":
            lines.append(f"late by:           {duration(message.store_timestamp_ms - message.due_ms)}")
    if message.tags:
        lines.append(f"tags:              {message.tags}")
    if message.keys:
        lines.append(f"keys:              {' '.join(message.keys)}")
    if message.reconsume_times:
        lines.append(f"retries:           {message.reconsume_times}")
    lines += [f"property:          {name}={value}" for name, value in sorted(message.properties.items())]
    lines.append(f"body:              {len(message.body)} bytes")
    # A property must not imitate one of the other lines; the body comes last and may have several lines.
    return [*map(on_one_line, lines), body_text(message, 4_000)]
