"""Permissions that each request requires of the account that signed it, for all codes that a broker receives.

RocketMQ checks the resources of nine codes and the administrator's permission of five. For all others it checks only
the signature. Where this would allow a client to bypass a rule, the broker requires permissions as well (table in
docs/operations/access-control.md).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from delaymq.access import PUB, SUB
from delaymq.message.ids import parse_offset_message_id
from delaymq.message.names import RETRY_PREFIX, RETRY_TOPIC
from delaymq.message.properties import parse_properties
from delaymq.protocol.bodies import HeartbeatData, LockRequest
from delaymq.protocol.codes import RequestCode, ResponseCode
from delaymq.protocol.command import Command
from delaymq.protocol.errors import RequestError

Needed = list[tuple[str, int]]
"""Topics, each with the permission that it requires, or with several of which one suffices. A group is represented by
its retry topic."""
TopicAt = Callable[[int], str | None]
"""Returns the topic of the record at a physical offset, None without a record."""
Resources = Callable[[Command, TopicAt], Needed]
_INTEGER: Final = re.compile(r"-?[0-9]{1,19}")


@dataclass(frozen=True, slots=True)
class Requirement:
    """Requirements of a request code in addition to a signature."""

    admin: bool = False
    """Whether the account must have admin=true."""
    resources: Resources | None = None
    own: bool = False
    """Whether RocketMQ does not check it: an administrator then needs no permission for the resources."""
    unconfirmed: bool = False
    """Whether its processor also finds records that replicas do not have, so that the check must find them, too."""


def needs_group(group: str | None) -> Needed:
    """Return the need of SUB for a group; nothing without one."""
    return [(RETRY_PREFIX + group, SUB)] if group else []


def needs_topic(topic: str | None, permission: int) -> Needed:
    """Return the need of a permission, or of one of several, for a topic; nothing without one."""
    return [(topic, permission)] if topic else []


def _sent(topic: str | None) -> Needed:
    # A consumer that fails to return a message sends it to its group's retry topic itself.
    if topic is not None and topic.startswith(RETRY_PREFIX):
        return [(topic, SUB)]
    return needs_topic(topic, PUB)


def _retried(topic: str | None, properties: str | None) -> Needed:
    # Members of the group treat a retry as a message of the topic that it names.
    if topic is None or properties is None or not topic.startswith(RETRY_PREFIX):
        return []
    origin = parse_properties(properties).get(RETRY_TOPIC)
    namespace, separator, _ = topic.removeprefix(RETRY_PREFIX).partition("%")
    if origin is not None and separator and not origin.startswith(namespace + separator):
        origin = namespace + separator + origin  # RocketMQ's ordered consumers omit the namespace
    return needs_topic(origin, SUB)


def needs_send(command: Command, topic_at: TopicAt) -> Needed:
    """Return the needs of request 10."""
    stated = command.fields
    topic = stated.get("topic")
    return _sent(topic) + _retried(topic, stated.get("properties"))


def needs_send_v2(command: Command, topic_at: TopicAt) -> Needed:
    """Return the needs of a send with one-letter fields."""
    stated = command.fields
    topic = stated.get("b")
    return _sent(topic) + _retried(topic, stated.get("i"))


def needs_reply(command: Command, topic_at: TopicAt) -> Needed:
    """Return the needs of a reply."""
    # An account that may consume requests may also send replies to the cluster's reply topic, but to no other topic.
    return _sent(command.fields.get("topic" if command.code == RequestCode.SEND_REPLY_MESSAGE else "b"))


def needs_pull(command: Command, topic_at: TopicAt) -> Needed:
    """Return the needs of a request that consumes a topic as a group."""
    return needs_topic(command.fields.get("topic"), SUB) + needs_group(command.fields.get("consumerGroup"))


def _recall(command: Command, topic_at: TopicAt) -> Needed:
    return _sent(command.fields.get("topic"))


def _query(command: Command, topic_at: TopicAt) -> Needed:
    return needs_topic(command.fields.get("topic"), SUB)


def needs_consumer_group(command: Command, topic_at: TopicAt) -> Needed:
    """Return the need of a request about a group."""
    return needs_group(command.fields.get("consumerGroup"))


def _send_back(command: Command, topic_at: TopicAt) -> Needed:
    # The offset addresses any record. Without this check, a client could read records of all topics.
    topic = topic_at(_offset(command, "offset"))
    return needs_group(command.fields.get("group")) + needs_topic(topic, SUB)


def _heartbeat(command: Command, topic_at: TopicAt) -> Needed:
    needed: Needed = []
    for consumer in HeartbeatData.decode(command.body).consumer_data_set:
        needed += needs_group(consumer.group_name)
        needed += [(each.topic, SUB) for each in consumer.subscription_data_set]
    return needed


def _lock(command: Command, topic_at: TopicAt) -> Needed:
    return needs_group(LockRequest.decode(command.body).consumer_group)


def _view(command: Command, topic_at: TopicAt) -> Needed:
    return needs_topic(topic_at(_offset(command, "offset")), SUB)


def _end_transaction(command: Command, topic_at: TopicAt) -> Needed:
    return needs_topic(topic_at(_offset(command, "commitLogOffset")), PUB)


def _consume_directly(command: Command, topic_at: TopicAt) -> Needed:
    needed = needs_group(command.fields.get("consumerGroup"))
    try:
        _, _, offset = parse_offset_message_id(command.fields.get("msgId", ""))
    except ValueError:
        return needed
    return needed + needs_topic(topic_at(offset), SUB)


def _group_and_topic(command: Command, topic_at: TopicAt) -> Needed:
    return needs_group(command.fields.get("group")) + needs_topic(command.fields.get("topic"), SUB)


def _clone(command: Command, topic_at: TopicAt) -> Needed:
    return needs_group(command.fields.get("srcGroup")) + needs_group(command.fields.get("destGroup"))


def _offset(command: Command, field: str) -> int:
    # Accept only what the processor also parses as this number, so that nothing bypasses the check.
    text = command.fields.get(field)
    if text is None:
        return -1
    if not _INTEGER.fullmatch(text):
        raise RequestError(ResponseCode.SYSTEM_ERROR, f"field {field} of the request is not a 64-bit integer")
    return int(text)


ACCOUNT: Final = Requirement()
"""Requirement of a request that any known account may send."""
ADMIN: Final = Requirement(admin=True)
PROOF: Final = Requirement()
"""Requirement of a request between members of a group, which prove that they know the group's secret instead."""
ADMIN_OF_OURS: Final = Requirement(admin=True, own=True)
"""Like ADMIN, for requests that RocketMQ permits to every account."""

REQUIREMENTS: Final[Mapping[int, Requirement]] = {
    RequestCode.SEND_MESSAGE: Requirement(resources=needs_send),
    RequestCode.PULL_MESSAGE: Requirement(resources=needs_pull),
    RequestCode.QUERY_MESSAGE: Requirement(resources=_query),
    RequestCode.RECALL_MESSAGE: Requirement(resources=_recall),
    RequestCode.QUERY_CONSUMER_OFFSET: ACCOUNT,
    RequestCode.UPDATE_CONSUMER_OFFSET: Requirement(resources=needs_pull),
    RequestCode.UPDATE_AND_CREATE_TOPIC: ADMIN,
    RequestCode.GET_ALL_TOPIC_CONFIG: ACCOUNT,
    RequestCode.UPDATE_BROKER_CONFIG: ADMIN,
    RequestCode.GET_BROKER_CONFIG: ACCOUNT,
    RequestCode.GET_BROKER_RUNTIME_INFO: ACCOUNT,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: ACCOUNT,
    RequestCode.GET_MAX_OFFSET: ACCOUNT,
    RequestCode.GET_MIN_OFFSET: ACCOUNT,
    RequestCode.GET_EARLIEST_MSG_STORETIME: ACCOUNT,
    RequestCode.VIEW_MESSAGE_BY_ID: Requirement(resources=_view, own=True),
    RequestCode.HEART_BEAT: Requirement(resources=_heartbeat),
    RequestCode.UNREGISTER_CLIENT: Requirement(resources=needs_consumer_group),
    RequestCode.CONSUMER_SEND_MSG_BACK: Requirement(resources=_send_back),
    RequestCode.END_TRANSACTION: Requirement(resources=_end_transaction, own=True, unconfirmed=True),
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: Requirement(resources=needs_consumer_group),
    RequestCode.LOCK_BATCH_MQ: Requirement(resources=_lock, own=True),
    RequestCode.UNLOCK_BATCH_MQ: Requirement(resources=_lock, own=True),
    RequestCode.GET_ALL_CONSUMER_OFFSET: ACCOUNT,
    RequestCode.GET_ALL_DELAY_OFFSET: ACCOUNT,
    RequestCode.CHECK_CLIENT_CONFIG: ACCOUNT,
    RequestCode.UPDATE_AND_CREATE_ACL_CONFIG: ADMIN_OF_OURS,
    RequestCode.DELETE_ACL_CONFIG: ADMIN_OF_OURS,
    RequestCode.GET_BROKER_CLUSTER_ACL_INFO: ACCOUNT,
    RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: ADMIN_OF_OURS,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: ADMIN,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: ACCOUNT,
    RequestCode.GET_TOPIC_STATS_INFO: ACCOUNT,
    RequestCode.GET_CONSUMER_CONNECTION_LIST: ACCOUNT,
    RequestCode.GET_PRODUCER_CONNECTION_LIST: ACCOUNT,
    RequestCode.DELETE_SUBSCRIPTIONGROUP: ADMIN,
    RequestCode.GET_CONSUME_STATS: ACCOUNT,
    RequestCode.DELETE_TOPIC_IN_BROKER: ADMIN,
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: Requirement(resources=_group_and_topic, own=True),
    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: Requirement(resources=_group_and_topic, own=True),
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: ACCOUNT,
    RequestCode.QUERY_CONSUME_TIME_SPAN: ACCOUNT,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: ACCOUNT,
    RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: ADMIN_OF_OURS,
    RequestCode.GET_CONSUMER_RUNNING_INFO: Requirement(resources=needs_consumer_group, own=True),
    RequestCode.QUERY_CORRECTION_OFFSET: ACCOUNT,
    RequestCode.CONSUME_MESSAGE_DIRECTLY: Requirement(resources=_consume_directly, own=True),
    RequestCode.SEND_MESSAGE_V2: Requirement(resources=needs_send_v2),
    RequestCode.CLONE_GROUP_OFFSET: Requirement(resources=_clone, own=True),
    RequestCode.VIEW_BROKER_STATS_DATA: ACCOUNT,
    RequestCode.CLEAN_UNUSED_TOPIC: ADMIN_OF_OURS,
    RequestCode.GET_BROKER_CONSUME_STATS: ACCOUNT,
    RequestCode.SEND_BATCH_MESSAGE: Requirement(resources=needs_send_v2),
    RequestCode.QUERY_CONSUME_QUEUE: Requirement(resources=_query, own=True),
    RequestCode.RESUME_CHECK_HALF_MESSAGE: ADMIN_OF_OURS,
    RequestCode.SEND_REPLY_MESSAGE: Requirement(resources=needs_reply, own=True),
    RequestCode.SEND_REPLY_MESSAGE_V2: Requirement(resources=needs_reply, own=True),
    RequestCode.GET_ALL_PRODUCER_INFO: ACCOUNT,
    RequestCode.DELETE_EXPIRED_COMMITLOG: ADMIN_OF_OURS,
    RequestCode.GET_TOPIC_CONFIG: ACCOUNT,
    RequestCode.LITE_PULL_MESSAGE: Requirement(resources=needs_pull),
    RequestCode.LIST_PENDING_MESSAGES: Requirement(resources=_query, own=True),
    RequestCode.LINK_REPLICA: PROOF,
    RequestCode.PROVE_REPLICA: PROOF,
    RequestCode.REPLICATE: PROOF,
}
"""Codes that are missing here are not served. They require an account, as in RocketMQ."""
