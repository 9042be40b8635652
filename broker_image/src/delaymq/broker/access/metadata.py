"""Requirements of requests for metadata with `aclMetadata=own`: only what concerns an account's topics and groups.

A code of REQUIREMENTS that needs only an account either needs a permission for the topic and group that it names, or an
administrator, or its response is reduced by its processor to what the account may see (REDUCED). No response to a
request for another account's topic, group or record depends on whether it exists.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from delaymq.access import PUB, SUB
from delaymq.broker.access.requirements import (
    ACCOUNT,
    ADMIN_OF_OURS,
    REQUIREMENTS,
    Needed,
    Requirement,
    Resources,
    TopicAt,
    needs_consumer_group,
    needs_group,
    needs_pull,
    needs_reply,
    needs_send,
    needs_send_v2,
    needs_topic,
)
from delaymq.broker.statistics.names import resources_of
from delaymq.message.names import AUTO_CREATE_TOPIC, SCHEDULE_TOPIC
from delaymq.protocol.bodies import CheckClient
from delaymq.protocol.codes import RequestCode
from delaymq.protocol.command import Command

_NO_RECORD: Final = "\0"
"""Stands for the topic of a missing record. No rule can name it."""


def _inheriting(needs: Resources, default: str) -> Resources:
    """Return the needs of a send, which may create a topic like the one that it names in the field `default`."""

    def resources(command: Command, topic_at: TopicAt) -> Needed:
        needed, named = needs(command, topic_at), command.fields.get(default)
        return needed if named == AUTO_CREATE_TOPIC else needed + needs_topic(named, PUB | SUB)

    return resources


def _described(command: Command, topic_at: TopicAt) -> Needed:
    return needs_topic(command.fields.get("topic"), PUB | SUB)


def _time_span(command: Command, topic_at: TopicAt) -> Needed:
    return needs_topic(command.fields.get("topic"), SUB) + needs_group(command.fields.get("group"))


def _correction(command: Command, topic_at: TopicAt) -> Needed:
    return needs_topic(command.fields.get("topic"), SUB) + needs_group(command.fields.get("compareGroup"))


def _checked(command: Command, topic_at: TopicAt) -> Needed:
    check = CheckClient.decode(command.body)
    return needs_topic(check.subscription_data.topic, SUB) + needs_group(check.group)


def _statistics(command: Command, topic_at: TopicAt) -> Needed:
    topic, group = resources_of(command.fields.get("statsName", ""), command.fields.get("statsKey", ""))
    # Figures of the whole broker count all topics, like the queues of this one.
    return needs_topic(topic or SCHEDULE_TOPIC, SUB if group or not topic else PUB | SUB) + needs_group(group)


REDUCED: Final = Requirement()
"""Requirement of a request that any account may send, and whose response contains only what the account may see."""
_DESCRIBED: Final = Requirement(resources=_described, own=True)
_CONSUMERS: Final = Requirement(resources=needs_consumer_group, own=True)
_PROGRESS: Final = Requirement(resources=needs_pull, own=True)
_SEND_V2: Final = Requirement(resources=_inheriting(needs_send_v2, "c"))

OWN_METADATA: Final[Mapping[int, Requirement]] = {
    RequestCode.SEND_MESSAGE: Requirement(resources=_inheriting(needs_send, "defaultTopic")),
    RequestCode.SEND_MESSAGE_V2: _SEND_V2,
    RequestCode.SEND_BATCH_MESSAGE: _SEND_V2,
    RequestCode.QUERY_CONSUMER_OFFSET: _PROGRESS,
    RequestCode.GET_ALL_TOPIC_CONFIG: REDUCED,
    RequestCode.GET_BROKER_CONFIG: REDUCED,
    RequestCode.GET_BROKER_RUNTIME_INFO: ADMIN_OF_OURS,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: _DESCRIBED,
    RequestCode.GET_MAX_OFFSET: _DESCRIBED,
    RequestCode.GET_MIN_OFFSET: _DESCRIBED,
    RequestCode.GET_EARLIEST_MSG_STORETIME: _DESCRIBED,
    RequestCode.GET_ALL_CONSUMER_OFFSET: REDUCED,
    RequestCode.GET_ALL_DELAY_OFFSET: ADMIN_OF_OURS,
    RequestCode.CHECK_CLIENT_CONFIG: Requirement(resources=_checked, own=True),
    RequestCode.GET_BROKER_CLUSTER_ACL_INFO: ADMIN_OF_OURS,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: REDUCED,
    RequestCode.GET_TOPIC_STATS_INFO: _DESCRIBED,
    RequestCode.GET_CONSUMER_CONNECTION_LIST: _CONSUMERS,
    RequestCode.GET_PRODUCER_CONNECTION_LIST: REDUCED,
    RequestCode.GET_CONSUME_STATS: _PROGRESS,
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: _DESCRIBED,
    RequestCode.QUERY_CONSUME_TIME_SPAN: Requirement(resources=_time_span, own=True),
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: ACCOUNT,
    RequestCode.QUERY_CORRECTION_OFFSET: Requirement(resources=_correction, own=True),
    RequestCode.VIEW_BROKER_STATS_DATA: Requirement(resources=_statistics, own=True),
    RequestCode.GET_BROKER_CONSUME_STATS: REDUCED,
    RequestCode.QUERY_CONSUME_QUEUE: _PROGRESS,
    RequestCode.SEND_REPLY_MESSAGE: Requirement(resources=_inheriting(needs_reply, "defaultTopic"), own=True),
    RequestCode.SEND_REPLY_MESSAGE_V2: Requirement(resources=_inheriting(needs_reply, "c"), own=True),
    RequestCode.GET_ALL_PRODUCER_INFO: REDUCED,
    RequestCode.GET_TOPIC_CONFIG: _DESCRIBED,
}
"""What differs from REQUIREMENTS. System topics (305) are the same for all brokers with the same settings."""

WITH_OWN_METADATA: Final[Mapping[int, Requirement]] = {**REQUIREMENTS, **OWN_METADATA}


class RecordTopics:
    """Topics of the records that a request refers to by their offsets."""

    def __init__(self, topic_at: TopicAt) -> None:
        self._topic_at = topic_at
        self._found: set[str] = set()

    def __call__(self, offset: int) -> str:
        """Return the topic of the record at an offset, for a missing record a topic that nobody may use."""
        topic = self._topic_at(offset) or _NO_RECORD
        self._found.add(topic)
        return topic

    def hides(self, resource: str) -> bool:
        """Return whether a refusal must not name a resource, because the request does not."""
        return resource in self._found or resource == _NO_RECORD


def is_missing(resource: str) -> bool:
    """Return whether a resource stands for a missing record, for which no account has a permission."""
    return resource == _NO_RECORD
