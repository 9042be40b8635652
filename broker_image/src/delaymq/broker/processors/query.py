"""Queries for messages by id and by key, for queue entries, and for pending messages (12, 33, 321, 30001)."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Final

import msgspec

from delaymq.broker.filters import Filter, NotNowError, compile_expression, is_tag_type
from delaymq.broker.processors.accounts import view_of
from delaymq.broker.requests.errors import system_error
from delaymq.broker.requests.results import Deferred, Listing, TimeSliced
from delaymq.message import names
from delaymq.message.properties import MAX_PROPERTIES_BYTES
from delaymq.protocol.bodies import QueueData, QueueEntry, SubscriptionData
from delaymq.protocol.codes import ResponseCode
from delaymq.protocol.command import Command, Response
from delaymq.protocol.errors import RequestError
from delaymq.protocol.headers import (
    ListPendingMessagesRequestHeader,
    QueryConsumeQueueRequestHeader,
    QueryMessageRequestHeader,
    ViewMessageRequestHeader,
)
from delaymq.store.consume_queue import ENTRY
from delaymq.store.index.index_file import STEP_ENTRIES

if TYPE_CHECKING:
    from delaymq.broker.broker import Broker
    from delaymq.broker.requests.session import Session
    from delaymq.store.untrusted_offsets import ReferencedHead

MAX_QUERY_COUNT: Final = 64
MAX_RESPONSE_BYTES: Final = 8 * 1024 * 1024
"""The response is one frame of at most 16 MiB, and is completely in memory."""
STEPS_AT_ONCE: Final = 4
"""Steps of 64 index entries that a query runs before other requests are served."""
MAX_INDEX_ENTRIES: Final = 1_000_000
"""Maximum number of index entries that a query examines: some seconds of time slices. No client waits longer."""
LARGE_RECORD_BYTES: Final = 256 * 1024
"""A record of this size or more is read in a step of its own."""
MAX_QUEUE_ENTRIES: Final = 1_000
"""mqadmin requests 10 entries."""
MAX_FILTERED_ENTRIES: Final = 100
"""The same, if the properties of each record have to be read."""


def query_message(broker: Broker, session: Session, command: Command) -> Response | TimeSliced:
    """Handle QUERY_MESSAGE (12): return the messages of a topic with a key, or with a unique id if requested."""
    fields = command.fields
    header = QueryMessageRequestHeader.from_fields(fields)
    count = min(max(header.max_num, 1), MAX_QUERY_COUNT)
    if fields.get("_UNIQUE_KEY_QUERY", "").lower() == "true":
        count = min(broker.config.default_query_max_num, MAX_QUERY_COUNT)
    if len(header.key) > MAX_PROPERTIES_BYTES:
        raise RequestError(ResponseCode.QUERY_NOT_FOUND, "the key is too long: no message has such a key")
    steps = _queried(broker, header, count, shows_index=view_of(broker, session, command) is None)
    for _ in range(STEPS_AT_ONCE):
        try:
            next(steps)
        except StopIteration as end:
            response: Response = end.value
            return response
    return TimeSliced(steps)


def list_pending_messages(broker: Broker, session: Session, command: Command) -> Listing:
    """Handle LIST_PENDING_MESSAGES (30001): return a page of the pending messages of a topic."""
    header = ListPendingMessagesRequestHeader.from_fields(command.fields)
    if not header.topic:
        raise system_error("the request names no topic: send the topic of the messages")
    return Listing(header.to_fields())


def _queried(
    broker: Broker, header: QueryMessageRequestHeader, count: int, *, shows_index: bool
) -> Generator[None, None, Response | Deferred]:
    """Return the response to a query, in steps.

    Index chains can become arbitrarily long, because clients choose the keys.
    """
    found: list[ReferencedHead] = []
    steps = 0
    for offset in broker.store.index_steps(header.topic, header.key, header.begin_timestamp, header.end_timestamp):
        if offset is None:
            steps += 1
            if steps * STEP_ENTRIES > MAX_INDEX_ENTRIES:
                break
            yield
            continue
        head = broker.records.head_at(offset)
        if head is not None and head.topic == header.topic and _has_key(broker.records.properties_of(head), header.key):
            found.append(head)
            if len(found) >= count:
                break
    parts: list[bytes] = []
    total = 0
    # The newest messages were selected. They are returned in the order of the log, which mqadmin keeps.
    for head in sorted(found, key=lambda each: each.physical_offset):
        if parts and total + head.size > MAX_RESPONSE_BYTES:
            break
        if broker.store.record_at(head.physical_offset) is not None:
            parts.append(broker.store.read_bytes(head.physical_offset, head.size))
            total += head.size
            if head.size >= LARGE_RECORD_BYTES:
                yield
    # The state of the index depends on the messages of all topics.
    updated_ms, updated_offset = broker.store.index_last_update if shows_index else (0, 0)
    answer = {
        "indexLastUpdateTimestamp": str(updated_ms),
        "indexLastUpdatePhyoffset": str(updated_offset),
    }
    if not parts:
        return Response(ResponseCode.QUERY_NOT_FOUND, "can not find message, maybe time range not correct", answer)
    return Response(0, None, answer, b"".join(parts))


def _has_key(properties: dict[str, str], key: str) -> bool:
    """Return whether a record has the key itself, not only its hash."""
    return (
        properties.get(names.UNIQUE_KEY) == key
        or key in properties.get(names.KEYS, "").split(" ")
        or properties.get(names.DELAY_SCHEDULE_ID) == key
    )


def view_message_by_id(broker: Broker, session: Session, command: Command) -> Response:
    """Handle VIEW_MESSAGE_BY_ID (33): return the record at the physical offset of an offset message id."""
    header = ViewMessageRequestHeader.from_fields(command.fields)
    record = broker.records.record_at(header.offset)
    if record is None:
        start = broker.store.min_offset
        reason = f": records before offset {start} were deleted" if 0 <= header.offset < start else ""
        raise system_error(f"can not find message by the offset, {header.offset}{reason}")
    return Response(body=broker.store.read_bytes(header.offset, record.size))


def query_consume_queue(broker: Broker, session: Session, command: Command) -> Response:
    """Handle QUERY_CONSUME_QUEUE (321): return the stored entries of a queue."""
    header = QueryConsumeQueueRequestHeader.from_fields(command.fields)
    topic, queue_id = header.topic or "", header.queue_id or 0
    if not broker.store.has_queue(topic, queue_id):
        raise system_error(f"{queue_id}@{topic[: names.MAX_TOPIC_LENGTH]} is not exist!")
    low, high = broker.store.queue_bounds(topic, queue_id)
    subscription = broker.clients.subscription(header.consumer_group or "", topic, broker.now_ms())
    data = QueueData(low, high, subscription_data=subscription)
    if header.consumer_group is not None:
        # RocketMQ's wording: "null" is the filter of a member that filters by tags only.
        offline = f"{header.consumer_group[: names.MAX_TOPIC_LENGTH]}@{topic} is not online!"
        data.filter_data = offline if subscription is None else _filter_data(header.consumer_group, subscription)
    index = header.index or 0
    if not low <= index < high:
        raise RequestError(
            ResponseCode.SUCCESS, f"Index {index} of {queue_id}@{topic} is not exist! It has {low} to {high}."
        )
    wanted = None if subscription is None else _filter_of(broker, subscription, session.id)
    by_property = wanted is not None and wanted.properties is not None
    count = min(max(header.count or 0, 0), MAX_FILTERED_ENTRIES if by_property else MAX_QUEUE_ENTRIES)
    entries = broker.store.read_entries(topic, queue_id, index, count)
    for physical_offset, size, tags_code in ENTRY.iter_unpack(entries):
        takes = wanted is not None and _takes(broker, wanted, physical_offset, tags_code)
        data.queue_data.append(QueueEntry(physical_offset, size, tags_code, takes))
    return Response(body=data.encode())


def _filter_data(group: str, subscription: SubscriptionData) -> str:
    if is_tag_type(subscription.expression_type):
        return "null"
    told = {
        "consumerGroup": group,
        "expression": subscription.sub_string,
        "expressionType": subscription.expression_type,
        "topic": subscription.topic,
        "clientVersion": subscription.sub_version,
    }
    return msgspec.json.encode(told).decode()


def _filter_of(broker: Broker, subscription: SubscriptionData, asker: int) -> Filter | None:
    """Return the filter of the group's members, or None for an invalid expression, which matches no message."""
    try:
        return compile_expression(subscription.expression_type, subscription.sub_string, broker.compile_work, asker)
    except NotNowError:
        raise
    except RequestError:
        return None


def _takes(broker: Broker, wanted: Filter, physical_offset: int, tags_code: int) -> bool:
    if wanted.tags is not None and not wanted.tags(tags_code):
        return False
    if wanted.properties is None:
        return True
    record = broker.records.record_at(physical_offset)
    return record is not None and wanted.properties(record.raw_properties)
