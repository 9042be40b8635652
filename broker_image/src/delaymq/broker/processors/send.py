"""Sends (10, 310, 320) and send-backs (36). The single send is the hot path of the whole broker: keep it lean."""

from __future__ import annotations

from random import randrange
from time import perf_counter
from typing import TYPE_CHECKING, Final

from delaymq.broker.delivery.ingress import strip_own
from delaymq.broker.errors import (
    group_missing,
    message_illegal,
    no_permission,
    store_refusal,
    system_error,
    unavailable,
)
from delaymq.broker.groups import retry_queue
from delaymq.broker.ingress import admit, admit_batched, delay
from delaymq.broker.results import Deferred
from delaymq.broker.statistics.put_times import SLOW_S
from delaymq.broker.topics import WRITE
from delaymq.message import names
from delaymq.message.errors import IllegalMessageError
from delaymq.message.flags import MULTI_TAGS, TRANSACTION_MASK
from delaymq.message.ids import offset_message_id
from delaymq.message.properties import decode_properties, format_properties, parse_properties
from delaymq.protocol.batch import decode_batch
from delaymq.protocol.bodies import SubscriptionGroupConfig, TopicConfig
from delaymq.protocol.codes import ResponseCode
from delaymq.protocol.command import Command, Response
from delaymq.protocol.headers import (
    ConsumerSendMsgBackRequestHeader,
    SendMessageRequestHeader,
    SendMessageRequestHeaderV2,
)
from delaymq.store.errors import StoreError
from delaymq.store.model import NewRecord

if TYPE_CHECKING:
    from delaymq.broker.broker import Broker
    from delaymq.broker.session import Session

# Clients from this protocol version on (V3_4_9) state their own maximum of retries.
_STATES_MAX_RETRIES: Final = 121
# Level of a first retry; each further one waits one level longer.
_FIRST_RETRY_LEVEL: Final = 3

_closed_topics: Final = names.CLOSED_TO_CLIENTS
# What no consumer has seen, none can have failed on: a half message may yet be rolled back.
_NEVER_CONSUMED: Final = frozenset({names.HALF_TOPIC, names.OP_HALF_TOPIC, names.SCHEDULE_TOPIC, names.MARKS_TOPIC})


def send_message(broker: Broker, session: Session, command: Command) -> Response | Deferred:
    """10: the header with long names."""
    header = SendMessageRequestHeader.from_fields(command.fields)
    return _send_batch(broker, session, command, header) if header.batch else _send(broker, session, command, header)


def send_message_v2(broker: Broker, session: Session, command: Command) -> Response | Deferred:
    """310: the header with one-letter names, which clients use."""
    header = SendMessageRequestHeaderV2.from_fields(command.fields)
    return _send_batch(broker, session, command, header) if header.batch else _send(broker, session, command, header)


def send_batch_message(broker: Broker, session: Session, command: Command) -> Response | Deferred:
    """320: many messages of one topic."""
    return _send_batch(broker, session, command, SendMessageRequestHeaderV2.from_fields(command.fields))


def _send(broker: Broker, session: Session, command: Command, header: SendMessageRequestHeader) -> Response | Deferred:
    body = command.body
    if len(body) > broker.max_message_size:
        raise too_large(broker, len(body))
    config, topic, queue_id = place(broker, session, header)
    answered_queue_id = queue_id
    dead_letter = is_retry = False
    reconsume_times = header.reconsume_times or 0
    if topic.startswith(names.RETRY_PREFIX):
        is_retry = True
        topic, queue_id, dead_letter = _retried(broker, command, header, topic, queue_id)
        if reconsume_times:
            header.properties = _without_transaction(header.properties)
            header.sys_flag &= ~TRANSACTION_MASK
    sys_flag = header.sys_flag
    if config.topic_filter_type == "MULTI_TAG":
        sys_flag |= MULTI_TAGS
    stored_topic, stored_queue_id, properties, waits = admit(
        broker, topic, queue_id, header.properties or "", dead_letter
    )
    if sys_flag & TRANSACTION_MASK:
        if stored_topic != names.HALF_TOPIC:
            raise no_permission("the sys flag says that this is a transaction: send it with property TRAN_MSG=true")
        sys_flag &= ~TRANSACTION_MASK
    began = perf_counter()
    try:
        appended = broker.store.append(
            NewRecord(
                stored_topic,
                stored_queue_id,
                body,
                properties,
                header.flag,
                sys_flag,
                header.born_timestamp,
                session.remote_host,
                broker.store_host,
                reconsume_times,
            )
        )
    except (StoreError, IllegalMessageError) as error:
        broker.stats.put_failed += 1
        raise store_refusal(error) from error
    took_s = perf_counter() - began
    if took_s >= SLOW_S:
        broker.stats.put_times.slow(took_s)
    offset = appended.physical_offset
    broker.stats.put(topic, appended.size, stored_topic, stored_queue_id)
    broker.stats.last_send_ms = appended.store_timestamp_ms
    fields = {
        "msgId": f"{broker.message_id_prefix}{offset:016X}",
        "queueId": str(answered_queue_id),
        "queueOffset": str(appended.queue_offset),
        "MSG_REGION": broker.region,
        "TRACE_ON": broker.trace_on,
    }
    if broker.waits_for_flush and (waits or is_retry):
        # The WAIT=false of an earlier retry does not count: the consumer forgets the message after this answer.
        return _when_flushed(broker, fields, offset + appended.size)
    return Response(0, None, fields)


def place(broker: Broker, session: Session, header: SendMessageRequestHeader) -> tuple[TopicConfig, str, int]:
    """The topic's config, its name and the queue of what is sent, checked in RocketMQ's order."""
    if not (broker.writable and broker.drain.takes_sends):
        raise unavailable("the broker is being taken out of service: send to another one")
    topic = header.topic
    config = broker.topics.table.get(topic)
    if config is None:
        problem = names.topic_problem(topic)
        if problem is not None:
            raise system_error(problem)
    elif config.order and not broker.config.broker_permission & WRITE:
        raise no_permission(f"the broker[{broker.config.broker_ip1}] sending message is forbidden")
    if topic in _closed_topics:
        raise no_permission(f"Sending message to topic[{topic}] is forbidden.")
    if config is None:
        config = broker.topics.create_for_send(
            topic, header.default_topic, header.default_topic_queue_nums, unit_mode=bool(header.unit_mode)
        )
    queue_id = header.queue_id
    if queue_id < 0:
        queue_id = randrange(max(config.write_queue_nums, 1))
    elif queue_id >= config.write_queue_nums and queue_id >= config.read_queue_nums:
        raise system_error(
            f"request queueId[{queue_id}] is illegal, topic[{topic}] has {config.write_queue_nums} write and "
            f"{config.read_queue_nums} read queues. Producer: {session.remote_address}"
        )
    return config, topic, queue_id


def _retried(
    broker: Broker, command: Command, header: SendMessageRequestHeader, topic: str, queue_id: int
) -> tuple[str, int, bool]:
    """Where a consumer's own send to its retry topic goes: there, or after the last try to the dead letters."""
    name = topic[len(names.RETRY_PREFIX) :]
    group = broker.groups.find(name)
    if group is None:
        raise group_missing(name)
    if (header.reconsume_times or 0) < _max_times(group, command, header):
        return topic, queue_id, False
    dead_letter_topic = names.dead_letter_topic(name)
    broker.topics.create_for_group(dead_letter_topic, 1)
    return dead_letter_topic, 0, True


def _without_transaction(text: str | None) -> str | None:
    """Properties of a retry: clients before 4.6.1 leave those of the transaction that the message came from."""
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
    """How often a message of `group` is tried: as its client states, or as the group is configured."""
    if command.version >= _STATES_MAX_RETRIES and header.max_reconsume_times is not None:
        return header.max_reconsume_times
    return group.retry_max_times


def _send_batch(
    broker: Broker, session: Session, command: Command, header: SendMessageRequestHeader
) -> Response | Deferred:
    if len(command.body) > broker.max_message_size:
        raise too_large(broker, len(command.body))
    config, topic, queue_id = place(broker, session, header)
    if topic.startswith(names.RETRY_PREFIX):
        raise message_illegal(f"batch request does not support retry group {topic}: send its messages one by one")
    sys_flag = header.sys_flag
    if sys_flag & TRANSACTION_MASK:
        raise message_illegal("a batch cannot be a transaction: send its messages one by one")
    if config.topic_filter_type == "MULTI_TAG":
        sys_flag |= MULTI_TAGS
    shared_text = header.properties or ""
    shared = parse_properties(shared_text)
    strip_own(shared)
    shared[names.CLUSTER] = broker.cluster_name
    records = [
        NewRecord(
            topic,
            queue_id,
            body,
            admit_batched(shared, len(shared_text), properties),
            flag,
            sys_flag,
            header.born_timestamp,
            session.remote_host,
            broker.store_host,
            header.reconsume_times or 0,
        )
        for flag, body, properties in decode_batch(command.body)
    ]
    began = perf_counter()
    try:
        appended = broker.store.append_batch(records)
    except (StoreError, IllegalMessageError) as error:
        broker.stats.put_failed += len(records)
        raise store_refusal(error) from error
    took_s = perf_counter() - began
    if took_s >= SLOW_S:
        broker.stats.put_times.slow(took_s)
    broker.stats.put_batch(topic, [each.size for each in appended])
    broker.stats.last_send_ms = appended[-1].store_timestamp_ms
    prefix = broker.message_id_prefix
    fields = {
        "msgId": ",".join([f"{prefix}{each.physical_offset:016X}" for each in appended]),
        "queueId": str(queue_id),
        "queueOffset": str(appended[0].queue_offset),
        "MSG_REGION": broker.region,
        "TRACE_ON": broker.trace_on,
    }
    if broker.waits_for_flush and shared.get(names.WAIT, "true").lower() == "true":
        return _when_flushed(broker, fields, appended[-1].physical_offset + appended[-1].size)
    return Response(0, None, fields)


def send_back(broker: Broker, session: Session, command: Command) -> Response | Deferred:
    """36: a message that a consumer failed on comes again later, or goes to the group's dead letters."""
    header = ConsumerSendMsgBackRequestHeader.from_fields(command.fields)
    name = header.group
    group = broker.groups.find(name)
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
    record = broker.record_at(header.offset)
    if record is None or record.topic in _NEVER_CONSUMED:
        raise system_error(f"look message by offset failed, {header.offset}")
    properties = decode_properties(record.raw_properties)
    strip_own(properties)
    properties.setdefault(names.RETRY_TOPIC, record.topic)
    properties[names.WAIT] = "false"
    properties.setdefault(names.ORIGIN_MESSAGE_ID, offset_message_id(record.store_host, record.physical_offset))
    if record.reconsume_times >= _max_times(group, command, header) or header.delay_level < 0:
        topic, queue_id = names.dead_letter_topic(name), 0
        broker.topics.create_for_group(topic, 1)
        properties[names.DELAY] = "0"
        stored_topic, stored_queue_id = topic, queue_id
    else:
        level = header.delay_level or _FIRST_RETRY_LEVEL + record.reconsume_times
        properties[names.DELAY] = str(level)
        queue_id = retry_queue(group, config)
        stored_topic, stored_queue_id, properties = delay(broker, properties, topic, queue_id, level, retry=True)
    try:
        appended = broker.store.append(
            NewRecord(
                stored_topic,
                stored_queue_id,
                record.body,
                properties,
                record.flag,
                # A retry is a message of its own: nothing may take it for a half message or for the end of one.
                record.sys_flag & ~TRANSACTION_MASK,
                record.born_timestamp_ms,
                record.born_host,
                record.store_host,
                record.reconsume_times + 1,
            )
        )
    except (StoreError, IllegalMessageError) as error:
        broker.stats.put_failed += 1
        raise store_refusal(error) from error
    broker.stats.put(topic, appended.size, stored_topic, stored_queue_id)
    broker.stats.send_back(properties[names.RETRY_TOPIC], name)
    if broker.waits_for_flush:
        # The message says WAIT=false as in RocketMQ, but the consumer forgets it after this answer.
        end = appended.physical_offset + appended.size
        late = Response(ResponseCode.SYSTEM_ERROR, "FLUSH_DISK_TIMEOUT")
        return Deferred(Response(), end, broker.config.sync_flush_timeout, late)
    return Response()


def _when_flushed(broker: Broker, fields: dict[str, str], until: int) -> Deferred:
    late = Response(ResponseCode.FLUSH_DISK_TIMEOUT, None, fields)
    return Deferred(Response(0, None, fields), until, broker.config.sync_flush_timeout, late)


def too_large(broker: Broker, body_bytes: int) -> Exception:
    """13: a body above maxMessageSize."""
    return message_illegal(
        f"message body size exceeded: {body_bytes} bytes, at most maxMessageSize={broker.max_message_size} are stored"
    )
