"""Retries: messages that a consumer returns (36) or, if that failed, sends to its retry topic itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from delaymq.broker.delivery.delay_rewrite import strip_own
from delaymq.broker.groups.subscription_groups import retry_queue
from delaymq.broker.requests.errors import group_missing, no_permission, store_refusal, system_error, unavailable
from delaymq.broker.requests.results import Deferred
from delaymq.broker.sending.admission import check_copies, delay
from delaymq.broker.topics import WRITE
from delaymq.message import names
from delaymq.message.errors import IllegalMessageError
from delaymq.message.flags import TRANSACTION_MASK
from delaymq.message.ids import offset_message_id
from delaymq.message.properties import decode_properties, format_properties, parse_properties
from delaymq.protocol.bodies import SubscriptionGroupConfig
from delaymq.protocol.codes import ResponseCode
from delaymq.protocol.command import Command, Response
from delaymq.protocol.headers import ConsumerSendMsgBackRequestHeader, SendMessageRequestHeader
from delaymq.store.errors import StoreError
from delaymq.store.model import NewRecord

if TYPE_CHECKING:
    from delaymq.broker.broker import Broker
    from delaymq.broker.requests.session import Session

_STATES_MAX_RETRIES: Final = 121
"""First protocol version (V3_4_9) whose clients state their own maximum number of retries."""
_MAX_TRIES: Final = 2**31 - 1
"""The record stores the count in 32 bits."""
_FIRST_RETRY_LEVEL: Final = 3
"""Delay level of the first retry. Each further retry uses the next higher level."""
_NEVER_CONSUMED: Final = frozenset(
    {names.HALF_TOPIC, names.OP_HALF_TOPIC, names.SCHEDULE_TOPIC, names.TIMER_TOPIC, names.MARKS_TOPIC}
)
"""Consumers never receive records of these topics, so they cannot return them. A half message may still be
rolled back.
"""


def send_back(broker: Broker, session: Session, command: Command) -> Response | Deferred:
    """Handle CONSUMER_SEND_MSG_BACK (36): schedule a retry of a returned message, or make it a dead letter."""
    header = ConsumerSendMsgBackRequestHeader.from_fields(command.fields)
    name = header.group
    group = broker.creations.find_group(session, command, name)
    if group is None:
        raise group_missing(name)
    if not broker.config.broker_permission & WRITE:
        raise no_permission(f"the broker[{broker.config.broker_ip1}] sending message is forbidden")
    if not broker.writable:
        raise unavailable("the broker is being taken out of service")
    if group.retry_queue_nums <= 0:
        return Response()
    topic = names.retry_topic(name)
    config = broker.topics.create_for_group(topic, group.retry_queue_nums, unit_mode=bool(header.unit_mode))
    if not config.perm & WRITE:
        raise no_permission(f"the topic[{topic}] sending message is forbidden")
    head = broker.records.head_at(header.offset)
    record = None if head is None or head.topic in _NEVER_CONSUMED else broker.store.record_at(header.offset)
    if record is None:
        raise system_error(f"look message by offset failed, {header.offset}")
    properties = decode_properties(record.raw_properties)
    strip_own(properties)
    if not record.topic.startswith((names.RETRY_PREFIX, names.DLQ_PREFIX)):
        # Do not trust a value that a producer set: older versions stored it.
        properties[names.RETRY_TOPIC] = record.topic
    properties.setdefault(names.RETRY_TOPIC, record.topic)
    properties[names.WAIT] = "false"
    properties.setdefault(names.ORIGIN_MESSAGE_ID, offset_message_id(record.store_host, record.physical_offset))
    # A producer may state any 32-bit number.
    tried = max(record.reconsume_times, 0)
    if tried >= _max_times(group, command, header) or header.delay_level < 0:
        topic, queue_id = names.dead_letter_topic(name), 0
        broker.topics.create_for_group(topic, 1)
        properties[names.DELAY] = "0"
        stored_topic, stored_queue_id = topic, queue_id
    else:
        level = header.delay_level or _FIRST_RETRY_LEVEL + tried
        properties[names.DELAY] = str(level)
        queue_id = retry_queue(group, config)
        stored_topic, stored_queue_id, properties = delay(broker, properties, topic, queue_id, level, retry=True)
    sent_back = NewRecord(
        stored_topic,
        stored_queue_id,
        record.body,
        properties,
        record.flag,
        # A retry is a separate message. It must not be taken for a half message or for the end of a transaction.
        record.sys_flag & ~TRANSACTION_MASK,
        record.born_timestamp_ms,
        record.born_host,
        record.store_host,
        min(tried + 1, _MAX_TRIES),
        is_copy=True,
    )
    try:
        if stored_topic is not topic:
            check_copies(broker, sent_back, topic)
        appended = broker.store.append(sent_back)
    except (StoreError, IllegalMessageError) as error:
        broker.stats.put_failed += 1
        raise store_refusal(error) from error
    broker.stats.put(topic, appended.size, stored_topic, stored_queue_id)
    broker.stats.send_back(properties[names.RETRY_TOPIC], name)
    if broker.answers_wait:
        # The message has WAIT=false as in RocketMQ, but the consumer discards the original after this response.
        end = appended.physical_offset + appended.size
        return broker.deferred(Response(), end, lambda code: Response(ResponseCode.SYSTEM_ERROR, code.name))
    return Response()


def own_retry(
    broker: Broker, session: Session, command: Command, header: SendMessageRequestHeader, topic: str, queue_id: int
) -> tuple[str, int, bool]:
    """Return the target of a consumer's own send to its retry topic.

    The target is that topic, or the dead-letter topic after the last try. Shape: topic, queue id, and whether the
    message becomes a dead letter.
    """
    name = topic[len(names.RETRY_PREFIX) :]
    group = broker.creations.find_group(session, command, name)
    if group is None:
        raise group_missing(name)
    if (header.reconsume_times or 0) < _max_times(group, command, header):
        return topic, queue_id, False
    dead_letter_topic = names.dead_letter_topic(name)
    broker.topics.create_for_group(dead_letter_topic, 1)
    return dead_letter_topic, 0, True


def without_transaction(text: str | None) -> str | None:
    """Return the properties of a retry without those of a transaction, which clients before 4.6.1 leave in them."""
    if text is None or names.TRANSACTION_PREPARED not in text:
        return text
    properties = parse_properties(text)
    properties.pop(names.TRANSACTION_PREPARED, None)
    return format_properties(properties)


def _max_times(
    group: SubscriptionGroupConfig,
    command: Command,
    header: SendMessageRequestHeader | ConsumerSendMsgBackRequestHeader,
) -> int:
    """Return the maximum number of retries of a message: the client's value, or that of the group."""
    if command.version >= _STATES_MAX_RETRIES and header.max_reconsume_times is not None:
        return header.max_reconsume_times
    return group.retry_max_times
