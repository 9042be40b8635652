"""Topics, groups, statistics, configuration and cleaning, as operators ask for them."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from delaymq.blocking_steps import BlockingSteps
from delaymq.broker.admin.config_export import exported_settings
from delaymq.broker.admin.runtime_info import runtime_info
from delaymq.broker.errors import no_permission, system_error, topic_missing
from delaymq.broker.topics import checked_topic
from delaymq.config import ConfigError
from delaymq.config.running import ForbiddenKeyError
from delaymq.protocol.bodies import (
    KVTable,
    SubscriptionGroupConfig,
    TopicConfig,
    TopicList,
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
    from delaymq.broker.session import Session

# Each is kept in delaymq/deleted_topics.json for as long as the log may have messages of it.
MAX_DELETED_TOPICS: Final = 100_000
_logger = logging.getLogger(__name__)


def update_and_create_topic(broker: Broker, session: Session, command: Command) -> Response:
    """17: makes or changes a topic; durable when it is answered."""
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
    return Response()


def delete_topic(broker: Broker, session: Session, command: Command) -> Response:
    """215: forgets a topic and deletes its queues; its messages stay in the log until they are too old."""
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
    _write_through(broker)
    return Response()


def _write_through(broker: Broker) -> None:
    """What an administrator changed is on the disk before it is answered."""
    error = broker.persist_definitions()
    if error is not None:
        raise system_error(f"changed, but not written yet ({error.strerror}): ask again when the disk is well")


def _refuse_system_topic(broker: Broker, topic: str) -> None:
    if broker.topics.is_system(topic):
        raise system_error(f"The topic[{topic}] is conflict with system topic.")


def get_all_topic_config(broker: Broker, session: Session, command: Command) -> Response:
    """21: topics.json."""
    return Response(body=broker.topics.encode())


def get_topic_config(broker: Broker, session: Session, command: Command) -> Response:
    """351: one topic, without the mapping of queues that static topics of RocketMQ 5 have besides."""
    name = GetTopicConfigRequestHeader.from_fields(command.fields).topic
    topic = broker.topics.get(name)
    if topic is None:
        raise topic_missing(name)
    return Response(body=topic.encode())


def get_system_topics(broker: Broker, session: Session, command: Command) -> Response:
    """305: the broker's own topics."""
    return Response(body=TopicList(sorted(broker.topics.system)).encode())


def update_and_create_group(broker: Broker, session: Session, command: Command) -> Response:
    """200: makes or changes a consumer group; durable when it is answered."""
    broker.groups.put(SubscriptionGroupConfig.decode(command.body))
    _write_through(broker)
    return Response()


def get_all_groups(broker: Broker, session: Session, command: Command) -> Response:
    """201: subscriptionGroup.json."""
    return Response(body=broker.groups.encode())


def delete_group(broker: Broker, session: Session, command: Command) -> Response:
    """207: forgets a group, and its offsets if the request says so."""
    header = DeleteSubscriptionGroupRequestHeader.from_fields(command.fields)
    broker.groups.remove(header.group_name)
    if header.remove_offset:
        broker.offsets.remove_group(header.group_name)
    broker.stats.by_key.forget_group(header.group_name)
    broker.group_series.forget(header.group_name)
    _write_through(broker)
    return Response()


def get_runtime_info(broker: Broker, session: Session, command: Command) -> Response:
    """28: figures of the running broker."""
    return Response(body=KVTable(runtime_info(broker)).encode())


def get_broker_config(broker: Broker, session: Session, command: Command) -> Response:
    """26: the configuration as properties text."""
    version = broker.topics.version.encode().decode()
    return Response(fields={"version": version}, body=exported_settings(broker.config))


def update_broker_config(broker: Broker, session: Session, command: Command) -> BlockingSteps[Response]:
    """25: changes keys, all of them or none; the remark says which changed now and which wait for a restart, or why."""
    settings = decode_settings(command.body)
    if not settings:
        raise system_error("the body has no keys: send key=value lines")
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
    """329: a retention pass now, whatever the hour; what is not old enough or pinned is kept."""
    broker.store.clean(broker.now_ms(), at_any_hour=True)
    return Response()


def clean_expired_queues(broker: Broker, session: Session, command: Command) -> Response:
    """306: queue files below the log's begin go with each retention pass; this makes one."""
    broker.store.clean(broker.now_ms())
    return Response()


def clean_unused_topics(broker: Broker, session: Session, command: Command) -> Response:
    """316: deletes stored queues whose topic is gone."""
    stored = {topic for topic, _ in broker.store.queues()}
    for topic in sorted(stored):
        if topic not in broker.topics.table and not broker.topics.is_system(topic):
            broker.store.delete_topic(topic)
    return Response()
