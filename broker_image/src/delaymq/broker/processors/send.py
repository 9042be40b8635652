"""Sends (10, 310, 320). The single send is the hot path of the whole broker: keep it lean."""

from __future__ import annotations

from collections.abc import Generator
from random import randrange
from time import perf_counter
from typing import TYPE_CHECKING, Final

from delaymq.broker.delivery.ingress import strip_own
from delaymq.broker.errors import (
    message_illegal,
    no_permission,
    store_refusal,
    system_error,
    topic_missing,
    unavailable,
)
from delaymq.broker.ingress import admit, admit_batched, check_copies
from delaymq.broker.processors.retries import own_retry, without_transaction
from delaymq.broker.results import Deferred, InTurns
from delaymq.broker.statistics.put_times import SLOW_S
from delaymq.broker.topics import WRITE
from delaymq.message import names
from delaymq.message.errors import IllegalMessageError
from delaymq.message.flags import MULTI_TAGS, TRANSACTION_MASK
from delaymq.message.properties import parse_properties
from delaymq.protocol.batch import BatchMessage, read_batch
from delaymq.protocol.bodies import TopicConfig
from delaymq.protocol.codes import ResponseCode
from delaymq.protocol.command import MAX_HEADER_BYTES, Command, Response
from delaymq.protocol.headers import SendMessageRequestHeader, SendMessageRequestHeaderV2
from delaymq.store.errors import StoreError
from delaymq.store.model import NewRecord

if TYPE_CHECKING:
    from delaymq.broker.broker import Broker
    from delaymq.broker.session import Session

BATCHED_AT_ONCE: Final = 128
"""Messages of a batch that are stored in one turn of the loop: some 2 ms. The others follow in turns of their own."""
MAX_BATCHED: Final = 31_650
"""Messages of a batch: the answer names each by an id of 33 characters, and clients take headers of 1 MiB."""
_OTHER_FIELDS_BYTES: Final = 4_096
_closed_topics: Final = names.CLOSED_TO_CLIENTS


def send_message(broker: Broker, session: Session, command: Command) -> Response | Deferred | InTurns:
    """10: the header with long names."""
    header = SendMessageRequestHeader.from_fields(command.fields)
    return _send_batch(broker, session, command, header) if header.batch else _send(broker, session, command, header)


def send_message_v2(broker: Broker, session: Session, command: Command) -> Response | Deferred | InTurns:
    """310: the header with one-letter names, which clients use."""
    header = SendMessageRequestHeaderV2.from_fields(command.fields)
    return _send_batch(broker, session, command, header) if header.batch else _send(broker, session, command, header)


def send_batch_message(broker: Broker, session: Session, command: Command) -> Response | Deferred | InTurns:
    """320: many messages of one topic."""
    return _send_batch(broker, session, command, SendMessageRequestHeaderV2.from_fields(command.fields))


def _send(broker: Broker, session: Session, command: Command, header: SendMessageRequestHeader) -> Response | Deferred:
    body = command.body
    if len(body) > broker.max_message_size:
        raise too_large(broker, len(body))
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
    stored_topic, stored_queue_id, properties, waits = admit(
        broker, topic, queue_id, header.properties or "", dead_letter
    )
    if sys_flag & TRANSACTION_MASK:
        if stored_topic != names.HALF_TOPIC:
            raise no_permission("the sys flag says that this is a transaction: send it with property TRAN_MSG=true")
        sys_flag &= ~TRANSACTION_MASK
    record = NewRecord(
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


def place(
    broker: Broker, session: Session, command: Command, header: SendMessageRequestHeader
) -> tuple[TopicConfig, str, int]:
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
        broker.creations.check(session, command)
        config = broker.topics.create_for_send(
            topic, header.default_topic, header.default_topic_queue_nums, unit_mode=bool(header.unit_mode)
        )
        broker.creations.made(session, command)
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
) -> Response | Deferred | InTurns:
    if len(command.body) > broker.max_message_size:
        raise too_large(broker, len(command.body))
    config, topic, queue_id = place(broker, session, command, header)
    if topic.startswith(names.RETRY_PREFIX):
        raise message_illegal(f"batch request does not support retry group {topic}: send its messages one by one")
    sys_flag = header.sys_flag
    if sys_flag & TRANSACTION_MASK:
        raise message_illegal("a batch cannot be a transaction: send its messages one by one")
    if config.topic_filter_type == "MULTI_TAG":
        sys_flag |= MULTI_TAGS
    batch = _Batch(broker, session, header, topic, queue_id, sys_flag)
    messages, at = read_batch(command.body, 0, BATCHED_AT_ONCE)
    if at < len(command.body):
        return InTurns(_stored_in_turns(batch, command.body))
    batch.store(batch.records(messages))
    return batch.answer()


class _Batch:
    """A batch on its way into the store."""

    def __init__(
        self,
        broker: Broker,
        session: Session,
        header: SendMessageRequestHeader,
        topic: str,
        queue_id: int,
        sys_flag: int,
    ) -> None:
        self.broker = broker
        self._host = session.remote_host
        self._header = header
        self.topic = topic
        self._queue_id = queue_id
        self._sys_flag = sys_flag
        self._shared_characters = len(header.properties or "")
        self._shared = parse_properties(header.properties or "")
        strip_own(self._shared)
        self._shared[names.CLUSTER] = broker.cluster_name
        self._ids: list[str] = []
        self._first_offset = 0
        self._end = 0

    def records(self, messages: list[BatchMessage]) -> list[NewRecord]:
        """What is stored of some of its messages; RequestError for those that may not be in a batch."""
        header, shared, characters = self._header, self._shared, self._shared_characters
        return [
            NewRecord(
                self.topic,
                self._queue_id,
                body,
                admit_batched(shared, characters, properties),
                flag,
                self._sys_flag,
                header.born_timestamp,
                self._host,
                self.broker.store_host,
                header.reconsume_times or 0,
            )
            for flag, body, properties in messages
        ]

    def check(self, messages: list[BatchMessage]) -> int:
        """Bytes that some of its messages will take in the log; RequestError for those that cannot be stored."""
        try:
            return self.broker.store.check_batch(self.records(messages))
        except (StoreError, IllegalMessageError) as error:
            self.broker.stats.put_failed += 1
            raise store_refusal(error) from error

    def store(self, records: list[NewRecord], room: int = 0) -> None:
        """Stores the next ones, all or none; before the first of several parts with `room` for all of them."""
        broker = self.broker
        began = perf_counter()
        try:
            if room:
                broker.store.make_room(room)
            appended = broker.store.append_batch(records)
        except (StoreError, IllegalMessageError) as error:
            broker.stats.put_failed += len(records)
            raise store_refusal(error) from error
        took_s = perf_counter() - began
        if took_s >= SLOW_S:
            broker.stats.put_times.slow(took_s)
        broker.stats.put_batch(self.topic, [each.size for each in appended])
        last = appended[-1]
        broker.stats.last_send_ms = last.store_timestamp_ms
        if not self._ids:
            self._first_offset = appended[0].queue_offset
        prefix = broker.message_id_prefix
        self._ids.append(",".join([f"{prefix}{each.physical_offset:016X}" for each in appended]))
        self._end = last.physical_offset + last.size

    def answer(self) -> Response | Deferred:
        """All of it is stored."""
        broker = self.broker
        fields = {
            "msgId": ",".join(self._ids),
            "queueId": str(self._queue_id),
            "queueOffset": str(self._first_offset),
            "MSG_REGION": broker.region,
            "TRACE_ON": broker.trace_on,
        }
        if broker.waits_for_flush and self._shared.get(names.WAIT, "true").lower() == "true":
            return _when_flushed(broker, fields, self._end)
        return Response(0, None, fields)


def _stored_in_turns(batch: _Batch, body: bytes) -> Generator[None, None, Response | Deferred]:
    """Stores a batch of many messages, some in each step; nothing before all of them are known to be sound."""
    room = count = at = 0
    most = most_batched(batch.broker)
    while at < len(body):
        messages, at = read_batch(body, at, BATCHED_AT_ONCE, count)
        count += len(messages)
        if count > most:
            raise message_illegal(f"the batch has more than {most} messages: send smaller batches")
        room += batch.check(messages)
        yield
    at = 0
    while at < len(body):
        messages, at = read_batch(body, at, BATCHED_AT_ONCE)
        if batch.topic not in batch.broker.topics.table:
            raise topic_missing(batch.topic)
        batch.store(batch.records(messages), room)
        room = 0
        yield
    return batch.answer()


def most_batched(broker: Broker) -> int:
    """Messages of a batch whose ids fit the header of its answer."""
    return min(MAX_BATCHED, (MAX_HEADER_BYTES - _OTHER_FIELDS_BYTES) // (len(broker.message_id_prefix) + 16 + 1))


def _when_flushed(broker: Broker, fields: dict[str, str], until: int) -> Deferred:
    late = Response(ResponseCode.FLUSH_DISK_TIMEOUT, None, fields)
    return Deferred(Response(0, None, fields), until, broker.config.sync_flush_timeout, late)


def too_large(broker: Broker, body_bytes: int) -> Exception:
    """13: a body above maxMessageSize."""
    return message_illegal(
        f"message body size exceeded: {body_bytes} bytes, at most maxMessageSize={broker.max_message_size} are stored"
    )
