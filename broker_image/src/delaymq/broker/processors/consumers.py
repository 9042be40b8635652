"""Connections of groups, for administrators (203, 204, 300, 328)."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Generator
from typing import TYPE_CHECKING, Final

from delaymq.broker.groups.consumer_group import Client
from delaymq.broker.processors.accounts import view_of, visible_clients
from delaymq.broker.requests.errors import system_error
from delaymq.broker.requests.results import TimeSliced, first_step
from delaymq.protocol.bodies import (
    Connection,
    ConsumerConnection,
    GroupList,
    ProducerConnection,
    ProducerInfo,
    ProducerTable,
)
from delaymq.protocol.codes import ResponseCode
from delaymq.protocol.command import Command, Response
from delaymq.protocol.errors import RequestError
from delaymq.protocol.headers import (
    GetConsumerConnectionListRequestHeader,
    GetProducerConnectionListRequestHeader,
    QueryTopicConsumeByWhoRequestHeader,
)

if TYPE_CHECKING:
    from delaymq.access.views import View
    from delaymq.broker.broker import Broker
    from delaymq.broker.requests.session import Session

SORTED_AT_ONCE: Final = 1_000
"""Number of group names that are sorted in one step."""


def get_consumer_connections(broker: Broker, session: Session, command: Command) -> Response:
    """Handle GET_CONSUMER_CONNECTION_LIST (203): return the members of a consumer group and its subscriptions."""
    name = GetConsumerConnectionListRequestHeader.from_fields(command.fields).consumer_group
    group = broker.clients.consumers.get(name)
    if group is None:
        raise RequestError(ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer group[{name}] not online")
    body = ConsumerConnection(
        [_connection(client) for client in group.members.values()],
        dict(group.subscriptions),
        group.consume_type,
        group.message_model,
        group.consume_from_where,
    )
    return Response(body=body.encode())


def get_producer_connections(broker: Broker, session: Session, command: Command) -> Response:
    """Handle GET_PRODUCER_CONNECTION_LIST (204): return the members of a producer group."""
    name = GetProducerConnectionListRequestHeader.from_fields(command.fields).producer_group
    known = broker.clients.producers.get(name, {})
    members = visible_clients(broker, view_of(broker, session, command), known.values())
    if not members:
        raise system_error(f"the producer group[{name}] not exist")
    return Response(body=ProducerConnection([_connection(client) for client in members]).encode())


def get_all_producers(broker: Broker, session: Session, command: Command) -> Response:
    """Handle GET_ALL_PRODUCER_INFO (328): return all producer groups with their members."""
    view = view_of(broker, session, command)
    table = {}
    for group, known in broker.clients.producers.items():
        members = visible_clients(broker, view, known.values())
        if members or view is None:
            table[group] = [
                ProducerInfo(
                    client.client_id,
                    client.session.remote_address.rpartition(":")[0],
                    client.language,
                    client.version,
                    client.updated_ms,
                )
                for client in members
            ]
    return Response(body=ProducerTable(table).encode())


def query_topic_consumers(broker: Broker, session: Session, command: Command) -> Response | TimeSliced:
    """Handle QUERY_TOPIC_CONSUME_BY_WHO (300): return the groups that subscribe to a topic or have offsets in it."""
    topic = QueryTopicConsumeByWhoRequestHeader.from_fields(command.fields).topic
    return first_step(_topic_consumers(broker, topic, view_of(broker, session, command)))


def _topic_consumers(broker: Broker, topic: str, view: View | None) -> Generator[None, None, Response]:
    subscribed = set(broker.clients.groups_of_topic(topic))
    groups = yield from broker.offsets.group_steps(topic)
    if view is not None:
        subscribed = {group for group in subscribed if view.shows_group(group)}
        groups = [group for group in groups if view.shows_group(group)]
    if len(groups) <= SORTED_AT_ONCE:
        return Response(body=GroupList(sorted(subscribed.union(groups))).encode())
    runs = [sorted(subscribed)]
    for first in range(0, len(groups), SORTED_AT_ONCE):
        runs.append(sorted(name for name in groups[first : first + SORTED_AT_ONCE] if name not in subscribed))
        yield
    ordered: list[str] = []
    merged = heapq.merge(*runs)
    while part := list(itertools.islice(merged, SORTED_AT_ONCE)):
        ordered += part
        yield
    return Response(body=GroupList(ordered).encode())


def _connection(client: Client) -> Connection:
    return Connection(client.client_id, client.session.remote_address, client.language, client.version)
