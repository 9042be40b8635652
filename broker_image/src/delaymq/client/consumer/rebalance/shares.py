"""Assignment of a topic's queues to a member."""

from __future__ import annotations

from typing import NamedTuple

from delaymq.client.consumer.rebalance.strategies import ALLOCATIONS
from delaymq.client.core.client import Client
from delaymq.client.core.routes import Route
from delaymq.client.errors import ClientError, NoRouteError, RefusedError, reading_answer
from delaymq.client.options import Allocation
from delaymq.protocol.bodies import ConsumerIds, MessageQueue
from delaymq.protocol.codes import RequestCode
from delaymq.protocol.command import request_command
from delaymq.protocol.headers import GetConsumerListByGroupRequestHeader


class Share(NamedTuple):
    """Queues of a topic assigned to this member."""

    queues: frozenset[MessageQueue]
    has_others: bool
    """Whether the group has other members that may have had these queues until recently."""


class Shares:
    """Requests the group's members from a broker and computes this member's queues."""

    def __init__(
        self, client: Client, group: str, *, clustering: bool = True, allocation: Allocation = Allocation.AVERAGELY
    ) -> None:
        self._client = client
        self._group = group
        self._clustering = clustering
        self._allocate = ALLOCATIONS[allocation]

    async def share(self, topic: str) -> Share | None:
        """Return the queues of `topic` for this member; None while brokers do not list it as a member.

        Raises ClientError if no broker responds.
        """
        route = await self._client.route(topic)
        if not self._clustering:
            return Share(frozenset(route.readable), has_others=False)
        members = await self._members(topic, route)
        if self._client.client_id not in members:
            return None
        queues = self._allocate(self._client.client_id, members, route.readable)
        return Share(frozenset(queues), has_others=len(members) > 1)

    async def _members(self, topic: str, route: Route) -> list[str]:
        header = GetConsumerListByGroupRequestHeader(consumer_group=self._group)
        last: ClientError = NoRouteError(topic, "its route currently has no broker: retry later")
        for address in route.addresses():
            command = request_command(RequestCode.GET_CONSUMER_LIST_BY_GROUP, header.to_fields())
            try:
                answer = await self._client.request(address, command)
            except RefusedError:
                return []  # the broker knows no member of the group
            except ClientError as error:
                last = error
                continue
            with reading_answer(address):
                return ConsumerIds.decode(answer.body).consumer_id_list
        raise last
