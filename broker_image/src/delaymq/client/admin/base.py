"""Base of the administration: selection of NameServers and brokers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from delaymq.client.core.client import Client
from delaymq.client.errors import ClientError, RefusedError, reading_answer
from delaymq.protocol.bodies import MASTER_ID, ClusterInfo, ConsumerConnection
from delaymq.protocol.codes import RequestCode, ResponseCode
from delaymq.protocol.command import Command, request_command
from delaymq.protocol.headers import GetConsumerConnectionListRequestHeader

ORDER_NAMESPACE: Final = "ORDER_TOPIC_CONFIG"
"""Namespace of NameServers' order settings by topic: `broker-a:4;broker-b:4`, the queues for ordered messages."""
MAX_TABLE_BYTES: Final = 16 * 1024 * 1024
"""Maximum size of a broker's table of all topics or groups: 20,000 groups take 6 MB, and a larger frame is rejected."""


class AdminCalls:
    """Base of the classes of requests."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def cluster_info(self) -> ClusterInfo:
        """Return all registered brokers and their clusters."""
        answer = await self._client.request_name_server(request_command(RequestCode.GET_BROKER_CLUSTER_INFO))
        with reading_answer("the NameServer"):
            return ClusterInfo.decode(answer.body)

    async def masters(self, cluster: str | None = None) -> dict[str, str]:
        """Return broker name → address of its master, in one cluster or in all. ClientError if there is none."""
        info = await self.cluster_info()
        chosen = info.broker_addr_table.keys() if cluster is None else info.cluster_addr_table.get(cluster, [])
        found = {
            name: address
            for name in chosen
            if name in info.broker_addr_table
            and (address := info.broker_addr_table[name].broker_addrs.get(MASTER_ID)) is not None
        }
        for name, address in found.items():
            self._client.note_broker(name, address)
        if not found:
            where = "" if cluster is None else f" in cluster {cluster}"
            raise ClientError(f"no broker is registered{where}: start a broker with this NameServer as its namesrvAddr")
        return found

    async def _consumers_at(self, address: str, group: str) -> ConsumerConnection | None:
        """Return the members of a group that are connected to a broker; None if there are none."""
        header = GetConsumerConnectionListRequestHeader(consumer_group=group)
        command = request_command(RequestCode.GET_CONSUMER_CONNECTION_LIST, header.to_fields())
        try:
            answer = await self._client.request(address, command)
        except RefusedError as error:
            if error.code == ResponseCode.CONSUMER_NOT_ONLINE:
                return None
            raise
        with reading_answer(address):
            return ConsumerConnection.decode(answer.body)

    async def _request_all_name_servers(self, make_command: Callable[[], Command]) -> None:
        """Query all NameServers concurrently; after all have finished, raise the first error."""
        addresses = self._client.require_name_servers()
        answers = (self._client.request(address, make_command()) for address in addresses)
        for outcome in await asyncio.gather(*answers, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome
