"""Sends (10, 310, 320). The single send is the broker's hottest path: keep it lean."""

from __future__ import annotations

from collections.abc import Generator
from random import randrange
from time import perf_counter
from typing import TYPE_CHECKING, Final

from delaymq.broker.delivery.delay_rewrite import KeyPendingError
from delaymq.broker.delivery.timed.requests import recall_handle
from delaymq.broker.processors.accounts import account_of
from delaymq.broker.processors.batched import BATCHED_AT_ONCE, Batch
from delaymq.broker.processors.delay_changes import change_by_message, change_in_unknown_topic
from delaymq.broker.processors.retries import own_retry, without_transaction
from delaymq.broker.quotas.names import CREATED_TOPICS
from delaymq.broker.requests.errors import (
    message_illegal,
    no_permission,
    store_refusal,
    system_error,
    unavailable,
)
from delaymq.broker.requests.results import Deferred, TimeSliced
from delaymq.broker.sending.admission import (
    ActionRequestedError,
    admit,
    check_copies,
    check_limits,
    requested_change,
)
from delaymq.broker.statistics.put_times import SLOW_S
from delaymq.broker.topics import WRITE
from delaymq.message import names
from delaymq.message.errors import IllegalMessageError
from delaymq.message.flags import MULTI_TAGS, TRANSACTION_MASK
from delaymq.protocol.batch import read_batch
from delaymq.protocol.bodies import TopicConfig
from delaymq.protocol.command import Command, Response
from delaymq.protocol.headers import SendMessageRequestHeader, SendMessageRequestHeaderV2
from delaymq.store.errors import StoreError
from delaymq.store.model import NewRecord

if TYPE_CHECKING:
    from delaymq.broker.broker import Broker
    from delaymq.broker.requests.session import Session
    from delaymq.schedule.timeline import Pending

_closed_topics: Final = names.CLOSED_TO_CLIENTS
_new = tuple.__new__


def send_message(broker: Broker, session: Session, command: Command) -> Response | Deferred | TimeSliced:
    """Handle SEND_MESSAGE (10), whose header has long names."""
    header = SendMessageRequestHeader.from_fields(command.fields)
    return _send_batch(broker, session, command, header) if header.batch else send_one(broker, session, command, header)


def send_message_v2(broker: Broker, session: Session, command: Command) -> Response | Deferred | TimeSliced:
    """Handle SEND_MESSAGE_V2 (310), whose header has one-letter names. Clients use this code."""
    header = SendMessageRequestHeaderV2.from_fields(command.fields)
    return _send_batch(broker, session, command, header) if header.batch else send_one(broker, session, command, header)


def send_batch_message(broker: Broker, session: Session, command: Command) -> Response | Deferred | TimeSliced:
    """Handle SEND_BATCH_MESSAGE (320): many messages of one topic."""
    return _send_batch(broker, session, command, SendMessageRequestHeaderV2.from_fields(command.fields))


def send_one(
    broker: Broker, session: Session, command: Command, header: SendMessageRequestHeader
) -> Response | Deferred:
    """Store the message in the body of `command`. Raises RequestError if it is rejected."""
    body = command.body
    if len(body) > broker.max_message_size:
        raise too_large(broker, len(body))
    if header.topic not in broker.topics.table and (asked := requested_change(header.topic, header.properties or "")):
        return change_in_unknown_topic(broker, session, command, header.topic, asked)
    config, topic, queue_id = place(broker, session, command, header)
    answered_queue_id = queue_id
    dead_letter = is_retry = False
    reconsume_times = header.reconsume_times or 0
    if topic.startswith(names.RETRY_PREFIX):
        is_retry = True
        topic, queue_id, dead_letter = own_retry(broker, session, command, header, topic, queue_id)
        if reconsume_times:
            header.properties = without_transaction(header.properties)
            header.sys_flag &= ~TRANSACTION_MASK
    sys_flag = header.sys_flag
    if config.topic_filter_type == "MULTI_TAG":
        sys_flag |= MULTI_TAGS
    account = account_of(broker, command)
    try:
        stored_topic, stored_queue_id, properties, waits, statement = admit(
            broker, topic, queue_id, header.properties or "", dead_letter, account
        )
    except ActionRequestedError as action:
        return change_by_message(broker, session, command, topic, action.properties)
    except KeyPendingError as error:
        return _kept(broker, topic, answered_queue_id, error.pending)
    if sys_flag & TRANSACTION_MASK:
        if stored_topic != names.HALF_TOPIC:
            raise no_permission("the sys flag marks the message as transactional: send it with property TRAN_MSG=true")
        sys_flag &= ~TRANSACTION_MASK
    fields = (
        stored_topic, stored_queue_id, body, properties, header.flag, sys_flag, header.born_timestamp,
        session.remote_host, broker.store_host, reconsume_times, 0, False, statement, None, None, False,
    )  # fmt: skip
    record = _new(NewRecord, fields)  # faster than NewRecord(…)
    if stored_topic is not topic and not is_retry:
        check_limits(broker, record, topic, account)
    began = perf_counter()
    try:
        if stored_topic is not topic:
            check_copies(broker, record, topic)
        appended = broker.store.append(record)
    except (StoreError, IllegalMessageError) as error:
        broker.stats.put_failed += 1
        raise store_refusal(error) from error
    took_s = perf_counter() - began
    if took_s >= SLOW_S:
        broker.stats.put_times.slow(took_s)
    offset = appended.physical_offset
    broker.stats.put(topic, appended.size, stored_topic, stored_queue_id)
    broker.stats.last_send_ms = appended.store_timestamp_ms
    answer = {
        "msgId": f"{broker.message_id_prefix}{offset:016X}",
        "queueId": str(answered_queue_id),
        "queueOffset": str(appended.queue_offset),
        "MSG_REGION": broker.region,
        "TRACE_ON": broker.trace_on,
    }
    if statement is not None and (unique_key := properties.get(names.UNIQUE_KEY)):
        answer["recallHandle"] = recall_handle(topic, broker.config.broker_name, appended.tags_code, unique_key)
    if broker.answers_wait and (waits or is_retry):
        # Ignore the WAIT=false of an earlier retry: the consumer discards the original after this response.
        return _when_confirmed(broker, answer, offset + appended.size)
    return Response(0, None, answer)


def _kept(broker: Broker, topic: str, queue_id: int, pending: Pending) -> Response | Deferred:
    """Return the response to a message that is not stored because one with its DELAY_KEY is pending."""
    record = broker.store.record_at(pending.record)
    answer = {
        "msgId": f"{broker.message_id_prefix}{pending.record:016X}",
        "queueId": str(queue_id),
        "queueOffset": str(record.queue_offset if record is not None else 0),
        "MSG_REGION": broker.region,
        "TRACE_ON": broker.trace_on,
        "delayKept": "true",
    }
    unique_key = record.properties.get(names.UNIQUE_KEY) if record is not None else None
    if unique_key:
        answer["recallHandle"] = recall_handle(topic, broker.config.broker_name, pending.due_ms, unique_key)
    if broker.answers_wait:
        return _when_confirmed(broker, answer, pending.record + pending.size)
    return Response(0, None, answer)


def place(
    broker: Broker, session: Session, command: Command, header: SendMessageRequestHeader
) -> tuple[TopicConfig, str, int]:
    """Return the topic's configuration, its name and the target queue, checked in RocketMQ's order."""
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
        broker.creations.check(session, command, CREATED_TOPICS)
        config = broker.topics.create_for_send(
            topic, header.default_topic, header.default_topic_queue_nums, unit_mode=bool(header.unit_mode)
        )
        broker.creations.made(session, command, CREATED_TOPICS)
    queue_id = header.queue_id
    if queue_id < 0:
        queue_id = randrange(max(config.write_queue_nums, 1))
    elif queue_id >= config.write_queue_nums and queue_id >= config.read_queue_nums:
        raise system_error(
            f"request queueId[{queue_id}] is illegal, topic[{topic}] has {config.write_queue_nums} write and "
            f"{config.read_queue_nums} read queues. Producer: {session.remote_address}"
        )
    return config, topic, queue_id


def _send_batch(
    broker: Broker, session: Session, command: Command, header: SendMessageRequestHeader
) -> Response | Deferred | TimeSliced:
    if len(command.body) > broker.max_message_size:
        raise too_large(broker, len(command.body))
    config, topic, queue_id = place(broker, session, command, header)
    if topic.startswith(names.RETRY_PREFIX):
        raise message_illegal(f"batch request does not support retry group {topic}: send its messages individually")
    sys_flag = header.sys_flag
    if sys_flag & TRANSACTION_MASK:
        raise message_illegal("a batch cannot be a transaction: send its messages individually")
    if config.topic_filter_type == "MULTI_TAG":
        sys_flag |= MULTI_TAGS
    batch = Batch(broker, session, header, topic, queue_id, sys_flag, account_of(broker, command))
    if batch.store_encoded(command.body):
        return _answer_of(broker, batch)
    messages, at = read_batch(command.body, 0, BATCHED_AT_ONCE)
    if at < len(command.body):
        return TimeSliced(_stored_in_slices(broker, batch, command.body))
    batch.store(batch.records(messages))
    return _answer_of(broker, batch)


def _stored_in_slices(broker: Broker, batch: Batch, body: bytes) -> Generator[None, None, Response | Deferred]:
    yield from batch.store_in_slices(body)
    return _answer_of(broker, batch)


def _answer_of(broker: Broker, batch: Batch) -> Response | Deferred:
    fields = batch.answer_fields()
    return _when_confirmed(broker, fields, batch.end) if batch.waits else Response(0, None, fields)


def _when_confirmed(broker: Broker, fields: dict[str, str], until: int) -> Deferred:
    return broker.deferred(Response(0, None, fields), until, lambda code: Response(code, None, fields))


def too_large(broker: Broker, body_bytes: int) -> Exception:
    """Return error 13 for a body larger than maxMessageSize."""
    return message_illegal(
        f"message body of {body_bytes} bytes exceeds maxMessageSize={broker.max_message_size}: send a smaller message"
    )
