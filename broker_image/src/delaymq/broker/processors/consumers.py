"""Connections and progress of groups, as operators ask for them (203, 204, 208, 300, 303, 317, 328)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from delaymq.broker.consumer_group import Client
from delaymq.broker.errors import system_error, topic_missing
from delaymq.protocol.bodies import (
    Connection,
    ConsumeOffset,
    ConsumerConnection,
    ConsumeStats,
    ConsumeStatsList,
    GroupList,
    MessageQueue,
    ProducerConnection,
    ProducerInfo,
    ProducerTable,
    QueueTimeSpan,
    TimeSpans,
    TopicConfig,
)
from delaymq.protocol.codes import ResponseCode
from delaymq.protocol.command import Command, Response
from delaymq.protocol.errors import RequestError
from delaymq.protocol.headers import (
    GetConsumerConnectionListRequestHeader,
    GetConsumeStatsInBrokerHeader,
    GetConsumeStatsRequestHeader,
    GetProducerConnectionListRequestHeader,
    QueryConsumeTimeSpanRequestHeader,
    QueryTopicConsumeByWhoRequestHeader,
)

if TYPE_CHECKING:
    from delaymq.broker.broker import Broker
    from delaymq.broker.session import Session


def get_consumer_connections(broker: Broker, session: Session, command: Command) -> Response:
    """203: members of a consumer group and what it subscribes."""
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
    """204: members of a producer group."""
    name = GetProducerConnectionListRequestHeader.from_fields(command.fields).producer_group
    members = broker.clients.producers.get(name)
    if not members:
        raise system_error(f"the producer group[{name}] not exist")
    return Response(body=ProducerConnection([_connection(client) for client in members.values()]).encode())


def get_all_producers(broker: Broker, session: Session, command: Command) -> Response:
    """328: all producer groups with their members."""
    table = {
        group: [
            ProducerInfo(
                client.client_id,
                client.session.remote_address.rpartition(":")[0],
                client.language,
                client.version,
                client.updated_ms,
            )
            for client in members.values()
        ]
        for group, members in broker.clients.producers.items()
    }
    return Response(body=ProducerTable(table).encode())


def get_consume_stats(broker: Broker, session: Session, command: Command) -> Response:
    """208: how far a group is, in one topic or in all in which it has offsets."""
    header = GetConsumeStatsRequestHeader.from_fields(command.fields)
    group = header.consumer_group
    topics = [header.topic] if header.topic else broker.offsets.topics_of(group)
    stats = ConsumeStats()
    for name in topics:
        topic = broker.topics.get(name)
        if topic is not None and broker.clients.consumes(group, name):
            _add_progress(broker, stats, topic, group)
            stats.consume_tps += broker.stats.by_key.consume_tps(name, group, broker.now_ms())
    return Response(body=stats.encode())


def get_broker_consume_stats(broker: Broker, session: Session, command: Command) -> Response:
    """317: the progress of all groups."""
    is_order = GetConsumeStatsInBrokerHeader.from_fields(command.fields).is_order
    answer = ConsumeStatsList(broker.address)
    for group in list(broker.groups.table):
        listed = []
        for name in broker.offsets.topics_of(group):
            topic = broker.topics.get(name)
            if topic is None or (is_order and not topic.order) or not broker.clients.consumes(group, name):
                continue
            stats = ConsumeStats()
            answer.total_diff += _add_progress(broker, stats, topic, group)
            stats.consume_tps = broker.stats.by_key.consume_tps(name, group, broker.now_ms())
            listed.append(stats)
        answer.consume_stats_list.append({group: listed})
    return Response(body=answer.encode())


def _add_progress(broker: Broker, stats: ConsumeStats, topic: TopicConfig, group: str) -> int:
    """Adds the queues of a topic; returns how many messages the group has before it."""
    behind = 0
    for queue_id in range(topic.read_queue_nums):
        high = max(broker.store.queue_bounds(topic.topic_name, queue_id)[1], 0)
        offset = max(broker.offsets.get(topic.topic_name, group, queue_id) or 0, 0)
        last_ms = broker.store.store_time_of(topic.topic_name, queue_id, offset - 1) if offset else None
        queue = MessageQueue(broker.config.broker_name, queue_id, topic.topic_name)
        stats.offset_table[queue] = ConsumeOffset(high, offset, last_ms or 0)
        behind += high - offset
    return behind


def query_topic_consumers(broker: Broker, session: Session, command: Command) -> Response:
    """300: groups that subscribe a topic or have offsets in it."""
    topic = QueryTopicConsumeByWhoRequestHeader.from_fields(command.fields).topic
    groups = {*broker.clients.groups_of_topic(topic), *broker.offsets.groups_of(topic)}
    return Response(body=GroupList(sorted(groups)).encode())


def query_consume_time_span(broker: Broker, session: Session, command: Command) -> Response:
    """303: store times between which a group has consumed."""
    header = QueryConsumeTimeSpanRequestHeader.from_fields(command.fields)
    topic = broker.topics.get(header.topic)
    if topic is None:
        raise topic_missing(header.topic)
    spans = [_time_span(broker, topic, queue_id, header.group) for queue_id in range(topic.write_queue_nums)]
    return Response(body=TimeSpans(spans).encode())


def _time_span(broker: Broker, topic: TopicConfig, queue_id: int, group: str) -> QueueTimeSpan:
    store, name = broker.store, topic.topic_name
    low, high = store.queue_bounds(name, queue_id)
    oldest_ms = store.store_time_of(name, queue_id, low)
    newest_ms = store.store_time_of(name, queue_id, high - 1) if high else None
    offset = broker.offsets.get(name, group, queue_id)
    consumed_ms = store.store_time_of(name, queue_id, offset - 1) if offset else None
    if consumed_ms is None:
        consumed_ms = oldest_ms
    waiting_ms = store.store_time_of(name, queue_id, offset or 0) if (offset or 0) < high else None
    return QueueTimeSpan(
        MessageQueue(broker.config.broker_name, queue_id, name),
        -1 if oldest_ms is None else oldest_ms,
        -1 if newest_ms is None else newest_ms,
        -1 if consumed_ms is None else consumed_ms,
        0 if waiting_ms is None else max(broker.now_ms() - waiting_ms, 0),
    )


def _connection(client: Client) -> Connection:
    return Connection(client.client_id, client.session.remote_address, client.language, client.version)
