"""What heartbeats may state: bounds by group, by connection and over all connections, and what a statement costs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from sys import getsizeof
from typing import Final

from delaymq.broker.requests.errors import system_error
from delaymq.protocol.bodies import ConsumerData, SubscriptionData

MAX_SUBSCRIPTIONS: Final = 1_000
"""Of one group."""
MAX_GROUPS: Final = 1_000
"""Of one connection, consumers' and producers' each: more than any program has."""
MAX_STRING_CHARACTERS: Final = 32_768
"""As long as an SQL92 expression may be."""
MAX_WORD_CHARACTERS: Final = 128
"""Of words such as CLUSTERING; more than any client says."""
MAX_CONNECTION_BYTES: Final = 4 << 20
"""Of memory that one connection's statements take: some 6,000 subscriptions."""
MAX_BYTES: Final = 64 << 20
"""Of memory that the statements of all connections take. Members of a group share their subscriptions."""
RESERVED_BYTES: Final = 16 << 20
"""The last part of this is kept for connections that state little."""
LITTLE_BYTES: Final = 64 << 10

# What objects and tables take beside their strings, measured.
_MEMBER_BYTES: Final = 300
_GROUP_BYTES: Final = 1_000
_SUBSCRIPTION_BYTES: Final = 400
_TAG_BYTES: Final = 100

_LESS: Final = "divide its groups and topics among several clients, each with an instanceName of its own"


def cost_of_member(client_id: str) -> int:
    """Bytes of memory of one membership in a group."""
    return _MEMBER_BYTES + getsizeof(client_id)


def cost_of(group: str, subscriptions: Iterable[SubscriptionData]) -> int:
    """Bytes of memory of a group with these subscriptions, its members not counted."""
    return _GROUP_BYTES + getsizeof(group) + sum(map(_cost, subscriptions))


def _cost(subscription: SubscriptionData) -> int:
    strings = getsizeof(subscription.topic) + getsizeof(subscription.sub_string)
    strings += getsizeof(subscription.expression_type or "") + sum(map(getsizeof, subscription.tags_set))
    return _SUBSCRIPTION_BYTES + strings + _TAG_BYTES * (len(subscription.tags_set) + len(subscription.code_set))


def check_consumer(data: ConsumerData) -> None:
    """RequestError 1 for a group that states too much."""
    name = data.group_name[:255]
    count = len(data.subscription_data_set)
    if count > MAX_SUBSCRIPTIONS:
        raise system_error(
            f"the heartbeat states {count} subscriptions of group[{name}], at most {MAX_SUBSCRIPTIONS} are kept: divide"
            " its topics among several groups"
        )
    if max(len(data.consume_type), len(data.message_model), len(data.consume_from_where)) > MAX_WORD_CHARACTERS:
        raise system_error(f"the consumeType, messageModel or consumeFromWhere of group[{name}] is too long to be one")
    longest = max(map(len, _strings(data)))
    if longest > MAX_STRING_CHARACTERS:
        raise system_error(
            f"the heartbeat of group[{name}] has a text of {longest} characters, at most {MAX_STRING_CHARACTERS} are"
            " kept: shorten its subscriptions"
        )


def _strings(data: ConsumerData) -> Iterator[str]:
    yield data.group_name
    for each in data.subscription_data_set:
        yield from (each.topic, each.sub_string, each.expression_type or "", *each.tags_set)


def check_connection(groups: int, stated_bytes: int) -> None:
    """RequestError 1 when one connection would state too much."""
    if groups > MAX_GROUPS:
        raise system_error(f"this connection would belong to {groups} groups, at most {MAX_GROUPS} are kept: {_LESS}")
    if stated_bytes > MAX_CONNECTION_BYTES:
        raise system_error(
            f"the subscriptions of this connection would take {stated_bytes} bytes, at most {MAX_CONNECTION_BYTES} are"
            f" kept: {_LESS}"
        )


def check_all(all_bytes: int, stated_bytes: int) -> None:
    """RequestError 1 when all connections together would state too much; `stated_bytes` are this one's."""
    if all_bytes > (MAX_BYTES if stated_bytes <= LITTLE_BYTES else MAX_BYTES - RESERVED_BYTES):
        raise system_error(
            f"the groups and subscriptions of all clients take {MAX_BYTES >> 20} MiB already: stop clients that nobody"
            " needs (mqadmin consumerConnection shows those of a group)"
        )
