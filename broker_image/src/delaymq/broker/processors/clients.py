"""Heartbeats, leaving, members of a group, queue locks, and the check of a subscription (34, 35, 38, 41, 42, 46)."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

from delaymq.broker.consumer_group import Client
from delaymq.broker.errors import system_error
from delaymq.broker.filters import NotNowError
from delaymq.broker.subscribed import checked_filter
from delaymq.message import names
from delaymq.protocol.bodies import CheckClient, ConsumerIds, HeartbeatData, LockRequest, LockResponse, MessageQueue
from delaymq.protocol.command import Command, Response
from delaymq.protocol.headers import GetConsumerListByGroupRequestHeader, UnregisterClientRequestHeader

if TYPE_CHECKING:
    from delaymq.broker.broker import Broker
    from delaymq.broker.session import Session

# Client ids are IP@INSTANCE@UNIT; they go into answers and files.
MAX_CLIENT_ID_LENGTH: Final = 1_024


def heartbeat(broker: Broker, session: Session, command: Command) -> Response:
    """34: who the client is and what it consumes; makes groups and their retry topics."""
    data = HeartbeatData.decode(command.body)
    if not data.client_id or len(data.client_id) > MAX_CLIENT_ID_LENGTH:
        raise system_error(f"the heartbeat's clientID must have 1 to {MAX_CLIENT_ID_LENGTH} characters")
    session.client_id = data.client_id
    client = Client(session, data.client_id, command.language, command.version, broker.now_ms())
    for consumer in data.consumer_data_set:
        group = broker.groups.find(consumer.group_name)
        if group is not None:
            retry_topic = names.retry_topic(consumer.group_name)
            if retry_topic not in broker.topics.table and names.topic_problem(retry_topic) is None:
                broker.topics.create_for_group(retry_topic, group.retry_queue_nums, unit_mode=consumer.unit_mode)
        if names.group_problem(consumer.group_name) is None:
            broker.clients.register_consumer(client, consumer)
            broker.activity.seen(consumer.group_name, client.updated_ms)
    for producer in data.producer_data_set:
        if names.group_problem(producer.group_name) is None:
            broker.clients.register_producer(client, producer.group_name)
    return Response()


def unregister_client(broker: Broker, session: Session, command: Command) -> Response:
    """35: a client leaves one of its groups."""
    header = UnregisterClientRequestHeader.from_fields(command.fields)
    broker.clients.unregister(session, header.client_id, header.producer_group, header.consumer_group)
    return Response()


def get_consumer_list_by_group(broker: Broker, session: Session, command: Command) -> Response:
    """38: client ids of a group's members, by which clients share out the queues."""
    header = GetConsumerListByGroupRequestHeader.from_fields(command.fields)
    ids = broker.clients.member_ids(header.consumer_group, broker.now_ms())
    if not ids:
        raise system_error(f"no consumer for this group, {header.consumer_group}")
    return Response(body=ConsumerIds(ids).encode())


def lock_queues(broker: Broker, session: Session, command: Command) -> Response:
    """41: takes or renews locks; answers the queues that the client holds now."""
    request = LockRequest.decode(command.body)
    wanted = [(queue.broker_name, queue.topic, queue.queue_id) for queue in request.mq_set]
    held = broker.locks.lock(request.consumer_group, request.client_id, wanted, broker.now_ms())
    queues = [MessageQueue(broker_name, queue_id, topic) for broker_name, topic, queue_id in held]
    return Response(body=LockResponse(queues).encode())


def unlock_queues(broker: Broker, session: Session, command: Command) -> Response:
    """42."""
    request = LockRequest.decode(command.body)
    held = [(queue.broker_name, queue.topic, queue.queue_id) for queue in request.mq_set]
    broker.locks.unlock(request.consumer_group, request.client_id, held)
    return Response()


def check_client_config(broker: Broker, session: Session, command: Command) -> Response:
    """46: whether a subscription can be served."""
    subscription = CheckClient.decode(command.body).subscription_data
    # A consumer that is refused here does not start: if there is no time to look now, its pulls say what is wrong.
    with suppress(NotNowError):
        checked_filter(broker, subscription.expression_type, subscription.sub_string)
    return Response()
