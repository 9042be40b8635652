"""Heartbeats, unregistration, group members, queue locks, and the check of a subscription (34, 35, 38, 41, 42, 46)."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

from delaymq.broker.filters import NotNowError
from delaymq.broker.groups.consumer_group import Client
from delaymq.broker.pull.filter_resolution import checked_filter
from delaymq.broker.requests.errors import system_error
from delaymq.broker.requests.results import Deferred
from delaymq.message import names
from delaymq.protocol.bodies import (
    CheckClient,
    ConsumerData,
    ConsumerIds,
    HeartbeatData,
    LockRequest,
    LockResponse,
    MessageQueue,
)
from delaymq.protocol.command import Command, Response
from delaymq.protocol.errors import RequestError
from delaymq.protocol.headers import GetConsumerListByGroupRequestHeader, UnregisterClientRequestHeader

if TYPE_CHECKING:
    from delaymq.broker.broker import Broker
    from delaymq.broker.requests.session import Session

MAX_CLIENT_ID_LENGTH: Final = 1_024
"""Client ids have the form IP@INSTANCE@UNIT. They appear in responses and files."""


def heartbeat(broker: Broker, session: Session, command: Command) -> Response:
    """Handle HEART_BEAT (34): register the client and its subscriptions, and create groups and their retry topics.

    A rejected heartbeat changes nothing: the client keeps its previous registration.
    """
    data = HeartbeatData.decode(command.body)
    if not data.client_id or len(data.client_id) > MAX_CLIENT_ID_LENGTH:
        raise system_error(f"the heartbeat's clientID must have 1 to {MAX_CLIENT_ID_LENGTH} characters")
    client = Client(session, data.client_id, command.language, command.version, broker.now_ms())
    consumers = [each for each in data.consumer_data_set if names.group_problem(each.group_name) is None]
    producers = [each.group_name for each in data.producer_data_set if names.group_problem(each.group_name) is None]
    try:
        broker.clients.check(client, producers, consumers)
        for consumer in consumers:
            _make_group(broker, session, command, consumer)
    except RequestError:
        broker.clients.keep_alive(session, client.updated_ms)
        raise
    session.client_id = data.client_id
    for consumer in consumers:
        broker.clients.register_consumer(client, consumer)
        broker.activity.note_activity(consumer.group_name, client.updated_ms)
    for producer in producers:
        broker.clients.register_producer(client, producer)
    return Response()


def _make_group(broker: Broker, session: Session, command: Command, consumer: ConsumerData) -> None:
    """Create the group and its retry topic if they are missing and may be created."""
    name = consumer.group_name
    group = broker.creations.find_group(session, command, name)
    retry_topic = names.retry_topic(name)
    is_there = retry_topic in broker.topics.table or broker.following is not None
    if group is None or is_there or names.topic_problem(retry_topic) is not None:
        return
    broker.creations.check(session, command)
    broker.topics.create_for_group(retry_topic, group.retry_queue_nums, unit_mode=consumer.unit_mode)
    broker.creations.made(session, command)


def unregister_client(broker: Broker, session: Session, command: Command) -> Response:
    """Handle UNREGISTER_CLIENT (35): remove a client from one of its groups."""
    header = UnregisterClientRequestHeader.from_fields(command.fields)
    broker.clients.unregister(session, header.client_id, header.producer_group, header.consumer_group)
    return Response()


def get_consumer_list_by_group(broker: Broker, session: Session, command: Command) -> Response:
    """Handle GET_CONSUMER_LIST_BY_GROUP (38): return the client ids of a group's members, for queue allocation."""
    header = GetConsumerListByGroupRequestHeader.from_fields(command.fields)
    ids = broker.clients.member_ids(header.consumer_group, broker.now_ms())
    if not ids:
        raise system_error(f"no consumer for this group, {header.consumer_group}")
    return Response(body=ConsumerIds(ids).encode())


def lock_queues(broker: Broker, session: Session, command: Command) -> Response | Deferred:
    """Handle LOCK_BATCH_MQ (41): acquire or renew locks; return the queues that the client now holds."""
    request = LockRequest.decode(command.body)
    if len(request.consumer_group) > names.MAX_GROUP_LENGTH or len(request.client_id) > MAX_CLIENT_ID_LENGTH:
        raise system_error(
            f"consumerGroup and clientId of a lock must have at most {names.MAX_GROUP_LENGTH} and"
            f" {MAX_CLIENT_ID_LENGTH} characters"
        )
    if any(max(len(queue.topic), len(queue.broker_name)) > names.MAX_GROUP_LENGTH for queue in request.mq_set):
        raise system_error(f"a queue's topic and brokerName must have at most {names.MAX_GROUP_LENGTH} characters")
    wanted = [(queue.broker_name, queue.topic, queue.queue_id) for queue in request.mq_set]
    held = broker.locks.lock(request.consumer_group, request.client_id, wanted, broker.now_ms())
    queues = [MessageQueue(broker_name, queue_id, topic) for broker_name, topic, queue_id in held]
    # A client that would not be the holder after a promotion must not begin to consume.
    nothing = Response(body=LockResponse([]).encode())
    return broker.when_replicas_know(Response(body=LockResponse(queues).encode()), nothing)


def unlock_queues(broker: Broker, session: Session, command: Command) -> Response:
    """Handle UNLOCK_BATCH_MQ (42): release locks."""
    request = LockRequest.decode(command.body)
    held = [(queue.broker_name, queue.topic, queue.queue_id) for queue in request.mq_set]
    broker.locks.unlock(request.consumer_group, request.client_id, held)
    return Response()


def check_client_config(broker: Broker, session: Session, command: Command) -> Response:
    """Handle CHECK_CLIENT_CONFIG (46): check whether a subscription can be served."""
    subscription = CheckClient.decode(command.body).subscription_data
    # A consumer that is rejected here does not start. If there is no time to compile the expression now, its pulls will
    # report an error.
    with suppress(NotNowError):
        checked_filter(broker, subscription.expression_type, subscription.sub_string, session.id)
    return Response()
