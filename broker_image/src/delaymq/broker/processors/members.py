"""Administrators' requests that members of a consumer group execute over their own connections (222, 223, 307, 309)."""

from __future__ import annotations

from collections.abc import Generator
from functools import partial
from typing import TYPE_CHECKING, Final

from delaymq.broker.groups.client_versions import V3_0_7, V3_1_8, version_name
from delaymq.broker.groups.consumer_group import Client
from delaymq.broker.requests.errors import system_error
from delaymq.broker.requests.results import RelayedRequests, TimeSliced, first_step
from delaymq.message.ids import parse_offset_message_id
from delaymq.protocol.bodies import ConsumerStatus, MessageQueue, TopicConfig
from delaymq.protocol.codes import RequestCode, ResponseCode
from delaymq.protocol.command import Command, Response, request_command
from delaymq.protocol.credential_fields import CREDENTIAL_FIELDS
from delaymq.protocol.errors import RequestError
from delaymq.protocol.headers import (
    ConsumeMessageDirectlyResultRequestHeader,
    GetConsumerRunningInfoRequestHeader,
    GetConsumerStatusRequestHeader,
    ResetOffsetRequestHeader,
)
from delaymq.protocol.queue_entries import listed_offset_template, offset_template

if TYPE_CHECKING:
    from delaymq.broker.broker import Broker
    from delaymq.broker.requests.session import Session

PASSED_ON_TIMEOUT_MS: Final = 10_000
STATUS_TIMEOUT_MS: Final = 5_000
MAX_STATUS_BYTES: Final = 1024 * 1024
"""Members' tables are parsed on the event loop. A table has about 70 bytes for each queue."""
RESET_AT_ONCE: Final = 16
"""Queues of one step of a reset. Each queue needs a search by time."""
NOTIFY_BYTES_PER_SLICE: Final = 1024 * 1024
"""Bytes of reset notifications that are sent in one step."""


def get_running_info(broker: Broker, session: Session, command: Command) -> RelayedRequests:
    """Handle GET_CONSUMER_RUNNING_INFO (307): return a member's state, with `jstackEnable` also its thread stacks."""
    header = GetConsumerRunningInfoRequestHeader.from_fields(command.fields)
    question = request_command(RequestCode.GET_CONSUMER_RUNNING_INFO, _passed_on(command), command.body)
    return _pass_on(broker, header.consumer_group, header.client_id, question)


def consume_directly(broker: Broker, session: Session, command: Command) -> RelayedRequests:
    """Handle CONSUME_MESSAGE_DIRECTLY (309): let a member consume one stored message now; return the outcome.

    Offsets are neither considered nor changed.
    """
    header = ConsumeMessageDirectlyResultRequestHeader.from_fields(command.fields)
    try:
        offset = parse_offset_message_id(header.msg_id or "")[2]
    except ValueError as error:
        raise system_error(f"msgId={(header.msg_id or '')[:64]!r} is not an offset message id: {error}") from error
    _member(broker, header.consumer_group, header.client_id or "")  # rejects an absent member before the body is read
    record = broker.records.record_at(offset)
    if record is None:
        raise system_error(f"can not find message by the offset, {offset}")
    fields = _passed_on(command) | {"brokerName": broker.config.broker_name}
    body = broker.store.read_bytes(offset, record.size)
    question = request_command(RequestCode.CONSUME_MESSAGE_DIRECTLY, fields, body)
    return _pass_on(broker, header.consumer_group, header.client_id or "", question)


def _passed_on(command: Command) -> dict[str, str]:
    # Do not disclose the administrator's signature.
    return {name: value for name, value in command.fields.items() if name not in CREDENTIAL_FIELDS}


def _member(broker: Broker, group: str, client_id: str) -> Client:
    client = broker.clients.member(group, client_id)
    if client is None:
        raise system_error(f"The Consumer <{group}> <{client_id}> not online")
    if client.version < V3_1_8:
        version = version_name(client.version)
        raise system_error(
            f"The Consumer <{client_id}> Version <{version}> too low to finish, please upgrade it to V3_1_8_SNAPSHOT"
        )
    return client


def _pass_on(broker: Broker, group: str, client_id: str, question: Command) -> RelayedRequests:
    client = _member(broker, group, client_id)

    def answer(answers: list[Command | None]) -> Response:
        said = answers[0]
        if said is not None:
            return Response(said.code, said.remark, said.fields, said.body)
        # RocketMQ's broker also waits for a member that has left.
        now = broker.clients.member(group, client_id)
        left = now is None or now.session is not client.session
        why = "it left the group before it responded" if left else f"no response within {PASSED_ON_TIMEOUT_MS} ms"
        return Response(ResponseCode.CONSUME_MSG_TIMEOUT, f"consumer <{group}> <{client_id}> Timeout: {why}")

    return RelayedRequests([(client.session, question)], PASSED_ON_TIMEOUT_MS, answer)


def get_consumer_status(broker: Broker, session: Session, command: Command) -> RelayedRequests:
    """Handle INVOKE_BROKER_TO_GET_CONSUMER_STATUS (223): return the members' progress in the queues of a topic.

    Only the member with the stated client id, if there is one.
    """
    header = GetConsumerStatusRequestHeader.from_fields(command.fields)
    group, topic = header.group, header.topic
    asked = broker.clients.members(group)
    if not asked:
        raise system_error(f"No Any Consumer online in the consumer group: [{group}]")
    wanted = (header.client_addr or "").strip()
    if wanted:
        asked = [client for client in asked if client.client_id == wanted]
    for client in asked:
        _require_version(client, V3_0_7)
    fields = {"topic": topic, "group": group}
    requests = [
        (client.session, request_command(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, dict(fields))) for client in asked
    ]
    ids = [client.client_id for client in asked]
    code = RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS

    def answer(answers: list[Command | None]) -> Response:
        return broker.guarded(code, partial(_status_of, ids, answers))

    return RelayedRequests(requests, STATUS_TIMEOUT_MS, answer)


def _status_of(ids: list[str], answers: list[Command | None]) -> Response:
    status = ConsumerStatus()
    left_bytes = MAX_STATUS_BYTES
    unread = 0
    for client_id, answer in zip(ids, answers, strict=True):
        if answer is None or answer.code != ResponseCode.SUCCESS or not answer.body:
            continue
        try:
            status.consumer_table[client_id] = _stated(answer.body, left_bytes)
        except RequestError:
            unread += 1
        left_bytes = max(left_bytes - len(answer.body), 1)
    remark = None
    if unread:
        remark = f"the responses of {unread} members were unreadable or too large: query these members individually"
    return Response(0, remark, body=status.encode())


def _stated(body: bytes, max_bytes: int) -> dict[MessageQueue, int]:
    return ConsumerStatus.decode(body, max_bytes=max_bytes).message_queue_table


def reset_offset(broker: Broker, session: Session, command: Command) -> Response | TimeSliced:
    """Handle INVOKE_BROKER_TO_RESET_OFFSET (222): reset all members of a group to a point in time.

    The time −1 stands for the ends of the queues.
    """
    header = ResetOffsetRequestHeader.from_fields(command.fields)
    topic = broker.topics.get(header.topic)
    if topic is None:
        raise system_error(f"[reset-offset] reset offset failed, no topic in this broker. topic={header.topic[:127]}")
    return first_step(_reset(broker, topic, header), queued=False)


def _reset(broker: Broker, topic: TopicConfig, header: ResetOffsetRequestHeader) -> Generator[None, None, Response]:
    plain, listed = yield from _reset_tables(broker, topic, header)
    members = broker.clients.members(header.group)
    if not members:
        raise RequestError(
            ResponseCode.CONSUMER_NOT_ONLINE,
            f"Consumer not online, so can not reset offset, Group: {header.group} Topic: {header.topic} "
            f"Timestamp: {header.timestamp}",
        )
    # All or none: otherwise only a part of the group would be reset.
    for client in members:
        _require_version(client, V3_0_7)
    fields = {
        "topic": header.topic,
        "group": header.group,
        "timestamp": str(header.timestamp),
        # Clients require the field, but the broker has already applied `force`.
        "isForce": "false",
    }

    def order(client: Client) -> Command:
        own = listed if client.language == "CPP" else plain
        return request_command(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, dict(fields), own, oneway=True)

    told_bytes = 0
    for _ in broker.clients.notify_each(header.group, order):
        told_bytes += len(plain)
        if told_bytes >= NOTIFY_BYTES_PER_SLICE:
            told_bytes = 0
            yield
    return Response(body=plain)


def _reset_tables(
    broker: Broker, topic: TopicConfig, header: ResetOffsetRequestHeader
) -> Generator[None, None, tuple[bytes, bytes]]:
    """Return the offset table for members, and the same table in the form for C++ clients."""
    name, group = topic.topic_name, header.group
    plain, listed = (make(broker.config.broker_name, name) for make in (offset_template, listed_offset_template))
    plains, lists = [], []
    for queue_id in range(topic.write_queue_nums):
        if queue_id and queue_id % RESET_AT_ONCE == 0:
            yield
        stored = broker.offsets.get(name, group, queue_id)
        if stored is None:
            raise system_error(f"THe consumer group <{group}> not exist")
        if header.timestamp == -1:
            wanted = broker.store.queue_bounds(name, queue_id)[1]
        else:
            wanted = max(broker.store.offset_by_time(name, queue_id, header.timestamp), 0)
        offset = wanted if header.is_force or wanted < stored else stored
        plains.append(plain % (queue_id, offset))
        lists.append(listed % (offset, queue_id))
    return b'{"offsetTable":{%b}}' % b",".join(plains), b'{"offsetTable":[%b]}' % b",".join(lists)


def _require_version(client: Client, version: int) -> None:
    if client.version < version:
        stated = version_name(client.version)
        raise system_error(f"the client does not support this feature. version={stated}")
