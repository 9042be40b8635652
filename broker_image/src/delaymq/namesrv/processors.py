"""One function per request code of the NameServer, except registrations; table.py maps the codes.

Each takes the NameServer, the session and the command, and returns the response or raises RequestError; functions that
write a file do so in steps.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import msgspec

from delaymq.blocking_steps import BlockingSteps
from delaymq.config import ConfigError, to_properties_text
from delaymq.config.running import ForbiddenKeyError
from delaymq.namesrv.kv import ORDER_TOPIC_CONFIG
from delaymq.namesrv.routes import FLAG_UNIT, FLAG_UNIT_SUBSCRIPTION
from delaymq.protocol.bodies import KVTable, TopicList, decode_settings
from delaymq.protocol.codes import ResponseCode
from delaymq.protocol.command import Command, Response
from delaymq.protocol.errors import RequestError
from delaymq.protocol.headers import (
    AddWritePermOfBrokerRequestHeader,
    AddWritePermOfBrokerResponseHeader,
    DeleteKVConfigRequestHeader,
    DeleteTopicFromNamesrvRequestHeader,
    GetBrokerAclConfigResponseHeader,
    GetKVConfigRequestHeader,
    GetKVConfigResponseHeader,
    GetKVListByNamespaceRequestHeader,
    GetRouteInfoRequestHeader,
    GetTopicsByClusterRequestHeader,
    PutKVConfigRequestHeader,
    WipeWritePermOfBrokerRequestHeader,
    WipeWritePermOfBrokerResponseHeader,
)
from delaymq.throttled_log import fields

if TYPE_CHECKING:
    from delaymq.access.views import View
    from delaymq.namesrv.nameserver import NameServer
    from delaymq.namesrv.session import NamesrvSession

_logger = logging.getLogger(__name__)

_REDUCED_AT_ONCE: Final = 10_000
"""Maximum topics that are compared with an account's permissions on the event loop, otherwise in a thread."""
SHOWN_CHARACTERS: Final = 127
"""Maximum length of a peer's text in a remark."""

# Write permissions


def wipe_write_permission(server: NameServer, session: NamesrvSession, command: Command) -> Response:
    """205: revoke the write permission of a broker's topics."""
    header = WipeWritePermOfBrokerRequestHeader.from_fields(command.fields)
    count = server.routes.wipe_write_permission(header.broker_name)
    return Response(fields=WipeWritePermOfBrokerResponseHeader(count).to_fields())


def add_write_permission(server: NameServer, session: NamesrvSession, command: Command) -> Response:
    """327: grant read and write permission to a broker's topics."""
    header = AddWritePermOfBrokerRequestHeader.from_fields(command.fields)
    count = server.routes.add_write_permission(header.broker_name)
    return Response(fields=AddWritePermOfBrokerResponseHeader(count).to_fields())


# Access rules


def rule_versions(server: NameServer, session: NamesrvSession, command: Command) -> Response:
    """52: return the version of each rule file in effect, in the form of a broker's response.

    RocketMQ's NameServer does not have this request.
    """
    if server.rules is None:
        text = "this NameServer has no access rules: set namesrvAclConfigPath to a rule file"
        raise RequestError(ResponseCode.SYSTEM_ERROR, text)
    versions = server.rules.versions()
    header = GetBrokerAclConfigResponseHeader(
        version=msgspec.json.encode(versions[str(server.rules.path)]).decode(),
        broker_name="",
        broker_addr="",
        cluster_name="",
        all_acl_file_version=msgspec.json.encode(versions).decode(),
    )
    return Response(fields=header.to_fields())


# Routes and lists


def route_of_topic(server: NameServer, session: NamesrvSession, command: Command) -> Response:
    """105: return a topic's route, as standard JSON in ASCII, which all clients can read."""
    header = GetRouteInfoRequestHeader.from_fields(command.fields)
    route = server.routes.route(header.topic)
    if route is None:
        shown = header.topic[:SHOWN_CHARACTERS]
        remark = f"No topic route info in name server for the topic: {shown}\nCreate it, or let producers create it."
        return Response(ResponseCode.TOPIC_NOT_EXIST, remark)
    if server.config.order_message_enable:
        route.order_topic_conf = server.kv.get(ORDER_TOPIC_CONFIG, header.topic)
    return Response(body=route.encode())


def cluster_info(server: NameServer, session: NamesrvSession, command: Command) -> Response:
    """106: return all brokers and clusters."""
    return Response(body=server.routes.cluster_info().encode())


def all_topics(server: NameServer, session: NamesrvSession, command: Command) -> Response | BlockingSteps[Response]:
    """206: return all topics."""
    return _listed(server, command, server.routes.topics)


def system_topics(server: NameServer, session: NamesrvSession, command: Command) -> Response:
    """304: return names of clusters and brokers, which are topics, too, and one broker's address for the others."""
    info = server.routes.cluster_info()
    names = []
    for cluster, brokers in info.cluster_addr_table.items():
        names += [cluster, *brokers]
    addresses = [address for data in info.broker_addr_table.values() for address in data.broker_addrs.values()]
    return Response(body=TopicList(names, next(iter(addresses), None)).encode())


def topics_of_cluster(
    server: NameServer, session: NamesrvSession, command: Command
) -> Response | BlockingSteps[Response]:
    """224: return the topics of a cluster."""
    header = GetTopicsByClusterRequestHeader.from_fields(command.fields)
    return _listed(server, command, server.routes.topics_of_cluster(header.cluster))


def unit_topics(server: NameServer, session: NamesrvSession, command: Command) -> Response | BlockingSteps[Response]:
    """311: return the topics of units."""
    return _listed(server, command, server.routes.topics_with_flags(wanted=FLAG_UNIT))


def unit_subscription_topics(
    server: NameServer, session: NamesrvSession, command: Command
) -> Response | BlockingSteps[Response]:
    """312: return the topics with unit subscriptions."""
    return _listed(server, command, server.routes.topics_with_flags(wanted=FLAG_UNIT_SUBSCRIPTION))


def unit_subscription_only_topics(
    server: NameServer, session: NamesrvSession, command: Command
) -> Response | BlockingSteps[Response]:
    """313: return the topics with unit subscriptions that are not topics of units."""
    topics = server.routes.topics_with_flags(wanted=FLAG_UNIT_SUBSCRIPTION, unwanted=FLAG_UNIT)
    return _listed(server, command, topics)


def _listed(server: NameServer, command: Command, topics: Iterable[str]) -> Response | BlockingSteps[Response]:
    view = server.view_of(command)
    if view is None:
        return Response(body=TopicList(list(topics)).encode())
    known = dict.fromkeys(topics)
    if len(known) > _REDUCED_AT_ONCE:
        return _reduced(view, known)
    return Response(body=TopicList(view.topics(known, known)).encode())


def _reduced(view: View, known: dict[str, None]) -> BlockingSteps[Response]:
    response = Response()

    def reduce() -> None:
        response.body = TopicList(view.topics(known, known)).encode()

    yield reduce
    return response


def delete_topic(server: NameServer, session: NamesrvSession, command: Command) -> Response:
    """216: delete a topic."""
    header = DeleteTopicFromNamesrvRequestHeader.from_fields(command.fields)
    server.routes.delete_topic(header.topic, header.cluster_name or None)
    return Response()


# Settings


def put_kv(server: NameServer, session: NamesrvSession, command: Command) -> BlockingSteps[Response]:
    """100: set a value, durably."""
    header = PutKVConfigRequestHeader.from_fields(command.fields)
    yield from server.kv.put(header.namespace, header.key, header.value)
    return Response()


def get_kv(server: NameServer, session: NamesrvSession, command: Command) -> Response:
    """101: return a value."""
    header = GetKVConfigRequestHeader.from_fields(command.fields)
    value = server.kv.get(header.namespace, header.key)
    if value is None:
        namespace, key = header.namespace[:SHOWN_CHARACTERS], header.key[:SHOWN_CHARACTERS]
        return Response(ResponseCode.QUERY_NOT_FOUND, f"No config item, Namespace: {namespace} Key: {key}")
    return Response(fields=GetKVConfigResponseHeader(value).to_fields())


def delete_kv(server: NameServer, session: NamesrvSession, command: Command) -> BlockingSteps[Response]:
    """102: remove a value, durably."""
    header = DeleteKVConfigRequestHeader.from_fields(command.fields)
    yield from server.kv.delete(header.namespace, header.key)
    return Response()


def kv_table(server: NameServer, session: NamesrvSession, command: Command) -> Response:
    """219: return all keys of a namespace."""
    header = GetKVListByNamespaceRequestHeader.from_fields(command.fields)
    table = server.kv.table(header.namespace)
    if table is None:
        shown = header.namespace[:SHOWN_CHARACTERS]
        return Response(ResponseCode.QUERY_NOT_FOUND, f"No config item, Namespace: {shown}")
    return Response(body=KVTable(table).encode())


def get_config(server: NameServer, session: NamesrvSession, command: Command) -> Response:
    """319: return the configuration."""
    return Response(body=to_properties_text(server.config).encode())


def update_config(server: NameServer, session: NamesrvSession, command: Command) -> BlockingSteps[Response]:
    """318: change settings atomically; the remark lists those changed now and after a restart, or the error."""
    settings = decode_settings(command.body)
    if not settings:
        raise RequestError(ResponseCode.SYSTEM_ERROR, "the body contains no keys: send key=value lines")
    try:
        change = yield from server.settings.change(
            lambda: server.config, settings, by=f"code 318 of {session.remote_address}", now_ms=server.now_ms()
        )
    except ForbiddenKeyError as error:
        raise RequestError(ResponseCode.NO_PERMISSION, str(error)) from error
    except ConfigError as error:
        raise RequestError(ResponseCode.SYSTEM_ERROR, str(error)) from error
    server.apply(change.config)
    _logger.info("settings: %s", change.remark, extra=fields(peer=session.remote_address))
    return Response(remark=change.remark)
