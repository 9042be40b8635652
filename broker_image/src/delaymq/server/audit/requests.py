"""Tables of request codes: changes with their actions and the names of what they change, and all others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass
from typing import Final

from delaymq.broker.delivery.timed.requests import read_recall_handle
from delaymq.config import BrokerConfig, NamesrvConfig, keys_of
from delaymq.message.errors import IllegalMessageError
from delaymq.protocol.bodies import SubscriptionGroupConfig, decode_settings
from delaymq.protocol.codes import LINK_CODES, PULL_CODES, SEND_CODES, RequestCode
from delaymq.protocol.command import Command
from delaymq.protocol.credential_fields import CREDENTIAL_FIELDS
from delaymq.protocol.errors import RequestError

MAX_KEYS: Final = 16
"""Maximum names of settings in a line."""
SECRET_FIELDS: Final = CREDENTIAL_FIELDS - {"AccessKey"} | {"secretKey", "value", "globalWhiteAddrs", "groupTokens"}
"""Fields whose values a remark must not repeat."""
MAX_BODY_BYTES: Final = 64 * 1024
"""Longer bodies are not read for a line."""

_KNOWN_KEYS: Final = keys_of(BrokerConfig).keys() | keys_of(NamesrvConfig).keys()

Names = Callable[[Command], Mapping[str, object]]


@dataclass(frozen=True, slots=True)
class Change:
    """A request code that changes something."""

    action: str
    names: Names
    """Return the names of what is changed. May raise RequestError or ValueError for an invalid request."""


def _fields(**kinds: str) -> Names:
    """Return a function that takes the names from fields: `kind=field`."""

    def names(command: Command) -> Mapping[str, object]:
        return {kind: command.fields.get(field, "") for kind, field in kinds.items()}

    return names


def _settings(known: Set[str]) -> Names:
    """Return a function that takes the names of settings from the body."""

    def names(command: Command) -> Mapping[str, object]:
        if len(command.body) > MAX_BODY_BYTES:
            return {}
        keys = decode_settings(command.body)
        shown = [key for key in keys if key in known][:MAX_KEYS]
        # Other keys may be values in the wrong place.
        others = len(keys) - len(shown)
        return {"settings": " ".join(shown), "otherSettings": str(others) if others else ""}

    return names


def _group_of_body(command: Command) -> Mapping[str, object]:
    if len(command.body) > MAX_BODY_BYTES:
        return {}
    return {"group": SubscriptionGroupConfig.decode(command.body).group_name}


def _recalled(command: Command) -> Mapping[str, object]:
    topic = command.fields.get("topic", "")
    try:
        return {"topic": topic, "id": read_recall_handle(command.fields.get("recallHandle", "")).unique_key}
    except IllegalMessageError:
        return {"topic": topic}


_NOTHING: Final = _fields()
_BROKER_OF_NAMESRV: Final = _fields(broker="brokerName", id="brokerId", address="brokerAddr", cluster="clusterName")

BROKER_CHANGES: Final[Mapping[int, Change]] = {
    RequestCode.UPDATE_AND_CREATE_TOPIC: Change("topic.put", _fields(topic="topic")),
    RequestCode.DELETE_TOPIC_IN_BROKER: Change("topic.delete", _fields(topic="topic")),
    RequestCode.CLEAN_UNUSED_TOPIC: Change("topic.clean", _NOTHING),
    RequestCode.UPDATE_BROKER_CONFIG: Change("settings.change", _settings(keys_of(BrokerConfig).keys())),
    RequestCode.UPDATE_AND_CREATE_ACL_CONFIG: Change("account.put", _fields(account="accessKey")),
    RequestCode.DELETE_ACL_CONFIG: Change("account.delete", _fields(account="accessKey")),
    RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: Change("whitelist.set", _fields(file="aclFileFullPath")),
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: Change("group.put", _group_of_body),
    RequestCode.DELETE_SUBSCRIPTIONGROUP: Change("group.delete", _fields(group="groupName")),
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: Change("offset.reset", _fields(group="group", topic="topic")),
    RequestCode.UPDATE_CONSUMER_OFFSET: Change(
        "offset.set", _fields(group="consumerGroup", topic="topic", queue="queueId")
    ),
    RequestCode.CLONE_GROUP_OFFSET: Change("offset.clone", _fields(group="destGroup", of="srcGroup", topic="topic")),
    RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: Change("queue.clean", _NOTHING),
    RequestCode.DELETE_EXPIRED_COMMITLOG: Change("log.clean", _NOTHING),
    RequestCode.RESUME_CHECK_HALF_MESSAGE: Change("transaction.recheck", _fields(id="msgId", topic="topic")),
    RequestCode.CONSUME_MESSAGE_DIRECTLY: Change(
        "message.consume", _fields(group="consumerGroup", client="clientId", id="msgId")
    ),
    RequestCode.RECALL_MESSAGE: Change("delay.cancel", _recalled),
}
"""Changes by request code of a broker. 15 only as `is_administrative_commit` states."""

NAMESRV_CHANGES: Final[Mapping[int, Change]] = {
    RequestCode.PUT_KV_CONFIG: Change("kv.put", _fields(namespace="namespace", key="key")),
    RequestCode.DELETE_KV_CONFIG: Change("kv.delete", _fields(namespace="namespace", key="key")),
    RequestCode.REGISTER_BROKER: Change("broker.register", _BROKER_OF_NAMESRV),
    RequestCode.UNREGISTER_BROKER: Change("broker.unregister", _BROKER_OF_NAMESRV),
    RequestCode.WIPE_WRITE_PERM_OF_BROKER: Change("broker.wipe-write", _fields(broker="brokerName")),
    RequestCode.ADD_WRITE_PERM_OF_BROKER: Change("broker.add-write", _fields(broker="brokerName")),
    RequestCode.DELETE_TOPIC_IN_NAMESRV: Change("route.delete", _fields(topic="topic", cluster="clusterName")),
    RequestCode.UPDATE_NAMESRV_CONFIG: Change("settings.change", _settings(keys_of(NamesrvConfig).keys())),
}
"""Changes by request code of a NameServer. 103 and 104 only if they change the owner or the address of a name."""

_READS: Final = "it reads only"
_MESSAGES: Final = "traffic of producers and consumers, which the log and the metrics state"
_CLIENTS: Final = "clients repeat it all the time, to report themselves or to divide queues among them"
_LINKS: Final = "replicas prove their identity, and copy what the audit log of their master states"
_CHALLENGE: Final = "it only returns a challenge for signatures"

BROKER_OTHERS: Final[Mapping[int, str]] = {
    **dict.fromkeys(SEND_CODES | PULL_CODES, _MESSAGES),
    RequestCode.CONSUMER_SEND_MSG_BACK: _MESSAGES,
    RequestCode.END_TRANSACTION: _MESSAGES,
    RequestCode.HEART_BEAT: _CLIENTS,
    RequestCode.UNREGISTER_CLIENT: _CLIENTS,
    RequestCode.LOCK_BATCH_MQ: _CLIENTS,
    RequestCode.UNLOCK_BATCH_MQ: _CLIENTS,
    **dict.fromkeys(LINK_CODES, _LINKS),
    RequestCode.GET_KV_CONFIG: _CHALLENGE,
    **dict.fromkeys(
        (
            RequestCode.QUERY_MESSAGE,
            RequestCode.LIST_PENDING_MESSAGES,
            RequestCode.QUERY_CONSUMER_OFFSET,
            RequestCode.GET_ALL_TOPIC_CONFIG,
            RequestCode.GET_BROKER_CONFIG,
            RequestCode.GET_BROKER_RUNTIME_INFO,
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
            RequestCode.GET_MAX_OFFSET,
            RequestCode.GET_MIN_OFFSET,
            RequestCode.GET_EARLIEST_MSG_STORETIME,
            RequestCode.VIEW_MESSAGE_BY_ID,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP,
            RequestCode.GET_ALL_CONSUMER_OFFSET,
            RequestCode.GET_ALL_DELAY_OFFSET,
            RequestCode.CHECK_CLIENT_CONFIG,
            RequestCode.GET_BROKER_CLUSTER_ACL_INFO,
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
            RequestCode.GET_TOPIC_STATS_INFO,
            RequestCode.GET_CONSUMER_CONNECTION_LIST,
            RequestCode.GET_PRODUCER_CONNECTION_LIST,
            RequestCode.GET_CONSUME_STATS,
            RequestCode.QUERY_TOPIC_CONSUME_BY_WHO,
            RequestCode.QUERY_CONSUME_TIME_SPAN,
            RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
            RequestCode.GET_CONSUMER_RUNNING_INFO,
            RequestCode.QUERY_CORRECTION_OFFSET,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER,
            RequestCode.VIEW_BROKER_STATS_DATA,
            RequestCode.GET_BROKER_CONSUME_STATS,
            RequestCode.QUERY_CONSUME_QUEUE,
            RequestCode.GET_ALL_PRODUCER_INFO,
            RequestCode.GET_TOPIC_CONFIG,
        ),
        _READS,
    ),
}
"""All other request codes of a broker, with the reason why they are not audited."""

NAMESRV_OTHERS: Final[Mapping[int, str]] = dict.fromkeys(
    (
        RequestCode.GET_BROKER_CLUSTER_ACL_INFO,
        RequestCode.GET_KV_CONFIG,
        RequestCode.GET_ROUTEINFO_BY_TOPIC,
        RequestCode.GET_BROKER_CLUSTER_INFO,
        RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
        RequestCode.GET_KVLIST_BY_NAMESPACE,
        RequestCode.GET_TOPICS_BY_CLUSTER,
        RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS,
        RequestCode.GET_UNIT_TOPIC_LIST,
        RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST,
        RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST,
        RequestCode.GET_NAMESRV_CONFIG,
        RequestCode.QUERY_DATA_VERSION,
    ),
    _READS,
)
"""The same for a NameServer. 322 renews what a registration stated."""


def names_of(change: Change, command: Command) -> Mapping[str, object]:
    """Return the names of what a request changes; empty if they cannot be read. Never raises."""
    try:
        return change.names(command)
    except (RequestError, ValueError, TypeError, RecursionError):
        return {}


def secrets_of(command: Command) -> Iterator[str]:
    """Yield values of a request that may be secrets, and that its response might repeat."""
    for field, value in command.fields.items():
        if field in SECRET_FIELDS:
            yield value
    for line in command.body[:MAX_BODY_BYTES].decode(errors="replace").splitlines():
        key, equals, value = line.partition("=")
        yield value.strip()
        if not equals or key.strip() not in _KNOWN_KEYS:
            yield from (line.strip(), key.strip())
