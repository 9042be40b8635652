"""Requests from brokers to a client, and their responses."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol, runtime_checkable

from delaymq.client.core.background import Background
from delaymq.client.core.member import Member
from delaymq.client.core.network import Network
from delaymq.client.core.replies import PendingReplies
from delaymq.client.decoding import received_in_thread
from delaymq.client.messages import ReceivedMessage
from delaymq.message import names
from delaymq.message.errors import RecordError
from delaymq.message.record import Record, decode_record
from delaymq.protocol.bodies import (
    ConsumeDirectlyResult,
    ConsumerRunningInfo,
    ConsumerStatus,
    MessageQueue,
    ResetOffset,
)
from delaymq.protocol.codes import RequestCode, ResponseCode
from delaymq.protocol.command import Command, Response, encode_response
from delaymq.protocol.errors import RequestError
from delaymq.protocol.headers import (
    CheckTransactionStateRequestHeader,
    ConsumeMessageDirectlyResultRequestHeader,
    GetConsumerRunningInfoRequestHeader,
    GetConsumerStatusRequestHeader,
)
from delaymq.transport import RemotingConnection

MAX_OPEN_RESPONSES: Final = 100
"""Maximum number of concurrent requests that wait for a handler; it limits the handlers that a broker can start."""

_logger = logging.getLogger(__name__)


@runtime_checkable
class ReportsStatus(Protocol):
    """A consumer that can report its state to an administrator."""

    retry_topic: str

    def running_info(self) -> ConsumerRunningInfo: ...
    def offsets_of(self, topic: str) -> dict[MessageQueue, int]: ...


@runtime_checkable
class ConsumesOnDemand(Protocol):
    """A consumer with a handler that can consume single messages independent of its queues."""

    async def consume_directly(self, message: ReceivedMessage) -> ConsumeDirectlyResult: ...


@runtime_checkable
class ChecksTransactions(Protocol):
    """A producer whose transactions can be checked. `check` returns immediately."""

    group: str

    def check(
        self, address: str, half: Record, broker_name: str, header: CheckTransactionStateRequestHeader
    ) -> None: ...


class RequestOwner(Protocol):
    """The client that receives the requests."""

    background: Background
    members: list[Member]
    network: Network
    requests: PendingReplies


Answer = Response | Coroutine[Any, Any, Response] | None


class InboundRequests:
    """Handles requests from the peers of a client; a malformed request is rejected."""

    def __init__(self, client: RequestOwner) -> None:
        self._client = client
        self._open = 0

    def requests_received(self, connection: RemotingConnection, commands: list[Command]) -> None:
        """Handle a command received on a connection."""
        for command in commands:
            serve = _SERVED.get(command.code)
            if serve is None:
                remark = f" request type {command.code} not supported"
                _reply(connection, command, Response(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark))
                continue
            try:
                answer = serve(self, connection, command)
            except RequestError as error:
                _logger.warning("invalid request from %s: %s", connection.remote_address, error.remark)
                answer = Response(error.code, error.remark)
            if isinstance(answer, Response):
                _reply(connection, command, answer)
            elif answer is not None:
                self._client.background.spawn(self._reply_later(connection, command, answer))

    async def _reply_later(
        self, connection: RemotingConnection, command: Command, answer: Coroutine[Any, Any, Response]
    ) -> None:
        if self._open >= MAX_OPEN_RESPONSES:
            answer.close()
            remark = f"this client is already processing {MAX_OPEN_RESPONSES} such requests: retry later"
            _reply(connection, command, Response(ResponseCode.SYSTEM_BUSY, remark))
            return
        self._open += 1
        try:
            _reply(connection, command, await answer)
        finally:
            self._open -= 1

    def _consumers(self, group: str | None) -> list[Member]:
        return [member for member in self._client.members if group is not None and group_of(member) == group]

    # One function per request code.

    def _members_changed(self, connection: RemotingConnection, command: Command) -> Answer:
        for member in self._consumers(command.fields.get("consumerGroup")):
            member.membership_changed()
        return None

    def _reset_offsets(self, connection: RemotingConnection, command: Command) -> Answer:
        offsets = ResetOffset.decode(command.body).offset_table
        for member in self._consumers(command.fields.get("group")):
            member.reset_offsets(offsets)
        return None

    def _status(self, connection: RemotingConnection, command: Command) -> Answer:
        header = GetConsumerStatusRequestHeader.from_fields(command.fields)
        offsets: dict[MessageQueue, int] = {}
        for member in self._consumers(header.group):
            if isinstance(member, ReportsStatus):
                offsets |= member.offsets_of(header.topic)
        return Response(body=ConsumerStatus(message_queue_table=offsets).encode())

    def _running_info(self, connection: RemotingConnection, command: Command) -> Answer:
        header = GetConsumerRunningInfoRequestHeader.from_fields(command.fields)
        for member in self._consumers(header.consumer_group):
            if isinstance(member, ReportsStatus):
                info = member.running_info()
                if header.jstack_enable:
                    # Only on request, since the stacks of thousands of tasks take a while.
                    from delaymq.client.core.task_stacks import task_stacks

                    info.jstack = task_stacks()
                return Response(body=info.encode())
        return _no_such_group(header.consumer_group)

    def _consume_directly(self, connection: RemotingConnection, command: Command) -> Answer:
        header = ConsumeMessageDirectlyResultRequestHeader.from_fields(command.fields)
        for member in self._consumers(header.consumer_group):
            if isinstance(member, ConsumesOnDemand):
                retry_topic = member.retry_topic if isinstance(member, ReportsStatus) else ""
                return _consume_directly_reply(member, _record(command.body), header.broker_name or "", retry_topic)
        return _no_such_group(header.consumer_group)

    def _check_transaction(self, connection: RemotingConnection, command: Command) -> Answer:
        header = CheckTransactionStateRequestHeader.from_fields(command.fields)
        record = _record(command.body)
        group = record.properties.get(names.PRODUCER_GROUP)
        for member in self._client.members:
            if isinstance(member, ChecksTransactions) and member.group == group:
                address = self._client.network.address_of(connection)
                member.check(address, record, command.fields.get("bname", ""), header)
                return None
        _logger.debug(
            ("%s requested a check of a transaction of %s, which has no producer in this client"),
            connection.remote_address,
            group,
        )
        return None

    def _reply_pushed(self, connection: RemotingConnection, command: Command) -> Answer:
        return self._client.requests.pushed(command)


async def _consume_directly_reply(
    member: ConsumesOnDemand, record: Record, broker_name: str, retry_topic: str
) -> Response:
    message = await received_in_thread(record, broker_name, retry_topic)
    return Response(body=(await member.consume_directly(message)).encode())


def _record(body: bytes) -> Record:
    try:
        return decode_record(body)
    except RecordError as error:
        raise RequestError(ResponseCode.SYSTEM_ERROR, f"the body is not a message: {error}") from error


def _no_such_group(group: str) -> Response:
    remark = f"The Consumer Group <{group}> not exist in this consumer"
    return Response(ResponseCode.SYSTEM_ERROR, remark)


def _reply(connection: RemotingConnection, command: Command, response: Response) -> None:
    if command.is_oneway:
        return
    try:
        data = encode_response(command, response)
    except ValueError as error:  # larger than a frame
        data = encode_response(command, Response(ResponseCode.SYSTEM_ERROR, f"the response cannot be sent: {error}"))
    connection.send(data)


def group_of(member: Member) -> str | None:
    """Return the consumer group of a member; None for a producer."""
    data = member.consumer_data()
    return None if data is None else data.group_name


_SERVED: Final[dict[int, Callable[[InboundRequests, RemotingConnection, Command], Answer]]] = {
    RequestCode.CHECK_TRANSACTION_STATE: InboundRequests._check_transaction,
    RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: InboundRequests._members_changed,
    RequestCode.RESET_CONSUMER_CLIENT_OFFSET: InboundRequests._reset_offsets,
    RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: InboundRequests._status,
    RequestCode.GET_CONSUMER_RUNNING_INFO: InboundRequests._running_info,
    RequestCode.CONSUME_MESSAGE_DIRECTLY: InboundRequests._consume_directly,
    RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT: InboundRequests._reply_pushed,
}
