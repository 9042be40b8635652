"""Pulls (11): permission checks, immediate and held responses, and offset commits."""

from __future__ import annotations

import logging
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Final

import msgspec

from delaymq.broker.filters import NotNowError, matches_all, matches_nothing
from delaymq.broker.pull.filter_resolution import filter_of_pull
from delaymq.broker.pull.queue_reader import (
    FOUND,
    FOUND_NULL,
    NO_MATCHED,
    NO_MESSAGE_IN_QUEUE,
    OVERFLOW_BADLY,
    OVERFLOW_ONE,
    TOO_SMALL,
    WAS_REMOVING,
    Pulled,
    read_queue,
)
from delaymq.broker.requests.errors import group_missing, no_permission, system_error, topic_missing
from delaymq.broker.requests.results import Held
from delaymq.broker.topics import READ
from delaymq.message import names
from delaymq.protocol.codes import RequestCode, ResponseCode
from delaymq.protocol.command import Command, Response
from delaymq.protocol.headers import PullMessageRequestHeader
from delaymq.store.errors import StoreError
from delaymq.store.model import NewRecord
from delaymq.throttled_log import fields

if TYPE_CHECKING:
    from delaymq.broker.broker import Broker
    from delaymq.broker.requests.session import Session

COMMIT_OFFSET: Final = 1
MAY_BE_HELD: Final = 2

MAX_HELD_MS: Final = 120_000
"""Maximum time for which a pull is held. Clients request 15 s to 30 s."""
_logger = logging.getLogger(__name__)

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


def pull_message(broker: Broker, session: Session, command: Command) -> Response | Held:
    """Handle PULL_MESSAGE (11)."""
    header = PullMessageRequestHeader.from_fields(command.fields)
    deadline_ms = 0
    if header.sys_flag & MAY_BE_HELD:
        if broker.config.long_polling_enable:
            wait_ms = min(header.suspend_timeout_millis, MAX_HELD_MS)
        else:
            wait_ms = broker.config.short_polling_time_mills
        deadline_ms = broker.now_ms() + wait_ms if wait_ms > 0 else 0
    is_replica = broker.following is not None
    if not is_replica:
        broker.creations.find_group(session, command, header.consumer_group)
    result = _pull(broker, header, deadline_ms, session, False)
    # As in RocketMQ, a replica keeps no offsets: consumers commit them with the master, too.
    if header.sys_flag & COMMIT_OFFSET and header.commit_offset >= 0 and not is_replica:
        broker.committing.commit(header.topic, header.consumer_group, header.queue_id, header.commit_offset)
    return result


def _pull(
    broker: Broker, header: PullMessageRequestHeader, deadline_ms: int, session: Session, final: bool
) -> Response | Held:
    """Read the queue once. The pull may be held if `deadline_ms` is not 0 and `final` is False."""
    is_replica = broker.following is not None
    if is_replica and not _is_readable(broker, header):
        return _to_master(broker, header, deadline_ms, session, final)
    _check_place(broker, header)
    try:
        wanted = filter_of_pull(broker, header, session.id)
    except NotNowError:
        return _later(broker, header, deadline_ms, session, final)
    offset = header.queue_offset
    began = perf_counter()
    pulled = read_queue(broker, header.topic, header.queue_id, offset, header.max_msg_nums, wanted)
    if pulled.next_offset < offset and broker.readers.may_be_outdated():
        # The consumer may have read the rest from a newer master.
        pulled = pulled._replace(status=OVERFLOW_ONE, next_offset=offset)
    if broker.config.disable_consume_if_consumer_read_slowly and not is_replica:
        _stop_if_slow(broker, header, pulled.behind_bytes)
    if is_replica and pulled.status is FOUND_NULL:
        return _to_master(broker, header, deadline_ms, session, final)
    code = _CODES[pulled.status]
    if pulled.status is NO_MESSAGE_IN_QUEUE and offset == 0:
        code = ResponseCode.PULL_NOT_FOUND
    if code == ResponseCode.SUCCESS:
        took_s = perf_counter() - began
        broker.stats.found(
            header.topic, header.consumer_group, header.queue_id, pulled.messages, len(pulled.records), took_s
        )
        if session.usage is not None:
            session.usage.pulled(session, len(pulled.records))
    else:
        broker.stats.get_miss += 1
        if code == ResponseCode.PULL_NOT_FOUND and deadline_ms and not final and pulled.next_offset == offset:
            resume = partial(_resume, broker, header, deadline_ms, session)
            tags = wanted.tags or matches_all
            return Held(
                header.topic, header.queue_id, offset, deadline_ms, tags, resume, wanted.properties, wanted.cost
            )
        if code == ResponseCode.PULL_OFFSET_MOVED and broker.config.offset_moved_event_enable:
            _report_moved(broker, header, pulled.next_offset)
    return Response(
        code,
        pulled.status,
        {
            "suggestWhichBrokerId": "0" if not broker.config.slave_read_enable else _suggested(broker, header, pulled),
            "nextBeginOffset": str(pulled.next_offset),
            "minOffset": str(pulled.min_offset),
            "maxOffset": str(pulled.max_offset),
        },
        pulled.records,
    )


def _is_readable(broker: Broker, header: PullMessageRequestHeader) -> bool:
    """Return whether this replica can respond to a pull as its master would.

    The replica may know less of the queue than the consumer has read, or have deleted messages that the master still
    has. A response about the ends of its queue would let the consumer repeat or skip messages.
    """
    if not (broker.config.slave_read_enable and broker.readers.is_current()):
        return False
    if header.topic not in broker.topics.table or header.consumer_group not in broker.groups.table:
        return False
    low, high = broker.store.queue_bounds(header.topic, header.queue_id)
    return low <= header.queue_offset <= high and high > 0


def _to_master(
    broker: Broker, header: PullMessageRequestHeader, deadline_ms: int, session: Session, final: bool
) -> Response | Held:
    """Return the response of RocketMQ's slave that lets a consumer repeat its pull with the master.

    If possible, it is held briefly, since a consumer with an outdated route takes this replica for the master.
    """
    offset = header.queue_offset
    if deadline_ms and not final:
        resume = partial(_resume, broker, header, deadline_ms, session)
        return Held(header.topic, header.queue_id, offset, broker.now_ms(), matches_nothing, resume)
    fields = {"suggestWhichBrokerId": "0", "nextBeginOffset": str(offset), "minOffset": "0", "maxOffset": str(offset)}
    remark = "this broker is a replica, which cannot respond to this pull now: repeat it with the group's master"
    return Response(ResponseCode.PULL_RETRY_IMMEDIATELY, remark, fields)


def _later(
    broker: Broker, header: PullMessageRequestHeader, deadline_ms: int, session: Session, final: bool
) -> Response | Held:
    """Return the result of a pull whose filter cannot be compiled now: hold it briefly, or let the client repeat it."""
    offset = header.queue_offset
    if deadline_ms and not final:
        resume = partial(_resume, broker, header, deadline_ms, session)
        return Held(header.topic, header.queue_id, offset, broker.now_ms(), matches_nothing, resume)
    low, high = broker.store.queue_bounds(header.topic, header.queue_id)
    fields = {"suggestWhichBrokerId": "0", "nextBeginOffset": str(offset), "minOffset": str(max(low, 0))}
    fields["maxOffset"] = str(max(high, 0))
    return Response(ResponseCode.PULL_NOT_FOUND, OVERFLOW_ONE, fields)


def _suggested(broker: Broker, header: PullMessageRequestHeader, pulled: Pulled) -> str:
    """Return the id of the broker that the group's next pull should use (slaveReadEnable)."""
    group = broker.groups.table[header.consumer_group]
    is_slow = pulled.behind_bytes > broker.in_memory_bytes
    wanted = group.which_broker_when_consume_slowly if is_slow else group.broker_id
    return str(broker.readers.suggested(wanted, follows=broker.following is not None))


def _stop_if_slow(broker: Broker, header: PullMessageRequestHeader, behind_bytes: int) -> None:
    name = header.consumer_group
    place = (name, header.topic, header.queue_id)
    if broker.slow_readers.is_too_slow(
        place, behind_bytes, broker.config.consumer_fallbehind_threshold, broker.now_ms()
    ):
        text = "consumption of group %s disabled: it reads %d bytes behind the end of the log; set its consumeEnable"
        text += " to resume"
        _logger.warning(text, name, behind_bytes, extra=fields(group=name, topic=header.topic))
        broker.groups.disable_consuming(name)


def _resume(
    broker: Broker, header: PullMessageRequestHeader, deadline_ms: int, session: Session, final: bool
) -> Response | Held:
    return broker.guarded(RequestCode.PULL_MESSAGE, partial(_pull, broker, header, deadline_ms, session, final))


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


def _report_moved(broker: Broker, header: PullMessageRequestHeader, new_offset: int) -> None:
    """Append RocketMQ's event for operators: a consumer requested an offset outside the queue."""
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
        broker.stats.put_failed += 1  # a lost event must not fail the pull
