"""Administration of topics, groups, statistics, configuration and cleanup."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from delaymq.blocking_steps import BlockingSteps
from delaymq.broker.admin.config_export import exported_settings, settings_for_clients
from delaymq.broker.admin.runtime_info import runtime_info
from delaymq.broker.processors.accounts import view_of
from delaymq.broker.requests.errors import no_permission, system_error, topic_missing
from delaymq.broker.requests.results import Deferred
from delaymq.broker.topics import checked_topic
from delaymq.config import ConfigError
from delaymq.config.running import ForbiddenKeyError
from delaymq.protocol.bodies import (
    DataVersion,
    GroupTable,
    KVTable,
    SubscriptionGroupConfig,
    TopicConfig,
    TopicList,
    TopicTable,
    decode_settings,
)
from delaymq.protocol.command import Command, Response
from delaymq.protocol.headers import (
    CreateTopicRequestHeader,
    DeleteSubscriptionGroupRequestHeader,
    DeleteTopicRequestHeader,
    GetTopicConfigRequestHeader,
)
from delaymq.throttled_log import fields

if TYPE_CHECKING:
    from delaymq.broker.broker import Broker
    from delaymq.broker.requests.session import Session

MAX_DELETED_TOPICS: Final = 100_000
"""Each deleted topic stays in delaymq/deleted_topics.json while the commit log may contain its messages."""
_NO_VERSION: Final = DataVersion(0, 0)
"""Stated to accounts that do not see everything, since the version counts the changes of all."""
_logger = logging.getLogger(__name__)


def update_and_create_topic(broker: Broker, session: Session, command: Command) -> Response | Deferred:
    """Handle UPDATE_AND_CREATE_TOPIC (17): create or change a topic; durable before the response is sent."""
    header = CreateTopicRequestHeader.from_fields(command.fields)
    topic = checked_topic(
        TopicConfig(
            header.topic,
            header.read_queue_nums,
            header.write_queue_nums,
            header.perm,
            header.topic_filter_type,
            header.topic_sys_flag or 0,
        )
    )
    _refuse_system_topic(broker, header.topic)
    known = broker.topics.get(header.topic)
    if known is None:
        broker.topics.check_room()
    topic.order = known.order if known is not None else False
    broker.topics.put(topic)
    _write_through(broker)
    return broker.when_replicas_know(Response())


def delete_topic(broker: Broker, session: Session, command: Command) -> Response | Deferred:
    """Handle DELETE_TOPIC_IN_BROKER (215): delete a topic and its queues.

    Its messages stay in the commit log until they expire. Its delay settings stay while messages for it are pending.
    """
    topic = DeleteTopicRequestHeader.from_fields(command.fields).topic
    if not topic or topic.isspace():
        raise system_error("The specified topic is blank.")
    _refuse_system_topic(broker, topic)
    if len(broker.store.deleted_topics) >= MAX_DELETED_TOPICS and topic not in broker.store.deleted_topics:
        raise system_error(
            f"{MAX_DELETED_TOPICS} deleted topics still have messages in the log: wait until the log's oldest segments"
            " are deleted (fileReservedTime)"
        )
    broker.topics.remove(topic)
    broker.store.delete_topic(topic)
    broker.forget_counts(topic)
    broker.delay_settings.topic_deleted(topic, is_settled=broker.delivery.pending_of_topic(topic) == 0)
    _write_through(broker)
    return broker.when_replicas_know(Response())


def _write_through(broker: Broker) -> None:
    """Write the changed topics and groups before the administrator receives the response."""
    error = broker.persist_definitions()
    if error is not None:
        raise system_error(
            f"the change is in effect but could not be written ({error.strerror}): repair the disk and repeat the"
            " request"
        )


def _refuse_system_topic(broker: Broker, topic: str) -> None:
    if broker.topics.is_system(topic):
        raise system_error(f"The topic[{topic}] is conflict with system topic.")


def get_all_topic_config(broker: Broker, session: Session, command: Command) -> Response:
    """Handle GET_ALL_TOPIC_CONFIG (21): return topics.json, or the part of it that the account may see."""
    view = view_of(broker, session, command)
    if view is None:
        return Response(body=broker.topics.encode())
    table = broker.topics.table
    return Response(body=TopicTable(_NO_VERSION, {name: table[name] for name in view.topics(table, table)}).encode())


def get_topic_config(broker: Broker, session: Session, command: Command) -> Response:
    """Handle GET_TOPIC_CONFIG (351): return one topic.

    The response does not have the queue mapping that the static topics of RocketMQ 5 have.
    """
    name = GetTopicConfigRequestHeader.from_fields(command.fields).topic
    topic = broker.topics.get(name)
    if topic is None:
        raise topic_missing(name)
    return Response(body=topic.encode())


def get_system_topics(broker: Broker, session: Session, command: Command) -> Response:
    """Handle GET_SYSTEM_TOPIC_LIST_FROM_BROKER (305): return the system topics."""
    return Response(body=TopicList(sorted(broker.topics.system)).encode())


def update_and_create_group(broker: Broker, session: Session, command: Command) -> Response | Deferred:
    """Handle UPDATE_AND_CREATE_SUBSCRIPTIONGROUP (200): create or change a group.

    The change is durable before the response is sent.
    """
    broker.groups.put(SubscriptionGroupConfig.decode(command.body))
    _write_through(broker)
    return broker.when_replicas_know(Response())


def get_all_groups(broker: Broker, session: Session, command: Command) -> Response:
    """Handle GET_ALL_SUBSCRIPTIONGROUP_CONFIG (201): return subscriptionGroup.json, or the visible part of it."""
    view = view_of(broker, session, command)
    if view is None:
        return Response(body=broker.groups.encode())
    visible = {name: group for name, group in broker.groups.table.items() if view.shows_group(name)}
    return Response(body=GroupTable(_NO_VERSION, visible).encode())


def delete_group(broker: Broker, session: Session, command: Command) -> Response | Deferred:
    """Handle DELETE_SUBSCRIPTIONGROUP (207): delete a group, and its offsets if the request has `removeOffset`."""
    header = DeleteSubscriptionGroupRequestHeader.from_fields(command.fields)
    broker.groups.remove(header.group_name)
    if header.remove_offset:
        broker.offsets.remove_group(header.group_name)
    broker.stats.by_key.forget_group(header.group_name)
    broker.group_series.forget(header.group_name)
    _write_through(broker)
    return broker.when_replicas_know(Response(), offsets=True)


def get_runtime_info(broker: Broker, session: Session, command: Command) -> Response:
    """Handle GET_BROKER_RUNTIME_INFO (28): return figures of the running broker."""
    return Response(body=KVTable(runtime_info(broker)).encode())


def get_broker_config(broker: Broker, session: Session, command: Command) -> Response:
    """Handle GET_BROKER_CONFIG (26): return the configuration as properties text, or the part for clients."""
    if view_of(broker, session, command) is not None:
        return Response(fields={"version": _NO_VERSION.encode().decode()}, body=settings_for_clients(broker.config))
    version = broker.topics.version.encode().decode()
    return Response(fields={"version": version}, body=exported_settings(broker.config))


def update_broker_config(broker: Broker, session: Session, command: Command) -> BlockingSteps[Response]:
    """Handle UPDATE_BROKER_CONFIG (25): change all stated keys, or none of them.

    The remark states which keys have changed and which take effect after a restart, or why the change was rejected.
    """
    settings = decode_settings(command.body)
    if not settings:
        raise system_error("the body contains no settings: send key=value lines")
    try:
        change = yield from broker.settings.change(
            lambda: broker.config, settings, by=f"code 25 of {session.remote_address}", now_ms=broker.now_ms()
        )
    except ForbiddenKeyError as error:
        raise no_permission(str(error)) from error
    except ConfigError as error:
        raise system_error(str(error)) from error
    broker.apply(change.config)
    _logger.info("settings: %s", change.remark, extra=fields(peer=session.remote_address))
    return Response(remark=change.remark)


def delete_expired_commit_log(broker: Broker, session: Session, command: Command) -> Response:
    """Handle DELETE_EXPIRED_COMMITLOG (329): run retention now, at any hour. Recent and pinned segments are kept."""
    broker.store.clean(broker.now_ms(), at_any_hour=True)
    return Response()


def clean_expired_queues(broker: Broker, session: Session, command: Command) -> Response:
    """Handle CLEAN_EXPIRED_CONSUMEQUEUE (306): run retention.

    Retention also deletes queue files below the start of the log.
    """
    broker.store.clean(broker.now_ms())
    return Response()


def clean_unused_topics(broker: Broker, session: Session, command: Command) -> Response | Deferred:
    """Handle CLEAN_UNUSED_TOPIC (316): delete the stored queues of topics that no longer exist."""
    stored = {topic for topic, _ in broker.store.queues()}
    for topic in sorted(stored):
        if topic not in broker.topics.table and not broker.topics.is_system(topic):
            broker.store.delete_topic(topic)
    return broker.when_replicas_know(Response())
