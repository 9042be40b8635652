"""GET /api/v1/messages: search by key, unique id and store time, and conversion of records to rows."""

from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec

from delaymq.api_types.messages import MessageRow, Messages, Repeats, State
from delaymq.broker.delivery.changes.fates import FateKind
from delaymq.broker.delivery.changes.lookup import mark_in, stated_by
from delaymq.broker.delivery.timed.requests import group_in
from delaymq.message import names
from delaymq.message.ids import offset_message_id, parse_offset_message_id, unpack_host
from delaymq.message.levels import level_of_queue
from delaymq.message.marks import MarkKind, parse_due, parse_mark
from delaymq.message.properties import decode_properties
from delaymq.message.record import Record
from delaymq.message.timed_marks import TimedMark, TimedMarkKind
from delaymq.schedule.timeline import TIMELINE_QUEUE, Pending
from delaymq.server.api.messages.index_search import search_index
from delaymq.server.api.messages.repeating import repeats_of
from delaymq.server.api.messages.resent import resent_times_ms
from delaymq.server.api.messages.timed import (
    due_ms_of_timed,
    fate_of_timed,
    pending_timed,
    reading_index,
)
from delaymq.server.api.routing import Api, ApiError, Name, Query, TimeMs
from delaymq.server.api.topics import no_topic
from delaymq.server.group_lag import queue_count
from delaymq.server.log_reader import ReadRecord, clean_text
from delaymq.server.time_slices import TimeSlices
from delaymq.store.index.key_index import indexed_delay_key
from delaymq.store.layout import CHANGED_VERSION
from delaymq.store.reader import QUEUE_ENTRY

if TYPE_CHECKING:
    from delaymq.broker.broker import Broker

MAX_FOUND: Final = 64
"""Maximum messages per response, as in RocketMQ."""
_LATEST_MS: Final = 1 << 53
_BLANK_SIZE: Final = 1 << 30
PENDING_TOPICS: Final = (names.SCHEDULE_TOPIC, names.TIMER_TOPIC)
"""Topics of pending messages."""
_STATES: Final[dict[FateKind, State]] = {
    FateKind.DELIVERED: "delivered",
    FateKind.CANCELLED: "cancelled",
    FateKind.REPLACED: "cancelled",
    FateKind.EXPIRED: "expired",
    FateKind.DROPPED: "dropped",
}
_NAMING_TOPICS: Final = (*PENDING_TOPICS, names.MARKS_TOPIC)
"""Topics whose records name the real topic of their message."""


class MessagesQuery(Query):
    """Parameters of a search by key or unique id (`key`), otherwise by store time, newest first."""

    topic: Name
    key: Annotated[str, msgspec.Meta(max_length=1024)] = ""
    from_ms: TimeMs = 0
    to_ms: TimeMs = _LATEST_MS
    queue_id: Annotated[int, msgspec.Meta(ge=0, le=1 << 30)] | None = None


def row_of(broker: "Broker", read: ReadRecord, pending: Pending | None = None) -> MessageRow:
    """Convert a record to a row, of `pending` if the record is known to hold it.

    ApiError if the state of its message cannot be determined.
    """
    record = read.record
    properties = decode_properties(record.raw_properties)
    is_waiting_place = record.topic in _NAMING_TOPICS
    offset_id = offset_message_id(record.store_host, record.physical_offset)
    host, port = unpack_host(record.born_host)
    real_queue = properties.get(names.REAL_QUEUE_ID, "")
    return MessageRow(
        message_id=clean_text(properties.get(names.UNIQUE_KEY, offset_id)),
        offset_message_id=offset_id,
        topic=clean_text(real_topic(record.topic, properties)),
        queue_id=int(real_queue) if is_waiting_place and real_queue.isdecimal() else record.queue_id,
        queue_offset=None if is_waiting_place else record.queue_offset,
        physical_offset=record.physical_offset,
        tags=clean_text(properties[names.TAGS]) if names.TAGS in properties else None,
        keys=[clean_text(key) for key in _keys_of(properties)],
        born_ms=record.born_timestamp_ms,
        born_host=f"[{host}]:{port}" if ":" in host else f"{host}:{port}",
        stored_ms=record.store_timestamp_ms,
        delay_level=delay_level_of(record, properties),
        due_ms=due_ms_of(broker, record, properties) if pending is None else pending.due_ms,
        state=state_of(broker, record, properties) if pending is None else "pending",
        reconsume_times=record.reconsume_times,
        bytes=read.body_bytes,
        properties={clean_text(name): clean_text(value) for name, value in properties.items()},
        group=clean_text(group_in(properties)) or None,
        resent_ms=None,
        repeats=_repeats_of(broker, record, properties) if record.topic == names.TIMER_TOPIC else None,
    )


def _repeats_of(broker: "Broker", record: Record, properties: dict[str, str]) -> Repeats | None:
    return repeats_of(broker, record, properties, stated_by(properties, record.physical_offset)[0])


def real_topic(topic: str, properties: dict[str, str]) -> str:
    """Return the topic for which the message of a record in `topic` is intended."""
    return properties.get(names.REAL_TOPIC, topic) if topic in _NAMING_TOPICS else topic


def place_of(record: Record, properties: dict[str, str]) -> tuple[int, int] | None:
    """Return the place that a record of a pending message has in the schedule, or that another record settles.

    It consists of queue id and queue offset, or of TIMELINE_QUEUE and the identity of a timed message. None: the record
    belongs to no delayed message.
    """
    if record.topic == names.SCHEDULE_TOPIC:
        return record.queue_id, record.queue_offset
    if record.topic == names.TIMER_TOPIC:
        return TIMELINE_QUEUE, stated_by(properties, record.physical_offset)[0]
    mark = parse_mark(properties.get(names.MARK, ""))
    if mark is not None:
        return mark.queue_id, mark.queue_offset
    timed = mark_in(properties, record.physical_offset)
    if timed is None:
        return None
    return (TIMELINE_QUEUE, timed.identity) if timed.queue is None else timed.queue


def state_of(broker: "Broker", record: Record, properties: dict[str, str]) -> State:
    """Return the state of a record's message, derived from the record and the schedule. ApiError."""
    if record.topic == names.TIMER_TOPIC:
        if pending_timed(broker, record) is not None:
            return "pending"
        return _STATES[fate_of_timed(broker, record)]
    if record.topic == names.SCHEDULE_TOPIC:
        with reading_index():
            if broker.delivery.is_pending(record):
                return "pending"
        # Before the first change, each message was delivered, or a mark states how it ended.
        store = broker.store
        is_changeable = store.format_version >= CHANGED_VERSION and store.has_all_keys
        return _STATES[fate_of_timed(broker, record)] if is_changeable else "delivered"
    if record.topic.startswith(names.DLQ_PREFIX):
        return "deadLettered"
    if record.topic == names.MARKS_TOPIC:
        return _state_by_mark(mark_in(properties, record.physical_offset))
    if record.topic.startswith(names.RETRY_PREFIX):
        return "retried"
    mark = parse_mark(properties.get(names.MARK, ""))
    if mark is not None and mark.kind is MarkKind.DELIVERED:
        return "delivered"
    timed = mark_in(properties, record.physical_offset)
    return "delivered" if timed is not None and timed.kind is TimedMarkKind.DELIVERED else "stored"


def _state_by_mark(mark: TimedMark | None) -> State:
    if mark is not None and mark.next_due_ms is not None:
        return "pending"
    if mark is not None and mark.kind is TimedMarkKind.CANCELLED:
        return "cancelled"
    return "expired" if mark is not None and mark.kind is TimedMarkKind.EXPIRED else "dropped"


def delay_level_of(record: Record, properties: dict[str, str]) -> int:
    """Return the delay level of a message; 0 if it was not delayed."""
    if record.topic == names.SCHEDULE_TOPIC:
        return level_of_queue(record.queue_id)
    text = properties.get(names.DELAY, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0


def due_ms_of(broker: "Broker", record: Record, properties: dict[str, str]) -> int | None:
    """Return the due time of a delayed message; None for others, and if no record contains it."""
    text = properties.get(names.DUE, "")
    if record.topic == names.SCHEDULE_TOPIC:
        due_ms = parse_due(text, record.queue_id, record.queue_offset)
        if due_ms is not None:
            return due_ms
        return record.store_timestamp_ms + broker.delivery.levels.delay_ms(level_of_queue(record.queue_id))
    if record.topic == names.TIMER_TOPIC:
        pending = pending_timed(broker, record)
        return due_ms_of_timed(record, properties) if pending is None else pending.due_ms
    mark = parse_mark(properties.get(names.MARK, ""))
    if mark is not None:
        return parse_due(text, mark.queue_id, mark.queue_offset)
    timed = mark_in(properties, record.physical_offset)
    if timed is not None and timed.run is not None and (run_ms := properties.get(names.TIMER_OUT_MS, "")).isdecimal():
        return int(run_ms)  # runs before it were missed
    return None if timed is None else timed.due_ms


async def messages(api: Api, query: MessagesQuery) -> Messages:
    """Return messages of a topic by key or by time; raise ApiError 404 if there is no such topic."""
    if names.topic_problem(query.topic) is not None:
        raise no_topic(query.topic)
    if query.key:
        found, truncated = await _by_key(api, query)
    else:
        found, truncated = await _by_time(api, query)
    rows = await rows_of(api, query.topic, found)
    pending = api.broker.delivery.pending_of_topic(query.topic)
    return Messages(as_of_ms=api.broker.now_ms(), messages=rows, truncated=truncated, pending=pending)


async def rows_of(api: Api, topic: str, found: list[ReadRecord]) -> list[MessageRow]:
    """Convert records of a topic to rows; set the resend time of dead letters."""
    rows = [row_of(api.broker, each) for each in found]
    if rows and topic.startswith(names.DLQ_PREFIX):
        times = await resent_times_ms(api, topic.removeprefix(names.DLQ_PREFIX), [each.record for each in found])
        for row, time_ms in zip(rows, times, strict=True):
            row.resent_ms = time_ms
    return rows


async def _by_key(api: Api, query: MessagesQuery) -> tuple[list[ReadRecord], bool]:
    """Return messages with a key or unique id, including pending and dropped ones, and whether there may be more."""
    broker, topic, key, from_ms, to_ms = api.broker, query.topic, query.key, query.from_ms, query.to_ms
    slices = TimeSlices()
    indexed = [(each, key) for each in (topic, *_NAMING_TOPICS)]
    indexed.append((names.TIMER_TOPIC, indexed_delay_key(topic, key)))
    found = [await search_index(broker.store, *each, MAX_FOUND, slices, from_ms, to_ms) for each in indexed]
    async with api.reading():
        read = await api.in_thread(api.log_files().records, sorted({*chain(*found)}, reverse=True))
    rows, runs = [], []
    with_key = _holding([each for each in read if each is not None and has_key(each.record, topic, key)])
    shown_places: set[tuple[int, int]] = set()
    for each in with_key:
        record = each.record
        if not from_ms <= record.store_timestamp_ms <= to_ms:
            continue
        if query.queue_id is not None and row_of(broker, each).queue_id != query.queue_id:
            continue
        place = place_of(record, decode_properties(record.raw_properties))
        if is_run(record, decode_properties(record.raw_properties)):
            runs.append(each)
            continue
        if place is not None:
            if record.topic in PENDING_TOPICS and place in shown_places:
                continue  # a newer record of the same message contains the same information
            shown_places.add(place)
        rows.append(each)
    rows += runs  # they must not displace the repeating message
    may_be_more = max(map(len, found)) >= MAX_FOUND or len(rows) > MAX_FOUND
    return rows[:MAX_FOUND], may_be_more


def is_run(record: Record, properties: dict[str, str]) -> bool:
    """Return whether a record is a copy of a repeating message."""
    mark = mark_in(properties, record.physical_offset) if record.topic not in _NAMING_TOPICS else None
    return mark is not None and mark.run is not None


def _holding(found: list[ReadRecord]) -> list[ReadRecord]:
    """Return the records that hold their messages, or of which no other record is among them.

    These are neither marks without a body, nor the entries of a delay level that were stored again with another time.
    """
    held, moved = set[tuple[int, int] | None](), set[tuple[int, int]]()
    placed: list[tuple[ReadRecord, tuple[int, int] | None, bool]] = []
    for each in found:
        properties = decode_properties(each.record.raw_properties)
        place = place_of(each.record, properties)
        placed.append((each, place, _is_mark_of_change(each.record, properties)))
        if each.record.topic in PENDING_TOPICS:
            held.add(place)
            mark = parse_mark(properties.get(names.MARK, ""))
            if mark is not None:
                moved.add((mark.queue_id, mark.queue_offset))
    return [
        each
        for each, place, is_mark in placed
        if not (is_mark and place in held) and not (each.record.topic == names.SCHEDULE_TOPIC and place in moved)
    ]


def _is_mark_of_change(record: Record, properties: dict[str, str]) -> bool:
    """Return whether a record states a change or an expiry, and not a drop, of which the mark contains the message."""
    mark = mark_in(properties, record.physical_offset) if record.topic == names.MARKS_TOPIC else None
    return mark is not None and mark.kind is not TimedMarkKind.DROPPED


def has_key(record: Record, topic: str, key: str) -> bool:
    """Return whether a record is a stored or pending message of `topic` with this key, DELAY_KEY or unique id."""
    properties = decode_properties(record.raw_properties)
    has = key in (
        properties.get(names.UNIQUE_KEY),
        properties.get(names.DELAY_KEY),
        properties.get(names.DELAY_SCHEDULE_ID),
        *_keys_of(properties),
    )
    return real_topic(record.topic, properties) == topic and has


def _keys_of(properties: dict[str, str]) -> list[str]:
    return [key for key in properties.get(names.KEYS, "").split(" ") if key]


async def _by_time(api: Api, query: MessagesQuery) -> tuple[list[ReadRecord], bool]:
    broker, slices = api.broker, TimeSlices()
    config = broker.topics.table.get(query.topic)
    if config is None:
        raise no_topic(query.topic)
    queue_ids = range(queue_count(config)) if query.queue_id is None else [query.queue_id]
    async with api.reading():
        ends = await _ends_by_time(api, query.topic, list(queue_ids), query.to_ms, slices)
        offsets: list[int] = []
        for queue_id, low, end in ends:
            await slices.yield_if_due()
            first = max(low, end - MAX_FOUND - 1)
            entries = _entries(broker, query.topic, queue_id, first, end)
            offsets += [entry[0] for entry in QUEUE_ENTRY.iter_unpack(entries) if 0 < entry[1] < _BLANK_SIZE]
        # Physical offsets order records across queues.
        newest = sorted(offsets, reverse=True)[: MAX_FOUND + 1]
        read = await api.in_thread(api.log_files().records, newest)
    rows = [
        each
        for each in read
        if each is not None
        and each.record.topic == query.topic
        and query.from_ms <= each.record.store_timestamp_ms <= query.to_ms
    ]
    return rows[:MAX_FOUND], len(rows) > MAX_FOUND


def _entries(broker: "Broker", topic: str, queue_id: int, first: int, end: int) -> bytes:
    """Return the raw entries from `first` to before `end`; each read of the store ends at a file's end."""
    parts = []
    while first < end and (part := broker.store.read_entries(topic, queue_id, first, end - first)):
        parts.append(part)
        first += len(part) // QUEUE_ENTRY.size
    return b"".join(parts)


async def _ends_by_time(
    api: Api, topic: str, queue_ids: list[int], to_ms: int, slices: TimeSlices
) -> list[tuple[int, int, int]]:
    """Return queue id, first entry, and first entry stored after `to_ms`; empty queues are omitted.

    Runs a binary search in all queues concurrently, one step of each per call to the thread.
    """
    store = api.broker.store
    found: list[tuple[int, int, int]] = []
    searched: dict[int, tuple[int, int, int]] = {}
    for queue_id in queue_ids:
        await slices.yield_if_due()
        low, high = store.queue_bounds(topic, queue_id)
        if low >= high:
            continue
        if to_ms >= store.last_store_timestamp_ms:
            found.append((queue_id, low, high))
        else:
            searched[queue_id] = (low, low, high)
    while searched:
        middles: list[tuple[int, int]] = []
        for queue_id, (_, low, high) in searched.items():
            await slices.yield_if_due()
            entry = store.read_entries(topic, queue_id, (low + high) // 2, 1)
            is_whole = len(entry) == QUEUE_ENTRY.size
            middles.append((queue_id, QUEUE_ENTRY.unpack(entry)[0] if is_whole else -1))
        times = await api.in_thread(api.log_files().store_times_ms, [offset for _, offset in middles])
        for (queue_id, _), time_ms in zip(middles, times, strict=True):
            first, low, high = searched[queue_id]
            middle = (low + high) // 2
            # A blank entry, or one whose record is deleted, counts as old, because it precedes all existing records.
            low, high = (middle + 1, high) if time_ms is None or time_ms <= to_ms else (low, middle)
            if low < high:
                searched[queue_id] = (first, low, high)
            else:
                del searched[queue_id]
                found.append((queue_id, first, low))
    return found


async def find(api: Api, message_id: str, topic: str) -> ReadRecord:
    """Return the record of an offset message id, or of a unique id in `topic`; raise ApiError 404."""
    if topic and (found := await by_unique_id(api, topic, message_id)):
        return found[0]
    offset = parse_id(message_id)
    if offset is not None:
        read = await named(api, offset)
        if read is not None and offset_message_id(read.record.store_host, offset) == message_id.upper():
            return await _moved_to(api, read) or read
        if (
            offset < api.broker.store.min_offset
            and offset_message_id(api.broker.store_host, offset) == message_id.upper()
        ):
            raise ApiError(
                404,
                "no_such_message",
                f"the log no longer contains the record {message_id}: it was deleted. A timed message that is still"
                " pending was stored again before that: search for its key, or for its unique id with its topic",
            )
    raise not_found(message_id, topic)


def not_found(message_id: str, topic: str) -> ApiError:
    """Return the error for an unknown message."""
    hint = f" in topic {topic!r}" if topic else ": a unique id requires its topic (?topic=…)"
    return ApiError(404, "no_such_message", f"this broker has no message {message_id[:64]!r}{hint}")


async def _moved_to(api: Api, read: ReadRecord) -> ReadRecord | None:
    """Return the record by which a message with a level became a timed one; None if it did not."""
    record = read.record
    properties = decode_properties(record.raw_properties)
    unique_id = properties.get(names.UNIQUE_KEY)
    if record.topic != names.SCHEDULE_TOPIC or unique_id is None:
        return None
    for each in await by_unique_id(api, real_topic(record.topic, properties), unique_id):
        mark = parse_mark(decode_properties(each.record.raw_properties).get(names.MARK, ""))
        is_moved = mark is not None and (mark.queue_id, mark.queue_offset) == (record.queue_id, record.queue_offset)
        if is_moved and each.record.topic == names.TIMER_TOPIC:
            return each
    return None


async def named(api: Api, offset: int) -> ReadRecord | None:
    """Return the record at an untrusted offset; None unless its queue confirms it."""
    async with api.reading():
        read = (await api.in_thread(api.log_files().records, [offset]))[0]
    if read is None:
        return None
    record = read.record
    entry = api.broker.store.read_entries(record.topic, record.queue_id, record.queue_offset, 1)
    is_named = len(entry) == QUEUE_ENTRY.size and QUEUE_ENTRY.unpack(entry)[:2] == (offset, record.size)
    return read if is_named else None


async def by_unique_id(api: Api, topic: str, unique_id: str) -> list[ReadRecord]:
    """Return the records of a topic with a unique id: stored, dropped and pending ones, each newest first."""
    store, slices = api.broker.store, TimeSlices()
    found: list[int] = []
    # A message with a level that is moved continues in the timer topic.
    for each in (topic, names.MARKS_TOPIC, names.TIMER_TOPIC, names.SCHEDULE_TOPIC):
        found += await search_index(store, each, unique_id, MAX_FOUND, slices)
    async with api.reading():
        read = await api.in_thread(api.log_files().records, found)
    return _holding([each for each in read if each is not None and _has_unique_id(each.record, topic, unique_id)])


def _has_unique_id(record: Record, topic: str, unique_id: str) -> bool:
    properties: dict[str, Any] = decode_properties(record.raw_properties)
    return real_topic(record.topic, properties) == topic and properties.get(names.UNIQUE_KEY) == unique_id


def parse_id(message_id: str) -> int | None:
    """Return the physical offset of an offset message id; None if it is invalid."""
    try:
        return parse_offset_message_id(message_id)[2]
    except ValueError:
        return None
