"""Members of a group, asked through their broker: what they do, and to consume one message now."""

from __future__ import annotations

from delaymq.client.admin.base import AdminCalls
from delaymq.client.errors import ClientError, reading_answer
from delaymq.message.ids import parse_offset_message_id
from delaymq.protocol.bodies import ConsumeDirectlyResult, ConsumerRunningInfo
from delaymq.protocol.codes import RequestCode
from delaymq.protocol.command import request_command
from delaymq.protocol.headers import (
    ConsumeMessageDirectlyResultRequestHeader,
    GetConsumerRunningInfoRequestHeader,
)
from delaymq.transport.addresses import host_and_port

MEMBER_TIMEOUT_MS = 15_000
"""Brokers give a member 10 s to answer."""


class MemberCalls(AdminCalls):
    """A member is known to the brokers whose queues it may read: each master is tried."""

    async def member_info(self, group: str, client_id: str, *, stacks: bool = False) -> ConsumerRunningInfo:
        """A member's settings, subscriptions, queues and rates; with `stacks` where its threads or tasks are.

        ClientError when it is in the group at no broker, RefusedError when it does not answer.
        """
        header = GetConsumerRunningInfoRequestHeader(consumer_group=group, client_id=client_id, jstack_enable=stacks)
        address = await self._broker_of(group, client_id)
        command = request_command(RequestCode.GET_CONSUMER_RUNNING_INFO, header.to_fields())
        answer = await self._client.request(address, command, MEMBER_TIMEOUT_MS)
        with reading_answer(f"member {client_id}"):
            return ConsumerRunningInfo.decode(answer.body)

    async def consume_directly(self, group: str, client_id: str, offset_message_id: str) -> ConsumeDirectlyResult:
        """Has a member's handler consume a stored message, beside its queues. Nothing is committed or retried.

        ValueError for what is no offset message id; RefusedError when the broker of the message does not know the
        member, or it does not answer in time: it may consume the message all the same.
        """
        host, port, _ = parse_offset_message_id(offset_message_id)
        header = ConsumeMessageDirectlyResultRequestHeader(
            consumer_group=group, client_id=client_id, msg_id=offset_message_id
        )
        address = host_and_port(host, port)
        command = request_command(RequestCode.CONSUME_MESSAGE_DIRECTLY, header.to_fields())
        answer = await self._client.request(address, command, MEMBER_TIMEOUT_MS)
        with reading_answer(f"member {client_id}"):
            return ConsumeDirectlyResult.decode(answer.body)

    async def _broker_of(self, group: str, client_id: str) -> str:
        for address in (await self.masters()).values():
            told = await self._consumers_at(address, group)
            if told is not None and any(each.client_id == client_id for each in told.connection_set):
                return address
        raise ClientError(
            f"{client_id} is not a member of group {group}: list the members with `delaymq group members {group}`"
        )
