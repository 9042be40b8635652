"""Looking after topics, groups and brokers, and finding messages."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Self

from delaymq.client.client import Client
from delaymq.client.errors import ClientError, NoRouteError, RefusedError, reading_answer
from delaymq.client.messages import ReceivedMessage, decode_messages
from delaymq.client.topic_config import PERM_READ_WRITE, TopicConfig
from delaymq.clock import now_ms
from delaymq.message.ids import parse_offset_message_id
from delaymq.message.names import retry_topic
from delaymq.protocol.bodies import (
    MASTER_ID,
    ClusterInfo,
    ConsumeOffset,
    ConsumeStats,
    KVTable,
    MessageQueue,
    TopicList,
    TopicOffset,
    TopicStats,
    TopicTable,
    decode_settings,
    encode_settings,
)
from delaymq.protocol.codes import RequestCode, ResponseCode
from delaymq.protocol.command import Command, request_command
from delaymq.protocol.headers import (
    DeleteKVConfigRequestHeader,
    DeleteTopicFromNamesrvRequestHeader,
    DeleteTopicRequestHeader,
    GetConsumeStatsRequestHeader,
    GetKVListByNamespaceRequestHeader,
    GetTopicStatsInfoRequestHeader,
    PutKVConfigRequestHeader,
    QueryMessageRequestHeader,
    ViewMessageRequestHeader,
)
from delaymq.transport.connection import host_and_port

ROUTE_WAIT_MS = 3_000
ROUTE_POLL_MS = 10
MAX_QUERIED = 64
"""What a broker answers at most to a query by key."""
ORDER_NAMESPACE: Final = "ORDER_TOPIC_CONFIG"
"""NameServers' settings by topic: `broker-a:4;broker-b:4`, the queues that clients send ordered messages to."""


class Admin:
    """Requests of an administrator over a client's connections; it needs no start and no close of its own.

    Errors are the client's; RefusedError when a broker or NameServer says no.
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Connections are the client's."""

    async def cluster_info(self) -> ClusterInfo:
        """All brokers that are registered, and the clusters that they belong to."""
        answer = await self._client.ask_name_server(request_command(RequestCode.GET_BROKER_CLUSTER_INFO))
        with reading_answer("the NameServer"):
            return ClusterInfo.decode(answer.body)

    async def topics(self) -> list[str]:
        """All topics that any broker has registered."""
        answer = await self._client.ask_name_server(request_command(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER))
        with reading_answer("the NameServer"):
            return sorted(TopicList.decode(answer.body).topic_list)

    async def masters(self, cluster: str | None = None) -> dict[str, str]:
        """Broker name → address of its master, in one cluster or in all. ClientError when there is none."""
        info = await self.cluster_info()
        chosen = info.broker_addr_table.keys() if cluster is None else info.cluster_addr_table.get(cluster, [])
        found = {
            name: address
            for name in chosen
            if name in info.broker_addr_table
            and (address := info.broker_addr_table[name].broker_addrs.get(MASTER_ID)) is not None
        }
        if not found:
            where = "" if cluster is None else f" in cluster {cluster}"
            raise ClientError(f"no broker is registered{where}: is one running, with this NameServer as namesrvAddr?")
        return found

    async def create_topic(
        self, topic: str, *, queues: int = 8, perm: int = PERM_READ_WRITE, cluster: str | None = None
    ) -> None:
        """Creates `topic`, or changes it, on all masters; returns when clients can find it.

        ValueError for an illegal name or number, NoRouteError when no NameServer has heard of it in time.
        """
        if queues < 1:
            raise ValueError(f"a topic has at least one queue, not {queues}")
        config = TopicConfig(topic=topic, write_queues=queues, read_queues=queues, permission=perm)
        for address in (await self.masters(cluster)).values():
            await self.put_topic(address, config)
        # Brokers tell NameServers about it without waiting for their answers.
        for _ in range(ROUTE_WAIT_MS // ROUTE_POLL_MS):
            if await self.topic_exists(topic):
                return
            await asyncio.sleep(ROUTE_POLL_MS / 1000)
        await self._client.route(topic, fresh=True)

    async def delete_topic(self, topic: str) -> None:
        """Deletes `topic` with its messages, on all masters and at the NameServers."""
        for address in (await self.masters()).values():
            await self.delete_topic_on(address, topic)
        await self.delete_route(topic)

    # One broker, or the NameServers alone.

    async def topic_configs(self, address: str) -> dict[str, TopicConfig]:
        """All topics of the broker at `address`, its own ones too."""
        answer = await self._client.ask(address, request_command(RequestCode.GET_ALL_TOPIC_CONFIG))
        with reading_answer(address):
            table = TopicTable.decode(answer.body).topic_config_table
        return {name: TopicConfig.from_wire(config) for name, config in table.items()}

    async def put_topic(self, address: str, config: TopicConfig) -> None:
        """Creates or changes a topic on the broker at `address`; it is on its disk then. `order` changes nothing.

        ValueError for an illegal name or number.
        """
        fields = config.to_header().to_fields()
        await self._client.ask(address, request_command(RequestCode.UPDATE_AND_CREATE_TOPIC, fields))

    async def delete_topic_on(self, address: str, topic: str) -> None:
        """Deletes a topic with its messages on the broker at `address`; its route stays: `delete_route`."""
        fields = DeleteTopicRequestHeader(topic=topic).to_fields()
        await self._client.ask(address, request_command(RequestCode.DELETE_TOPIC_IN_BROKER, fields))

    async def delete_route(self, topic: str, *, cluster: str | None = None) -> None:
        """Has all NameServers forget the topic, of one cluster or of all; a broker that still has it brings it back."""
        fields = DeleteTopicFromNamesrvRequestHeader(topic=topic, cluster_name=cluster).to_fields()
        await self._ask_all_name_servers(lambda: request_command(RequestCode.DELETE_TOPIC_IN_NAMESRV, dict(fields)))

    async def orders(self, name_server: str) -> dict[str, str]:
        """The order settings that one NameServer has, by topic."""
        fields = GetKVListByNamespaceRequestHeader(namespace=ORDER_NAMESPACE).to_fields()
        try:
            answer = await self._client.ask(name_server, request_command(RequestCode.GET_KVLIST_BY_NAMESPACE, fields))
        except RefusedError as error:
            if error.code == ResponseCode.QUERY_NOT_FOUND:
                return {}  # nobody ever set one
            raise
        with reading_answer(name_server):
            return KVTable.decode(answer.body).table

    async def put_order(self, topic: str, text: str) -> None:
        """Sets at all NameServers which brokers have how many queues of an ordered topic: `broker-a:4;broker-b:4`."""
        fields = PutKVConfigRequestHeader(namespace=ORDER_NAMESPACE, key=topic, value=text).to_fields()
        await self._ask_all_name_servers(lambda: request_command(RequestCode.PUT_KV_CONFIG, dict(fields)))

    async def delete_order(self, topic: str) -> None:
        """Takes the order setting of a topic back; nothing happens where there is none."""
        fields = DeleteKVConfigRequestHeader(namespace=ORDER_NAMESPACE, key=topic).to_fields()
        await self._ask_all_name_servers(lambda: request_command(RequestCode.DELETE_KV_CONFIG, dict(fields)))

    async def _ask_all_name_servers(self, make_command: Callable[[], Command]) -> None:
        """Asks each of them at once; raises what the first of them failed with after all have been asked."""
        addresses = self._client.require_name_servers()
        answers = (self._client.ask(address, make_command()) for address in addresses)
        for outcome in await asyncio.gather(*answers, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome

    async def topic_stats(self, topic: str) -> dict[MessageQueue, TopicOffset]:
        """Offsets and last store time of each queue."""
        route = await self._client.route(topic, fresh=True)
        header = GetTopicStatsInfoRequestHeader(topic=topic)
        found: dict[MessageQueue, TopicOffset] = {}
        for address in route.addresses():
            answer = await self._client.ask(
                address, request_command(RequestCode.GET_TOPIC_STATS_INFO, header.to_fields())
            )
            with reading_answer(address):
                found |= TopicStats.decode(answer.body).offset_table
        return found

    async def consumer_progress(self, group: str, topic: str | None = None) -> dict[MessageQueue, ConsumeOffset]:
        """How far `group` is in each queue that it has an offset for. NoRouteError for a group that never was."""
        route = await self._client.route(retry_topic(group), fresh=True)
        header = GetConsumeStatsRequestHeader(consumer_group=group, topic=topic)
        found: dict[MessageQueue, ConsumeOffset] = {}
        for address in route.addresses():
            answer = await self._client.ask(address, request_command(RequestCode.GET_CONSUME_STATS, header.to_fields()))
            with reading_answer(address):
                found |= ConsumeStats.decode(answer.body).offset_table
        return found

    async def view_message(self, offset_message_id: str) -> ReceivedMessage:
        """The message at the place that an offset message id names. ValueError when it is none."""
        host, port, offset = parse_offset_message_id(offset_message_id)
        address = host_and_port(host, port)
        header = ViewMessageRequestHeader(offset=offset)
        answer = await self._client.ask(address, request_command(RequestCode.VIEW_MESSAGE_BY_ID, header.to_fields()))
        with reading_answer(address):
            found = decode_messages(answer.body, "")
        if not found:
            raise ClientError(f"{address} has no message at offset {offset}")
        return found[0]

    async def query_by_key(
        self, topic: str, key: str, *, max_messages: int = MAX_QUERIED, begin_ms: int = 0, end_ms: int | None = None
    ) -> list[ReceivedMessage]:
        """Messages of `topic` with this key, oldest first; a unique id is a key too."""
        header = QueryMessageRequestHeader(
            topic=topic,
            key=key,
            max_num=min(max_messages, MAX_QUERIED),
            begin_timestamp=begin_ms,
            end_timestamp=now_ms() if end_ms is None else end_ms,
        )
        route = await self._client.route(topic, fresh=True)
        found: list[ReceivedMessage] = []
        for broker_name in sorted(route.brokers):
            address = route.reader(broker_name)
            if address is None:
                continue
            command = request_command(RequestCode.QUERY_MESSAGE, header.to_fields())
            try:
                answer = await self._client.ask(address, command)
            except RefusedError as error:
                if error.code == ResponseCode.QUERY_NOT_FOUND:
                    continue
                raise
            with reading_answer(address):
                found += decode_messages(answer.body, broker_name)
        # The broker's index knows hashes only.
        matching = [message for message in found if key in message.keys or key == message.message_id]
        return sorted(matching, key=lambda message: message.store_timestamp_ms)[:max_messages]

    async def broker_config(self, address: str) -> dict[str, str]:
        """A broker's settings by RocketMQ's keys."""
        answer = await self._client.ask(address, request_command(RequestCode.GET_BROKER_CONFIG))
        with reading_answer(address):
            return decode_settings(answer.body)

    async def update_broker_config(self, address: str, settings: dict[str, str]) -> None:
        """Changes settings of a running broker."""
        await self._client.ask(
            address, request_command(RequestCode.UPDATE_BROKER_CONFIG, body=encode_settings(settings))
        )

    async def runtime_info(self, address: str) -> dict[str, str]:
        """A broker's figures by RocketMQ's names."""
        answer = await self._client.ask(address, request_command(RequestCode.GET_BROKER_RUNTIME_INFO))
        with reading_answer(address):
            return KVTable.decode(answer.body).table

    async def topic_exists(self, topic: str) -> bool:
        """Whether a NameServer knows a route of `topic`."""
        try:
            await self._client.route(topic, fresh=True)
        except NoRouteError:
            return False
        return True
