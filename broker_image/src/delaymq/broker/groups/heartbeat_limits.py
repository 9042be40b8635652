"""Limits of heartbeats by group, by connection and over all connections, and the memory cost of their contents."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from sys import getsizeof
from typing import Final

from delaymq.broker.requests.errors import system_error
from delaymq.protocol.bodies import ConsumerData, SubscriptionData

MAX_SUBSCRIPTIONS: Final = 1_000
"""Maximum number of subscriptions of one group."""
MAX_GROUPS: Final = 1_000
"""Maximum number of consumer groups, and of producer groups, of one connection. No real program needs more."""
MAX_STRING_CHARACTERS: Final = 32_768
"""Maximum length of a string, which is that of an SQL92 expression."""
MAX_WORD_CHARACTERS: Final = 128
"""Maximum length of an enumeration value such as CLUSTERING."""
MAX_CONNECTION_BYTES: Final = 4 << 20
"""Memory that the statements of one connection may take: about 6,000 subscriptions."""
MAX_BYTES: Final = 64 << 20
"""Memory that the statements of all connections may take. Members of a group share their subscriptions."""
RESERVED_BYTES: Final = 16 << 20
"""Last part of MAX_BYTES, which is reserved for connections that state at most LITTLE_BYTES."""
LITTLE_BYTES: Final = 64 << 10

# Measured overhead of objects and tables, in addition to their strings:
_MEMBER_BYTES: Final = 300
_GROUP_BYTES: Final = 1_000
_SUBSCRIPTION_BYTES: Final = 400
_TAG_BYTES: Final = 100

_LESS: Final = "divide its groups and topics among several clients, each with its own instanceName"


def cost_of_member(client_id: str) -> int:
    """Return the memory of one membership in a group, in bytes."""
    return _MEMBER_BYTES + getsizeof(client_id)


def cost_of(group: str, subscriptions: Iterable[SubscriptionData]) -> int:
    """Return the memory of a group with these subscriptions, without its members, in bytes."""
    return _GROUP_BYTES + getsizeof(group) + sum(map(_cost, subscriptions))


def _cost(subscription: SubscriptionData) -> int:
    strings = getsizeof(subscription.topic) + getsizeof(subscription.sub_string)
    strings += getsizeof(subscription.expression_type or "") + sum(map(getsizeof, subscription.tags_set))
    return _SUBSCRIPTION_BYTES + strings + _TAG_BYTES * (len(subscription.tags_set) + len(subscription.code_set))


def check_consumer(data: ConsumerData) -> None:
    """Raise RequestError 1 if a group exceeds the limits."""
    name = data.group_name[:255]
    count = len(data.subscription_data_set)
    if count > MAX_SUBSCRIPTIONS:
        raise system_error(
            f"the heartbeat has {count} subscriptions of group[{name}] (limit: {MAX_SUBSCRIPTIONS}): divide"
            " its topics among several groups"
        )
    if max(len(data.consume_type), len(data.message_model), len(data.consume_from_where)) > MAX_WORD_CHARACTERS:
        raise system_error(
            f"the consumeType, messageModel or consumeFromWhere of group[{name}] is longer than any valid value"
        )
    longest = max(map(len, _strings(data)))
    if longest > MAX_STRING_CHARACTERS:
        raise system_error(
            f"the heartbeat of group[{name}] has a string of {longest} characters (limit: {MAX_STRING_CHARACTERS}):"
            " shorten its subscriptions"
        )


def _strings(data: ConsumerData) -> Iterator[str]:
    yield data.group_name
    for each in data.subscription_data_set:
        yield from (each.topic, each.sub_string, each.expression_type or "", *each.tags_set)


def check_connection(groups: int, stated_bytes: int) -> None:
    """Raise RequestError 1 if one connection would exceed its limits."""
    if groups > MAX_GROUPS:
        raise system_error(f"this connection would belong to {groups} groups (limit: {MAX_GROUPS}): {_LESS}")
    if stated_bytes > MAX_CONNECTION_BYTES:
        raise system_error(
            f"the subscriptions of this connection would take {stated_bytes} bytes (limit: {MAX_CONNECTION_BYTES}):"
            f" {_LESS}"
        )


def check_all(all_bytes: int, stated_bytes: int) -> None:
    """Raise RequestError 1 if all connections together would exceed the limit. `stated_bytes` are this connection's."""
    if all_bytes > (MAX_BYTES if stated_bytes <= LITTLE_BYTES else MAX_BYTES - RESERVED_BYTES):
        raise system_error(
            f"the groups and subscriptions of all clients already take {MAX_BYTES >> 20} MiB: stop clients that are"
            " not needed (mqadmin consumerConnection shows those of a group)"
        )
