"""Topics: list, queues, consumer groups, order settings."""

from __future__ import annotations

import asyncio

from delaymq.client.admin.base import MAX_TABLE_BYTES, ORDER_NAMESPACE, AdminCalls
from delaymq.client.admin.topic_config import PERM_READ_WRITE, TopicConfig
from delaymq.client.errors import NoRouteError, RefusedError, reading_answer
from delaymq.protocol.bodies import GroupList, KVTable, MessageQueue, TopicList, TopicOffset, TopicStats, TopicTable
from delaymq.protocol.codes import RequestCode, ResponseCode
from delaymq.protocol.command import request_command
from delaymq.protocol.headers import (
    DeleteKVConfigRequestHeader,
    DeleteTopicFromNamesrvRequestHeader,
    DeleteTopicRequestHeader,
    GetKVListByNamespaceRequestHeader,
    GetTopicStatsInfoRequestHeader,
    PutKVConfigRequestHeader,
    QueryTopicConsumeByWhoRequestHeader,
)

ROUTE_WAIT_MS = 3_000
ROUTE_POLL_MS = 10


class TopicCalls(AdminCalls):
    """Requests for topics; methods with an `address` query one broker, others all masters or the NameServers."""

    async def topics(self) -> list[str]:
        """Return all topics that any broker has registered."""
        answer = await self._client.request_name_server(request_command(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER))
        with reading_answer("the NameServer"):
            return sorted(TopicList.decode(answer.body, max_bytes=MAX_TABLE_BYTES).topic_list)

    async def topic_exists(self, topic: str) -> bool:
        """Return whether a NameServer has a route of `topic`."""
        try:
            await self._client.route(topic, fresh=True)
        except NoRouteError:
            return False
        return True

    async def create_topic(
        self, topic: str, *, queues: int = 8, perm: int = PERM_READ_WRITE, cluster: str | None = None
    ) -> None:
        """Create or change `topic` on all masters; return when clients can find it.

        ValueError for an illegal name or number, NoRouteError if no NameServer receives its route in time.
        """
        if queues < 1:
            raise ValueError(f"a topic must have at least one queue, not {queues}")
        config = TopicConfig(topic=topic, write_queues=queues, read_queues=queues, permission=perm)
        for address in (await self.masters(cluster)).values():
            await self.put_topic(address, config)
        # Brokers register the topic without waiting for the responses of the NameServers.
        for _ in range(ROUTE_WAIT_MS // ROUTE_POLL_MS):
            if await self.topic_exists(topic):
                return
            await asyncio.sleep(ROUTE_POLL_MS / 1000)
        await self._client.route(topic, fresh=True)

    async def delete_topic(self, topic: str) -> None:
        """Delete `topic` with its messages, on all masters and the NameServers."""
        for address in (await self.masters()).values():
            await self.delete_topic_on(address, topic)
        await self.delete_route(topic)

    async def topic_configs(self, address: str) -> dict[str, TopicConfig]:
        """Return all topics of the broker at `address`, including system topics."""
        answer = await self._client.request(address, request_command(RequestCode.GET_ALL_TOPIC_CONFIG))
        with reading_answer(address):
            table = TopicTable.decode(answer.body, max_bytes=MAX_TABLE_BYTES).topic_config_table
        return {name: TopicConfig.from_wire(config) for name, config in table.items()}

    async def put_topic(self, address: str, config: TopicConfig) -> None:
        """Create or change a topic on the broker at `address`; it is durable on return. `order` has no effect.

        ValueError for an illegal name or number.
        """
        fields = config.to_header().to_fields()
        await self._client.request(address, request_command(RequestCode.UPDATE_AND_CREATE_TOPIC, fields))

    async def delete_topic_on(self, address: str, topic: str) -> None:
        """Delete a topic with its messages on the broker at `address`; its route remains: see `delete_route`."""
        fields = DeleteTopicRequestHeader(topic=topic).to_fields()
        await self._client.request(address, request_command(RequestCode.DELETE_TOPIC_IN_BROKER, fields))

    async def delete_route(self, topic: str, *, cluster: str | None = None) -> None:
        """Remove the topic, of one cluster or of all, from all NameServers; a broker that still has it restores the
        route.
        """
        fields = DeleteTopicFromNamesrvRequestHeader(topic=topic, cluster_name=cluster).to_fields()
        await self._request_all_name_servers(lambda: request_command(RequestCode.DELETE_TOPIC_IN_NAMESRV, dict(fields)))

    async def topic_stats(self, topic: str) -> dict[MessageQueue, TopicOffset]:
        """Return offsets and last store time of each queue."""
        route = await self._client.route(topic, fresh=True)
        header = GetTopicStatsInfoRequestHeader(topic=topic)
        found: dict[MessageQueue, TopicOffset] = {}
        for address in route.addresses():
            answer = await self._client.request(
                address, request_command(RequestCode.GET_TOPIC_STATS_INFO, header.to_fields())
            )
            with reading_answer(address):
                found |= TopicStats.decode(answer.body).offset_table
        return found

    async def topic_groups(self, topic: str) -> list[str]:
        """Return groups that are subscribed to `topic` or have offsets in it."""
        route = await self._client.route(topic, fresh=True)
        fields = QueryTopicConsumeByWhoRequestHeader(topic=topic).to_fields()
        found: set[str] = set()
        for address in route.addresses():
            command = request_command(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, dict(fields))
            answer = await self._client.request(address, command)
            with reading_answer(address):
                found.update(GroupList.decode(answer.body).group_list)
        return sorted(found)

    async def orders(self, name_server: str) -> dict[str, str]:
        """Return the order settings of a NameServer, by topic."""
        fields = GetKVListByNamespaceRequestHeader(namespace=ORDER_NAMESPACE).to_fields()
        try:
            answer = await self._client.request(
                name_server, request_command(RequestCode.GET_KVLIST_BY_NAMESPACE, fields)
            )
        except RefusedError as error:
            if error.code == ResponseCode.QUERY_NOT_FOUND:
                return {}  # nobody ever set one
            raise
        with reading_answer(name_server):
            return KVTable.decode(answer.body).table

    async def put_order(self, topic: str, text: str) -> None:
        """Set the queues of an ordered topic by broker at all NameServers: `broker-a:4;broker-b:4`."""
        fields = PutKVConfigRequestHeader(namespace=ORDER_NAMESPACE, key=topic, value=text).to_fields()
        await self._request_all_name_servers(lambda: request_command(RequestCode.PUT_KV_CONFIG, dict(fields)))

    async def delete_order(self, topic: str) -> None:
        """Delete the order setting of a topic; an absent one is not an error."""
        fields = DeleteKVConfigRequestHeader(namespace=ORDER_NAMESPACE, key=topic).to_fields()
        await self._request_all_name_servers(lambda: request_command(RequestCode.DELETE_KV_CONFIG, dict(fields)))
