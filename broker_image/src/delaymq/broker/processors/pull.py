"""Pulls (11): reading a queue, filtering by tags, waiting for messages, and committing offsets on the way."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from delaymq import clock
from delaymq.broker.errors import group_missing, no_permission, system_error, topic_missing
from delaymq.broker.filters import matches_all, require_tag_type, tag_matcher
from delaymq.broker.results import Held
from delaymq.broker.topics import READ
from delaymq.message import names
from delaymq.message.record import FIXED_BYTES, MESSAGE_MAGIC, SIZE_AND_MAGIC
from delaymq.protocol.codes import RequestCode, ResponseCode
from delaymq.protocol.command import Command, Response
from delaymq.protocol.errors import RequestError
from delaymq.protocol.headers import PullMessageRequestHeader
from delaymq.quiet_log import QuietLog
from delaymq.store.consume_queue import BLANK_SIZE, ENTRY
from delaymq.store.errors import StoreError
from delaymq.store.model import NewRecord

if TYPE_CHECKING:
    from delaymq.broker.broker import Broker
    from delaymq.broker.session import Session

COMMIT_OFFSET: Final = 1
MAY_BE_HELD: Final = 2
HAS_SUBSCRIPTION: Final = 4
CLASS_FILTER: Final = 8

# How long a client may have its pull held; clients ask for 15 s to 30 s.
MAX_HELD_MS: Final = 120_000
# Entries looked at for one pull of a filtering consumer: bounds the time that a rare tag costs the others.
MIN_ENTRIES_LOOKED_AT: Final = 800
MAX_ENTRIES_LOOKED_AT: Final = 32_000

_SIZE_AND_MAGIC_AT: Final = SIZE_AND_MAGIC.unpack_from

FOUND: Final = "FOUND"
NO_MATCHED: Final = "NO_MATCHED_MESSAGE"
WAS_REMOVING: Final = "MESSAGE_WAS_REMOVING"
NO_MESSAGE_IN_QUEUE: Final = "NO_MESSAGE_IN_QUEUE"
OVERFLOW_ONE: Final = "OFFSET_OVERFLOW_ONE"
OVERFLOW_BADLY: Final = "OFFSET_OVERFLOW_BADLY"
TOO_SMALL: Final = "OFFSET_TOO_SMALL"
FOUND_NULL: Final = "OFFSET_FOUND_NULL"

_CODES: Final[dict[str, int]] = {
    FOUND: ResponseCode.SUCCESS,
    NO_MATCHED: ResponseCode.PULL_RETRY_IMMEDIATELY,
    WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    NO_MESSAGE_IN_QUEUE: ResponseCode.PULL_OFFSET_MOVED,
    OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
    FOUND_NULL: ResponseCode.PULL_NOT_FOUND,
}

Matcher = Callable[[int], bool]

_damage_log = QuietLog(logging.getLogger(__name__), clock.now_ms)


class Pulled(NamedTuple):
    """What a queue holds at an offset."""

    status: str
    next_offset: int
    min_offset: int
    max_offset: int
    records: bytes
    messages: int


def pull_message(broker: Broker, session: Session, command: Command) -> Response | Held:
    """11."""
    header = PullMessageRequestHeader.from_fields(command.fields)
    deadline_ms = 0
    if header.sys_flag & MAY_BE_HELD:
        if broker.config.long_polling_enable:
            wait_ms = min(header.suspend_timeout_millis, MAX_HELD_MS)
        else:
            wait_ms = broker.config.short_polling_time_mills
        deadline_ms = broker.now_ms() + wait_ms if wait_ms > 0 else 0
    result = _pull(broker, header, deadline_ms, False)
    if header.sys_flag & COMMIT_OFFSET and header.commit_offset >= 0:
        broker.offsets.commit(header.topic, header.consumer_group, header.queue_id, header.commit_offset)
        broker.activity.seen(header.consumer_group, broker.now_ms())
    return result


def _pull(broker: Broker, header: PullMessageRequestHeader, deadline_ms: int, final: bool) -> Response | Held:
    """One look at the queue; with `deadline_ms` (0: no waiting) and not `final` the pull may be held."""
    _check_place(broker, header)
    matches = _matcher(broker, header)
    offset = header.queue_offset
    pulled = read_queue(broker, header.topic, header.queue_id, offset, header.max_msg_nums, matches)
    code = _CODES[pulled.status]
    if pulled.status is NO_MESSAGE_IN_QUEUE and offset == 0:
        code = ResponseCode.PULL_NOT_FOUND
    if code == ResponseCode.SUCCESS:
        broker.stats.get_found += 1
        broker.stats.transferred += pulled.messages
        broker.stats.get_bytes += len(pulled.records)
    else:
        broker.stats.get_miss += 1
        if code == ResponseCode.PULL_NOT_FOUND and deadline_ms and not final and pulled.next_offset == offset:
            resume = partial(_resume, broker, header, deadline_ms)
            return Held(header.topic, header.queue_id, offset, deadline_ms, matches or matches_all, resume)
        if code == ResponseCode.PULL_OFFSET_MOVED and broker.config.offset_moved_event_enable:
            _report_moved(broker, header, pulled.next_offset)
    return Response(
        code,
        pulled.status,
        {
            "suggestWhichBrokerId": "0",
            "nextBeginOffset": str(pulled.next_offset),
            "minOffset": str(pulled.min_offset),
            "maxOffset": str(pulled.max_offset),
        },
        pulled.records,
    )


def _resume(broker: Broker, header: PullMessageRequestHeader, deadline_ms: int, final: bool) -> Response | Held:
    return broker.guarded(RequestCode.PULL_MESSAGE, partial(_pull, broker, header, deadline_ms, final))


def read_queue(
    broker: Broker, topic: str, queue_id: int, offset: int, max_count: int, matches: Matcher | None
) -> Pulled:
    """Records from `offset` on, as RocketMQ would hand them out; only what the store has confirmed is seen."""
    store = broker.store
    low, high = store.queue_bounds(topic, queue_id)
    if high == 0:
        return Pulled(NO_MESSAGE_IN_QUEUE, 0, low, high, b"", 0)
    if offset < low:
        return Pulled(TOO_SMALL, low, low, high, b"", 0)
    if offset == high:
        return Pulled(OVERFLOW_ONE, offset, low, high, b"", 0)
    if offset > high:
        return Pulled(OVERFLOW_BADLY, high, low, high, b"", 0)
    limit = max(min(max_count, broker.max_pull_count), 1)
    wanted = limit
    if matches is not None:
        wanted = min(max(MIN_ENTRIES_LOOKED_AT, max_count), MAX_ENTRIES_LOOKED_AT)
    entries = store.read_entries(topic, queue_id, offset, wanted)
    if not entries:
        return Pulled(FOUND_NULL, min(max(broker.next_queue_file(offset), low), high), low, high, b"", 0)
    return _collect(broker, entries, offset, limit, matches, low, high)


def _collect(
    broker: Broker, entries: bytes, offset: int, limit: int, matches: Matcher | None, low: int, high: int
) -> Pulled:
    """Reads the records of `entries` until a limit is reached; neighbours in the log are read in one go."""
    store = broker.store
    confirmed, oldest = store.confirmed_offset, store.min_offset
    config = broker.config
    first_offset = ENTRY.unpack_from(entries)[0]
    max_bytes = config.max_transfer_bytes_on_message_in_memory
    if store.end_offset - first_offset > broker.in_memory_bytes:
        limit = min(limit, config.max_transfer_count_on_message_in_disk)
        max_bytes = config.max_transfer_bytes_on_message_in_disk
    status = NO_MATCHED
    count = total = looked_at = 0
    start = end = 0
    parts = []
    for physical_offset, size, tags_code in ENTRY.iter_unpack(entries):
        record_end = physical_offset + size
        if physical_offset < oldest or not 0 < size < BLANK_SIZE:
            # Deleted, or a blank entry: the log was damaged here, and the queue goes on behind it.
            status = WAS_REMOVING
        elif record_end > confirmed:
            break
        elif matches is None or matches(tags_code):
            if count and (count >= limit or total + size > max_bytes):
                break
            if physical_offset != end:
                if end:
                    parts.append(store.read_bytes(start, end - start))
                start = physical_offset
            end = record_end
            count += 1
            total += size
        looked_at += 1
    if count:
        parts.append(store.read_bytes(start, end - start))
        records = b"".join(parts) if len(parts) > 1 else parts[0]
        if not _is_whole(records, count):
            records, count = _sound_ones(broker, entries[: looked_at * ENTRY.size], matches)
        if count:
            return Pulled(FOUND, offset + looked_at, low, high, records, count)
        status = WAS_REMOVING
    if not looked_at:
        # Stored, but not on the disk yet: for consumers the queue ends here.
        return Pulled(OVERFLOW_ONE, offset, low, high, b"", 0)
    return Pulled(status, offset + looked_at, low, high, b"", 0)


def _is_whole(records: bytes, count: int) -> bool:
    """Whether `records` are as many as that by their heads: what finds a damaged log without reading it all."""
    at, stop = 0, len(records) - FIXED_BYTES
    for _ in range(count):
        if at > stop:
            return False
        size, magic = _SIZE_AND_MAGIC_AT(records, at)
        if magic != MESSAGE_MAGIC or size < FIXED_BYTES:
            return False
        at += size
    return at == len(records)


def _sound_ones(broker: Broker, entries: bytes, matches: Matcher | None) -> tuple[bytes, int]:
    """The sound records that matching `entries` name, and how many.

    A client stops reading an answer at its first bad record: that one would cost all behind it, or hold them up.
    """
    store = broker.store
    parts = []
    for physical_offset, size, tags_code in ENTRY.iter_unpack(entries):
        if physical_offset < store.min_offset or not 0 < size < BLANK_SIZE or (matches and not matches(tags_code)):
            continue
        record = store.record_at(physical_offset)
        if record is not None and record.size == size:
            parts.append(store.read_bytes(physical_offset, size))
        else:
            text = "the record at %d of the log is damaged: it is left out of pulls"
            _damage_log.warning(text, physical_offset, offset=physical_offset)
    return b"".join(parts), len(parts)


def _check_place(broker: Broker, header: PullMessageRequestHeader) -> None:
    config = broker.config
    if not config.broker_permission & READ:
        raise no_permission(f"the broker[{config.broker_ip1}] pulling message is forbidden")
    group = broker.groups.find(header.consumer_group)
    if group is None:
        raise group_missing(header.consumer_group)
    if not group.consume_enable:
        raise no_permission(f"subscription group no permission, {group.group_name}")
    topic = broker.topics.table.get(header.topic)
    if topic is None:
        raise topic_missing(header.topic)
    if not topic.perm & READ:
        raise no_permission(f"the topic[{header.topic}] pulling message is forbidden")
    if not 0 <= header.queue_id < topic.read_queue_nums:
        raise system_error(
            f"queueId[{header.queue_id}] is illegal, topic:[{header.topic}] topicConfig.readQueueNums:"
            f"[{topic.read_queue_nums}] consumer group:[{group.group_name}]"
        )


def _matcher(broker: Broker, header: PullMessageRequestHeader) -> Matcher | None:
    """The filter that the request brings, or the one that the group's heartbeats stated; None: everything."""
    if header.sys_flag & HAS_SUBSCRIPTION:
        require_tag_type(header.expression_type)
        return tag_matcher(header.subscription or "")
    now_ms = broker.now_ms()
    name = header.consumer_group
    group = broker.clients.group(name, now_ms)
    if group is None:
        raise RequestError(
            ResponseCode.SUBSCRIPTION_NOT_EXIST, f"the consumer's group info not exist: {name} (it comes by heartbeat)"
        )
    if group.message_model == "BROADCASTING" and not broker.groups.table[name].consume_broadcast_enable:
        raise no_permission(f"the consumer group[{name}] can not consume by broadcast way")
    subscription = broker.clients.subscription(name, header.topic, now_ms)
    if subscription is None:
        raise RequestError(
            ResponseCode.SUBSCRIPTION_NOT_EXIST,
            f"the consumer's subscription not exist: group {name}, topic {header.topic}",
        )
    if subscription.sub_version < header.sub_version:
        raise RequestError(
            ResponseCode.SUBSCRIPTION_NOT_LATEST, f"the consumer's subscription not latest: group {name}"
        )
    require_tag_type(subscription.expression_type)
    return tag_matcher(subscription.sub_string)


def _report_moved(broker: Broker, header: PullMessageRequestHeader, new_offset: int) -> None:
    """RocketMQ's event for operators: a consumer asked at an offset that the queue does not have."""
    group = header.consumer_group
    event = {
        "consumerGroup": group,
        "messageQueue": {
            "brokerName": broker.config.broker_name,
            "queueId": header.queue_id,
            "topic": header.topic,
        },
        "offsetNew": new_offset,
        "offsetRequest": header.queue_offset,
    }
    record = NewRecord(
        names.OFFSET_MOVED_TOPIC,
        0,
        msgspec.json.encode(event),
        {names.TAGS: group, names.KEYS: group, names.DELAY: "0"},
        0,
        0,
        broker.now_ms(),
        broker.store_host,
        broker.store_host,
    )
    try:
        broker.store.append(record)
    except StoreError:
        broker.stats.put_failed += 1  # the consumer's answer matters more than the event
