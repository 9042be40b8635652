"""Selection of a pull's filter: that of the pull itself, or that of its group's heartbeats."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from delaymq.broker.filters import SQL_TYPE, Filter, compile_expression, is_tag_type
from delaymq.broker.requests.errors import no_permission, system_error
from delaymq.message import names
from delaymq.protocol.codes import ResponseCode
from delaymq.protocol.errors import RequestError

if TYPE_CHECKING:
    from delaymq.broker.filters import CompileWork
    from delaymq.broker.groups.client_registry import ClientRegistry
    from delaymq.broker.groups.subscription_groups import Groups
    from delaymq.config import BrokerConfig
    from delaymq.protocol.bodies import SubscriptionData
    from delaymq.protocol.headers import PullMessageRequestHeader

HAS_SUBSCRIPTION: Final = 4
"""Sys flag of a pull that contains its subscription."""
_RETRY_TOPIC: Final = names.RETRY_TOPIC.encode()


class Subscribers(Protocol):
    """Parts of the broker that resolving a filter needs."""

    @property
    def clients(self) -> ClientRegistry:
        """Clients, for their heartbeats' subscriptions."""

    @property
    def compile_work(self) -> CompileWork:
        """Limits for compiling new expressions."""

    @property
    def config(self) -> BrokerConfig:
        """Configuration in force."""

    @property
    def groups(self) -> Groups:
        """Existing groups."""

    def now_ms(self) -> int:
        """Return the wall clock's time."""


def filter_of_pull(broker: Subscribers, header: PullMessageRequestHeader, asker: int) -> Filter:
    """Return the filter of a pull of the connection `asker`. Raises RequestError with a code for each problem."""
    if header.sys_flag & HAS_SUBSCRIPTION:
        wanted = checked_filter(broker, header.expression_type, header.subscription or "", asker)
    else:
        wanted = _filter_of_group(broker, _stated(broker, header), asker)
    config = broker.config
    if config.filter_support_retry and config.enable_property_filter and header.topic.startswith(names.RETRY_PREFIX):
        return Filter(wanted.tags, _RetryFilter(broker, header.topic[len(names.RETRY_PREFIX) :], asker), wanted.cost)
    return wanted


def checked_filter(broker: Subscribers, expression_type: str | None, text: str, asker: int) -> Filter:
    """Return the filter of a subscription.

    Raises RequestError 1 if SQL92 is disabled, 23 for an invalid expression, and NotNowError if peers recently used too
    many new expressions.
    """
    if not is_tag_type(expression_type) and not broker.config.enable_property_filter:
        raise system_error(
            f"The broker does not support consumer to filter message by {str(expression_type)[:32]}:"
            " set enablePropertyFilter=true, or subscribe by tags"
        )
    return compile_expression(expression_type, text, broker.compile_work, asker)


def _filter_of_group(broker: Subscribers, subscription: SubscriptionData, asker: int) -> Filter:
    if subscription.class_filter_mode:
        # Filtered by the client. Such clients once uploaded their filter classes to filter servers.
        return Filter()
    try:
        return checked_filter(broker, subscription.expression_type, subscription.sub_string, asker)
    except RequestError as error:
        if error.code != ResponseCode.SUBSCRIPTION_PARSE_FAILED or is_tag_type(subscription.expression_type):
            raise
        raise RequestError(
            ResponseCode.FILTER_DATA_NOT_EXIST,
            f"The broker's consumer filter data is not exist!Your expression may be wrong! {error.remark}",
        ) from error


def _stated(broker: Subscribers, header: PullMessageRequestHeader) -> SubscriptionData:
    """Return the subscription of the group's members to the topic."""
    now_ms = broker.now_ms()
    name = header.consumer_group
    group = broker.clients.group(name, now_ms)
    if group is None:
        raise RequestError(
            ResponseCode.SUBSCRIPTION_NOT_EXIST, f"the consumer's group info not exist: {name} (heartbeats create it)"
        )
    if group.message_model == "BROADCASTING" and not broker.groups.table[name].consume_broadcast_enable:
        raise no_permission(f"the consumer group[{name}] can not consume by broadcast way")
    subscription = broker.clients.subscription(name, header.topic, now_ms)
    if subscription is None:
        raise RequestError(
            ResponseCode.SUBSCRIPTION_NOT_EXIST,
            f"the consumer's subscription not exist: group {name}, topic {header.topic}",
        )
    if subscription.sub_version < header.sub_version:
        raise RequestError(
            ResponseCode.SUBSCRIPTION_NOT_LATEST, f"the consumer's subscription not latest: group {name}"
        )
    return subscription


class _RetryFilter:
    """Filter of a retry topic: applies the group's subscription to a message's original topic (filterSupportRetry)."""

    __slots__ = ("_asker", "_broker", "_group", "_tests")

    def __init__(self, broker: Subscribers, group: str, asker: int) -> None:
        self._broker = broker
        self._asker = asker
        self._group = group
        self._tests: dict[bytes, Callable[[bytes], bool] | None] = {}

    def __call__(self, properties: bytes) -> bool:
        topic = value_of(properties, _RETRY_TOPIC)
        if topic not in self._tests:
            self._tests[topic] = self._test_of(topic.decode("utf-8", "replace"))
        test = self._tests[topic]
        return test is None or test(properties)

    def _test_of(self, topic: str) -> Callable[[bytes], bool] | None:
        broker = self._broker
        subscription = broker.clients.subscription(self._group, topic, broker.now_ms())
        if subscription is None or subscription.expression_type != SQL_TYPE:
            return None
        try:
            return compile_expression(SQL_TYPE, subscription.sub_string, broker.compile_work, self._asker).properties
        except RequestError:
            return None


def value_of(properties: bytes, name: bytes) -> bytes:
    """Return one of the raw properties, empty if it is missing."""
    _, found, value = (b"\2" + properties).rpartition(b"\2%b\1" % name)
    return value.partition(b"\2")[0] if found else b""
