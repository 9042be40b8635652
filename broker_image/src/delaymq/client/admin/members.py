"""Requests to members of a group through their broker: state, and direct consumption of a message."""

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
"""Timeout in ms; brokers wait 10 s for a member's response."""


class MemberCalls(AdminCalls):
    """Requests to members. A member is connected to the brokers whose queues it may read, so each master is tried."""

    async def member_info(self, group: str, client_id: str, *, stacks: bool = False) -> ConsumerRunningInfo:
        """Return a member's settings, subscriptions, queues and rates; with `stacks`, the stacks of its threads or
        tasks.

        ClientError if no broker has it as a member of the group, RefusedError if it does not respond.
        """
        header = GetConsumerRunningInfoRequestHeader(consumer_group=group, client_id=client_id, jstack_enable=stacks)
        address = await self._broker_of(group, client_id)
        command = request_command(RequestCode.GET_CONSUMER_RUNNING_INFO, header.to_fields())
        answer = await self._client.request(address, command, MEMBER_TIMEOUT_MS)
        with reading_answer(f"member {client_id}"):
            return ConsumerRunningInfo.decode(answer.body)

    async def consume_directly(self, group: str, client_id: str, offset_message_id: str) -> ConsumeDirectlyResult:
        """Make a member's handler consume a stored message, independent of its queues. Nothing is committed or
        retried.

        ValueError for an invalid offset message id; RefusedError if the broker of the message does not have the
        member, or it does not respond in time, in which case it may consume the message nevertheless.
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
